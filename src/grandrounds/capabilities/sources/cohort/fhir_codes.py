"""Codes of FHIR R4 resources: the vocabulary of each system, known by its URL or OID, and the match with concept sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from grandrounds.capabilities.sources.cohort.definition import ConceptSet
from grandrounds.capabilities.sources.cohort.fhir_elements import Coding

_SYSTEMS = {
    "loinc.org": "LOINC",
    "snomed.info/sct": "SNOMED",
    "hl7.org/fhir/sid/icd-10": "ICD10",
    "hl7.org/fhir/sid/icd-10-cm": "ICD10CM",
    "hl7.org/fhir/sid/icd-10-gm": "ICD10GM",
    "hl7.org/fhir/sid/icd-10-de": "ICD10GM",
    "fhir.de/codesystem/bfarm/icd-10-gm": "ICD10GM",
    "fhir.de/codesystem/dimdi/icd-10-gm": "ICD10GM",
    "hl7.org/fhir/sid/icd-9-cm": "ICD9CM",
    "hl7.org/fhir/sid/icd-9-cm/diagnosis": "ICD9CM",
    "terminology.hl7.org/codesystem/icd9cm": "ICD9CM",
    "terminology.hl7.org/codesystem/icd9": "ICD9CM",
    "whocc.no/atc": "ATC",
    "fhir.de/codesystem/bfarm/atc": "ATC",
    "fhir.de/codesystem/dimdi/atc": "ATC",
    "nlm.nih.gov/research/umls/rxnorm": "RxNorm",
    "ama-assn.org/go/cpt": "CPT4",
    "unitsofmeasure.org": "UCUM",
    "fhir-terminology.ohdsi.org": "OMOP",
    "urn:oid:2.16.840.1.113883.6.1": "LOINC",
    "urn:oid:2.16.840.1.113883.6.96": "SNOMED",
    "urn:oid:2.16.840.1.113883.6.3": "ICD10",
    "urn:oid:2.16.840.1.113883.6.90": "ICD10CM",
    "urn:oid:1.2.276.0.76.5.311": "ICD10GM",
    "urn:oid:2.16.840.1.113883.6.103": "ICD9CM",
    "urn:oid:2.16.840.1.113883.6.104": "ICD9CM",
    "urn:oid:2.16.840.1.113883.6.73": "ATC",
    "urn:oid:2.16.840.1.113883.6.88": "RxNorm",
    "urn:oid:2.16.840.1.113883.6.12": "CPT4",
    "urn:oid:2.16.840.1.113883.6.8": "UCUM",
}
_PREFIX = re.compile(r"^https?://(www\.)?")
_SAME = {"RxNorm Extension": "RxNorm", "ICD9Proc": "ICD9CM", "ICD10PCS": "ICD10CM"}
"""Vocabularies of OMOP that share a system of codes in FHIR, or a name in a cohort file."""
_MOST_SEARCHED = 40  # codes: a search for more takes as long as parsing
_SEARCHABLE = re.compile(r"[A-Za-z0-9.-]+")  # codes that JSON writes in one way


@lru_cache(maxsize=512)
def find_vocabulary(system: str) -> str | None:
    """Find the vocabulary of definition.VOCABULARIES that a system of codes is; None where it is none of them."""
    plain = _PREFIX.sub("", system.strip().lower().partition("|")[0]).rstrip("/")
    return "SNOMED" if plain.startswith("snomed.info/sct") else _SYSTEMS.get(plain)


class CodeLists(Protocol):
    """A vocabulary, as far as resources with codes need one."""

    def codes(self, concepts: ConceptSet) -> frozenset[tuple[str, str]]:
        """List the pairs of vocabulary and code that a concept set covers, with descendants and codes that map to them."""

    def prepare_codes(self, sets: Iterable[ConceptSet]) -> None:
        """Find the codes of several concept sets at once."""


class CodeMatcher:
    """Matches lists of codings with a concept set: one coding that is in it is enough."""

    def __init__(self, concepts: ConceptSet, more: Iterable[tuple[str, str]] = ()) -> None:
        """Take the codes of a concept set.

        Args:
            concepts: The concept set.
            more: Further pairs of vocabulary and code, such as those of descendants.
        """
        self._codes = {(c.vocabulary, _plain(c.vocabulary, c.code)) for c in concepts.codes if not c.prefix}
        named = ((_SAME.get(vocabulary, vocabulary), code) for vocabulary, code in more)
        self._codes |= {(vocabulary, _plain(vocabulary, code)) for vocabulary, code in named}
        self._begins: dict[str, tuple[str, ...]] = {}
        for c in concepts.codes:
            if c.prefix:
                self._begins[c.vocabulary] = (*self._begins.get(c.vocabulary, ()), _plain(c.vocabulary, c.code))

    @property
    def pattern(self) -> str | None:
        """A pattern that is in every line with one of the codes; None where they are too many to search for."""
        codes = [(v, c, '"') for v, c in sorted(self._codes)]
        codes += [(v, c, "") for v, begins in sorted(self._begins.items()) for c in begins]
        if len(codes) > _MOST_SEARCHED or not all(_SEARCHABLE.fullmatch(code) for _, code, _ in codes):
            return None
        parts = (r"\.?".join(code) if v.startswith("ICD") else re.escape(code) for v, code, _ in codes)
        return "|".join(f'"{part}{end}' for part, (_, _, end) in zip(parts, codes, strict=True))

    def __call__(self, codings: tuple[Coding, ...]) -> bool:
        """Return True where one of the codings is in the set."""
        for system, code in codings:
            vocabulary = find_vocabulary(system)
            if vocabulary is not None:
                plain = _plain(vocabulary, code)
                if (vocabulary, plain) in self._codes or plain.startswith(self._begins.get(vocabulary, ())):
                    return True
        return False


def search_any(patterns: Sequence[str | None]) -> re.Pattern[bytes] | None:
    """Compile a search for any of the patterns; None where one cannot be searched for."""
    known = [p for p in patterns if p]
    return re.compile("|".join(known).encode(), re.IGNORECASE) if len(known) == len(patterns) else None


def _plain(vocabulary: str, code: str) -> str:
    """Write a code as it is compared: ICD codes are exported with and without a dot."""
    return code.replace(".", "").upper() if vocabulary.startswith("ICD") else code.strip()
