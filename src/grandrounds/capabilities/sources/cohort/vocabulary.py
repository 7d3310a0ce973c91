"""Vocabulary of a hospital: concepts of the codes that a cohort file names.

The tables CONCEPT, CONCEPT_RELATIONSHIP and CONCEPT_ANCESTOR come with an OMOP database, or from a folder or zip that the
hospital downloaded from Athena (https://athena.ohdsi.org) under the licences of its vocabularies. Grand Rounds ships none.

A code is found in CONCEPT by vocabulary and code. A code that is not standard, such as one of ICD-10, also counts as the
standard concepts to which it maps. Descendants of all of these count. Without the table CONCEPT, codes are compared with the
words of the source (`condition_source_value`), and OMOP ids with the ids of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grandrounds.capabilities.sources.cohort.definition import Code, ConceptSet
from grandrounds.capabilities.sources.cohort.omop_tables import NO_ID, Kind, Match, TableReader, WordMatch, read_columns
from grandrounds.core.arrays import Array
from grandrounds.core.errors import BadInput

_ICD = ("ICD10", "ICD10CM", "ICD10GM", "ICD9CM")
_SAME = {"RxNorm": ("RxNorm", "RxNorm Extension"), "ICD9CM": ("ICD9CM", "ICD9Proc"), "ICD10CM": ("ICD10CM", "ICD10PCS")}
_MAPS_TO = "Maps to"
_CONCEPT: dict[str, Kind] = {
    "concept_id": "id", "concept_name": "word", "domain_id": "word", "vocabulary_id": "word", "standard_concept": "word",
    "concept_code": "word",
}  # fmt: skip
_RELATION: dict[str, Kind] = {
    "concept_id_1": "id",
    "concept_id_2": "id",
    "relationship_id": "word",
    "invalid_reason": "word",
}
_ANCESTOR: dict[str, Kind] = {"ancestor_concept_id": "id", "descendant_concept_id": "id"}


@dataclass(frozen=True)
class Concept:
    """One row of CONCEPT."""

    id: int
    name: str
    domain: str
    vocabulary: str
    code: str
    standard: str  # "S", "C" for a class of drugs, or ""

    def __str__(self) -> str:
        return f"{self.vocabulary}:{self.code}"


@dataclass(frozen=True, eq=False)
class Resolution:
    """Concepts of a concept set.

    Attributes:
        ids: (n,) Concept ids, sorted; with those to which codes map, and descendants.
        words: Values of the source that match where there is no table CONCEPT.
        unknown: Codes that CONCEPT does not have.
        spread: Codes that map to several standard concepts, each of which counts.
    """

    ids: Array
    words: WordMatch
    unknown: tuple[Code, ...] = ()
    spread: tuple[tuple[Code, int], ...] = ()


class Vocabulary:
    """Concepts of a hospital; one without tables knows OMOP ids alone."""

    def __init__(self, reader: TableReader | None = None) -> None:
        """Use the vocabulary tables of a database or folder.

        Args:
            reader: The tables; None without any.

        Raises:
            BadInput: A table cannot be read.
        """
        self._reader = reader if reader is not None and _has_rows(reader, "concept", "concept_id") else None
        self._has_ancestors = self._reader is not None and _has_rows(
            self._reader, "concept_ancestor", "descendant_concept_id"
        )
        self._concepts: dict[int, Concept] = {}
        self._resolved: dict[ConceptSet, Resolution] = {}
        self._codes: dict[ConceptSet, frozenset[tuple[str, str]]] = {}

    @property
    def has_concepts(self) -> bool:
        """True with a table CONCEPT that has rows."""
        return self._reader is not None

    @property
    def has_ancestors(self) -> bool:
        """True with a table CONCEPT_ANCESTOR that has rows."""
        return self._has_ancestors

    def resolve(self, sets: Iterable[ConceptSet]) -> list[Resolution]:
        """Find the concepts of concept sets, reading each table once for all of them.

        Args:
            sets: The concept sets.

        Returns:
            The concepts of each set, in their order.

        Raises:
            BadInput: A table of the vocabulary cannot be read.
        """
        wanted = list(sets)
        new = [s for s in dict.fromkeys(wanted) if s not in self._resolved]
        if new:
            codes = list(dict.fromkeys(code for s in new for code in s.codes))
            found = self._find_codes(codes)
            for s in new:
                self._resolved[s] = self._combine(s, found)
        return [self._resolved[s] for s in wanted]

    def prepare_codes(self, sets: Iterable[ConceptSet]) -> None:
        """Find the codes of concept sets, reading each table once for all of them; `codes` then reads nothing.

        Args:
            sets: The concept sets.

        Raises:
            BadInput: A table of the vocabulary cannot be read.
        """
        new = [s for s in dict.fromkeys(sets) if s not in self._codes]
        if self._reader is None or not new:
            self._codes.update((s, frozenset()) for s in new)
            return
        resolved = self.resolve(new)
        ids = np.unique(np.concatenate([r.ids for r in resolved]))
        sources, targets = np.zeros((2, 0), np.int64)
        if len(ids) and self._reader.columns("concept_relationship"):
            sources, targets = self._relations("concept_id_2", ids)
        concepts = self.describe(np.union1d(ids, sources))
        for s, r in zip(new, resolved, strict=True):
            mine = np.union1d(r.ids, sources[np.isin(targets, r.ids)]).tolist()
            self._codes[s] = frozenset((concepts[i].vocabulary, concepts[i].code) for i in mine if i in concepts)

    def codes(self, concepts: ConceptSet) -> frozenset[tuple[str, str]]:
        """List the codes that a concept set covers, for records that carry codes and no concept ids.

        Args:
            concepts: The concept set.

        Returns:
            Pairs of vocabulary and code, such as ("ICD10CM", "E11.9"): of the concepts, their descendants, and every code that
            maps to one of them. Empty without a table CONCEPT.

        Raises:
            BadInput: A table of the vocabulary cannot be read.
        """
        self.prepare_codes([concepts])
        return self._codes[concepts]

    def describe(self, ids: Iterable[int] | Array) -> dict[int, Concept]:
        """Read the concepts of ids; those that CONCEPT does not have are left out."""
        wanted = {int(i) for i in ids}
        new = np.array(sorted(i for i in wanted if i not in self._concepts and i > 0), np.int64)
        if len(new) and self._reader is not None:
            self._read_concepts(Match(ids={"concept_id": new}))
        return {i: self._concepts[i] for i in sorted(wanted) if i in self._concepts}

    def units(self, ids: Iterable[int] | Array) -> dict[int, str]:
        """Read the UCUM codes of unit concepts."""
        return {i: c.code for i, c in self.describe(ids).items() if c.vocabulary == "UCUM"}

    def descendants(self, roots: Iterable[int]) -> dict[int, Array]:
        """Read the descendants of concepts, each with itself.

        Args:
            roots: Concept ids.

        Returns:
            (n,) Sorted ids by root.
        """
        wanted = np.array(sorted({int(r) for r in roots}), np.int64)
        own = {int(r): np.array([r], np.int64) for r in wanted}
        if self._reader is None or not self._has_ancestors or not len(wanted):
            return own
        pairs = read_columns(
            self._reader,
            "concept_ancestor",
            _ANCESTOR,
            required=tuple(_ANCESTOR),
            match=Match(ids={"ancestor_concept_id": wanted}),
        )
        for root, group in _group(pairs["ancestor_concept_id"], pairs["descendant_concept_id"]).items():
            own[root] = np.union1d(own[root], group)
        return own

    def _find_codes(self, codes: Sequence[Code]) -> dict[Code, tuple[Array, int]]:
        """Find the concepts of codes with their descendants, and the number of standard concepts of one source concept."""
        direct = self._match_codes(codes)
        concepts = self.describe(np.concatenate([*direct.values(), np.zeros(0, np.int64)]))
        sources = np.array([i for i, c in concepts.items() if not c.standard], np.int64)
        mapped: dict[int, Array] = {}
        if len(sources) and self._reader is not None and self._reader.columns("concept_relationship"):
            mapped = _group(*self._relations("concept_id_1", sources))
        standard = {
            code: np.union1d(ids, np.concatenate([np.zeros(0, np.int64), *(mapped[i] for i in ids if i in mapped)]))
            for code, ids in direct.items()
        }
        below = self.descendants(np.concatenate([np.zeros(0, np.int64), *standard.values()]))
        found = {}
        for code, ids in standard.items():
            most = max((len(mapped[i]) for i in direct[code] if i in mapped), default=1)
            all_ids = np.unique(np.concatenate([np.zeros(0, np.int64), *(below[int(i)] for i in ids)]))
            found[code] = (all_ids, most)
        return found

    def _match_codes(self, codes: Sequence[Code]) -> dict[Code, Array]:
        """Find the concepts that have the codes themselves."""
        ids = {c: int(c.code) for c in codes if c.vocabulary == "OMOP"}
        found: dict[Code, list[int]] = {c: [ids[c]] if c in ids else [] for c in codes}
        named = [c for c in codes if c not in ids]
        if self._reader is not None and (named or ids):
            words = _match_words(named)
            match = Match(
                ids={"concept_id": np.array(sorted(set(ids.values())), np.int64)}, words={"concept_code": words}
            )
            by_code: dict[str, list[Concept]] = {}
            for concept in self._read_concepts(match):
                by_code.setdefault(concept.code, []).append(concept)
            for code in named:
                one = _match_words([code])
                vocabularies = _SAME.get(code.vocabulary, (code.vocabulary,))
                candidates = (
                    [c for word in one.exact for c in by_code.get(word, ())]
                    if not code.prefix
                    else [c for word, group in by_code.items() if one.covers(word) for c in group]
                )
                found[code] = [c.id for c in candidates if c.vocabulary in vocabularies]
        return {code: np.array(sorted(set(i)), np.int64) for code, i in found.items()}

    def _combine(self, concepts: ConceptSet, found: dict[Code, tuple[Array, int]]) -> Resolution:
        ids = [found[code][0] for code in concepts.codes]
        if self._reader is None:
            named = [c for c in concepts.codes if c.vocabulary != "OMOP"]
            return Resolution(np.unique(np.concatenate(ids)), _match_words(named))
        unknown = tuple(
            c
            for c in concepts.codes
            if not len(found[c][0]) or (c.vocabulary == "OMOP" and int(c.code) not in self._concepts)
        )
        spread = tuple((c, found[c][1]) for c in concepts.codes if found[c][1] > 1)
        return Resolution(np.unique(np.concatenate(ids)), WordMatch(), unknown, spread)

    def _read_concepts(self, match: Match) -> list[Concept]:
        assert self._reader is not None
        rows = read_columns(
            self._reader,
            "concept",
            _CONCEPT,
            required=("concept_id", "vocabulary_id", "concept_code", "standard_concept"),
            match=match,
        )
        columns = [rows[name].tolist() for name in _CONCEPT]
        found = [
            Concept(i, name or "", domain or "", vocabulary or "", code or "", standard or "")
            for i, name, domain, vocabulary, standard, code in zip(*columns, strict=True)
            if i != NO_ID
        ]
        self._concepts.update((c.id, c) for c in found)
        return found

    def _relations(self, column: str, ids: Array) -> tuple[Array, Array]:
        """Read valid mappings of source concepts to standard ones, as two arrays."""
        assert self._reader is not None
        rows = read_columns(
            self._reader,
            "concept_relationship",
            _RELATION,
            required=("concept_id_1", "concept_id_2", "relationship_id"),
            match=Match(ids={column: ids}),
        )
        valid = np.fromiter(
            (
                r == _MAPS_TO and reason is None
                for r, reason in zip(rows["relationship_id"], rows["invalid_reason"], strict=True)
            ),
            bool,
            len(rows["relationship_id"]),
        )
        return rows["concept_id_1"][valid], rows["concept_id_2"][valid]


def open_vocabulary(where: str | Path) -> Vocabulary:
    """Open the vocabulary tables of a folder or zip, as downloaded from Athena.

    Args:
        where: The folder or zip with CONCEPT.csv.

    Returns:
        The vocabulary.

    Raises:
        BadInput: There is no table CONCEPT with rows, or it cannot be read.
    """
    from grandrounds.capabilities.sources.cohort.omop_files import FileTables

    path = Path(where).expanduser()
    if not path.exists():
        raise BadInput(
            f"the vocabulary {where} is not there; give the folder of an Athena download", code="file-not-found"
        )
    vocabulary = Vocabulary(FileTables(path))
    if not vocabulary.has_concepts:
        raise BadInput(
            f"{where} has no CONCEPT.csv with rows; give the folder of an Athena download (https://athena.ohdsi.org)",
            code="no-vocabulary",
        )
    return vocabulary


def _has_rows(reader: TableReader, table: str, column: str) -> bool:
    if column not in reader.columns(table):
        return False
    batches = iter(reader.read(table, [column]))
    return next(batches, None) is not None


def _match_words(codes: Sequence[Code]) -> WordMatch:
    """List the ways in which codes are written; those of ICD with and without their dot."""
    exact: set[str] = set()
    prefixes: set[str] = set()
    for code in codes:
        forms = {code.code}
        if code.vocabulary in _ICD and not code.code.endswith("."):
            plain = code.code.replace(".", "")
            head = 4 if code.vocabulary == "ICD9CM" and plain[:1] == "E" else 3
            forms |= {plain} if len(plain) <= head else {plain, f"{plain[:head]}.{plain[head:]}"}
        (prefixes if code.prefix else exact).update(forms)
    return WordMatch(frozenset(exact), tuple(sorted(prefixes)))


def _group(keys: Array, values: Array) -> dict[int, Array]:
    """Group values by key, each group sorted and without repetition."""
    order = np.argsort(keys, kind="stable")
    unique, starts = np.unique(keys[order], return_index=True)
    parts = np.split(values[order], starts[1:]) if len(unique) else []
    return {int(k): np.unique(v) for k, v in zip(unique, parts, strict=True)}
