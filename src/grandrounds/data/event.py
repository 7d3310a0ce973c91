"""Event of a classification: the class of two whose probability is shown as the risk.

Class order follows numbers and the alphabet, so the event may be either class: of `died` and `survived` it is the first.
An experiment states it (`--event`, `data.event`), the catalog knows it, or a rule reads it from the two words. Where the
words leave a doubt the run stops: a probability of surviving must never be printed as a risk.

The event changes probabilities that are shown as risks and the figures that follow from them (sensitivity, AUPRC, the
threshold, the decision curve). It changes neither the order of classes nor anything that a model learns.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.core.errors import BadInput, nearest

LAST = "last"
"""`Event.source` of a further task of a model whose words are no known pair: the last of its two classes."""

ONE_AGAINST_OTHERS = "for one class against the others add a column of two values to the table, and name it with --label"
"""Fix where a label has three values or more, and two are needed."""

_CLASSES_SHOWN = 8

_YES = "yes y ja j oui si true t wahr richtig vrai verdadero verdad waar 1"
_NO = "no n nein non nee false f falsch faux falso onwaar 0"

_PAIRS: tuple[tuple[str, str], ...] = (
    ("yes|y|ja|j|oui|si", "no|n|nein|non|nee"),
    ("true|t|wahr|vrai|verdadero|verdad|waar", "false|f|falsch|faux|falso|onwaar"),
    (
        "died|dead|deceased|death|expired|verstorben|gestorben|tot|tod|todesfall|exitus|decede|decedee|deces|mort|morte|"
        "fallecido|fallecida|muerto|muerta|muerte|overleden|dood|gestorven|overlijden",
        "survived|alive|living|lived|survivor|survival|discharged alive|uberlebt|ueberlebt|uberleben|ueberleben|lebend|"
        "lebendig|lebt|am leben|vivant|vivante|survecu|survivant|survivante|en vie|survie|vivo|viva|sobrevivio|"
        "sobreviviente|superviviente|con vida|levend|in leven|overleefd|leeft",
    ),
    ("case|cases|fall|cas|caso|geval|patient", "control|controls|kontrolle|kontroll|temoin|controle"),
    (
        "disease|diseased|sick|ill|krank|erkrankt|krankheit|malade|maladie|enfermo|enferma|enfermedad|ziek|ziekte",
        "healthy|well|health|gesund|sain|saine|sano|sana|gezond",
    ),
    (
        "positive|pos|+|positiv|positif|positivo|positiva|positief",
        "negative|neg|-|negativ|negatif|negativo|negativa|negatief",
    ),
    (
        "abnormal|pathological|pathologic|pathologisch|auffallig|auffaellig|anormal|anormale|pathologique|patologico|"
        "patologica|abnormaal|afwijkend",
        "normal|unauffallig|unauffaellig|normale|normaal",
    ),
    (
        "malignant|bosartig|boesartig|maligne|malin|maligno|maligna|kwaadaardig",
        "benign|gutartig|benin|benigne|benigno|benigna|goedaardig",
    ),
    ("event|ereignis|evenement|evento|gebeurtenis", "none|censored|zensiert|keines|aucun|ninguno|geen|nichts"),
    ("present|vorhanden|presente|aanwezig", "absent|absente|ausente|afwezig"),
)
"""The event's words and the other class's, English, German, French, Spanish and Dutch; as `_normalise` writes them."""

_OTHERS = {word for _, complements in _PAIRS for word in complements.split("|")}
_SURE = {word for pair in (3, 4, 6, 7) for word in _PAIRS[pair][1].split("|")} | {
    "none",
    "keines",
    "aucun",
    "ninguno",
    "geen",
}
"""Words that say that nothing is the matter, whatever the other class is called."""

_NOT = (
    "no", "not", "non", "without", "never", "absence of", "free of",
    "kein", "keine", "keinen", "nicht", "ohne", "pas de", "pas d", "pas", "sans", "aucun", "aucune",
    "sin", "ningun", "ninguna", "geen", "niet", "zonder",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """A class whose probability is a risk, and its share of the rows that the classes were counted on (None: not counted).

    `source` says who chose it: "data.event", "data.positive", "catalog", "rule", or `LAST`.
    """

    word: str
    other: str
    label: str | None = None
    share: float | None = None
    source: str = LAST

    @property
    def title(self) -> str:
        """The event for people: `died`, or `verstorben = ja` where the class alone says nothing."""
        bare = _normalise(self.word) in {*_YES.split(), *_NO.split()} or _parse_number(self.word) is not None
        return f"{self.label} = {self.word}" if bare and self.label else self.word

    @property
    def column(self) -> str:
        """The name of a column with its risk: `risk_of_died`, of a label `died` with the classes 0 and 1 too."""
        yes = _normalise(self.word) in _YES.split() or _parse_number(self.word) == 1
        name = self.label if yes and self.label else self.title.replace(" = ", "=")
        return f"risk_of_{'_'.join(name.split())}"

    @property
    def line(self) -> str:
        """The line that every command prints."""
        return f"event: {self.describe()}"

    def describe(self, rows: str = "rows") -> str:
        """Name the event with its share: "died = 1 (9% of training rows)".

        Args:
            rows: The rows that the share is of.
        """
        facts = [] if self.share is None else [f"{self.share:.0%} of {rows}"]
        facts += ["the last of two classes"] if self.source == LAST else []
        return self.title + (f" ({'; '.join(facts)})" if facts else "")

    @property
    def warning(self) -> str | None:
        """A doubt about an event that most rows have; the catalog's have been looked at."""
        if self.share is None or self.share <= 0.5 or self.source == "catalog":
            return None
        return (
            f"the event is '{self.word}', which {self.share:.0%} of rows have: a risk is the probability of it; "
            f"--event {shlex.quote(self.other)} shows the other"
        )

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for summary.json; `from_dict` reads it back."""
        return {"class": self.word, "other": self.other, "label": self.label, "share": self.share, "by": self.source}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        return cls(values["class"], values["other"], values["label"], values["share"], values["by"])


def event_line(event: Event | None, classes: Sequence[str]) -> str:
    """Describe the event, or the classes where there are more than two."""
    return f"classes: {', '.join(classes)}" if event is None else event.line


def event_place(classes: Sequence[str], event: str | None) -> int:
    """Find the number of the event's class; the last class where there is no event."""
    return classes.index(event) if event in classes else len(classes) - 1


def order_by_event(classes: Sequence[str], event: str | None) -> tuple[str, ...]:
    """Order two classes as tallies have them: the other class, then the event. More than two stay as they are."""
    if len(classes) != 2:
        return tuple(classes)
    place = event_place(classes, event)
    return classes[1 - place], classes[place]


def state_event(
    classes: Sequence[str], counts: Sequence[int] | None, data: Mapping[str, object], *, catalog: str | None = None
) -> Event | None:
    """Decide which of two classes is the event.

    Args:
        classes: The classes of the label.
        counts: Rows of each class; None where nobody counted.
        data: The experiment's section [data].
        catalog: The event of a set of the catalog, used where the experiment states none.

    Returns:
        The event, or None with three classes or more.

    Raises:
        BadInput: The event that was stated is no class, or none was and the classes leave a doubt.
    """
    configured, positive, label = data.get("event"), data.get("positive"), data.get("label")
    if len(classes) != 2:
        if configured is not None:
            shown = [*classes[:_CLASSES_SHOWN], *(["..."] if len(classes) > _CLASSES_SHOWN else [])]
            raise BadInput(
                f"data.event is '{configured}', but an event needs two classes and {label or 'the label'} has {len(classes)} "
                f"({', '.join(shown)}): {ONE_AGAINST_OTHERS}; to predict all of them leave --event out",
                code="needs-two-classes",
            )
        return None
    stated = None if configured is None else _find_class(str(configured), classes)
    if positive is not None:
        if stated not in (None, positive):
            raise BadInput(
                f"data.event is '{configured}' and data.positive '{positive}': leave one of them out",
                code="conflicting-settings",
            )
        word, source = str(positive), "data.positive"
    elif stated is not None:
        agrees_with_catalog = catalog is not None and stated == _find_class(catalog, classes)
        word, source = stated, "catalog" if agrees_with_catalog else "data.event"
    else:
        guessed = guess_event(classes)
        if guessed is None:
            raise BadInput(_describe_doubt(classes, data), code="unclear-event")
        word, source = guessed, "rule"
    place = list(classes).index(word)
    total = 0 if counts is None else sum(counts)
    share = None if counts is None or not total else counts[place] / total
    return Event(word, classes[1 - place], None if label is None else str(label), share, source)


def only_event(word: str, data: Mapping[str, object]) -> Event:
    """Return the event of survival data whose rows all have one value: that value, if it is an event.

    Raises:
        BadInput: It is no event, so that all rows are censored.
    """
    configured = data.get("event")
    is_event = word == str(configured) if configured is not None else _parse_number(word) == 1 or _normalise(word) in _YES.split()
    if not is_event:
        raise BadInput(
            f"no training row has the event: '{data.get('label')}' is '{word}' in all of them, which reads as censored; "
            "choose another column (use --label), or state the event with --event",
            code="no-events",
        )
    return Event(word, "", None if data.get("label") is None else str(data["label"]), 1.0, "rule")


def guess_event(classes: Sequence[str]) -> str | None:
    """Read the event from two words that are a known pair, or of which one says no; None where that leaves a doubt."""
    first, second = classes
    numbers = [_parse_number(first), _parse_number(second)]
    if None not in numbers:
        return classes[numbers.index(1)] if set(numbers) == {0, 1} else None
    candidates = [
        event for event, other in ((first, second), (second, first)) if _is_pair(_normalise(event), _normalise(other))
    ]
    return candidates[0] if len(candidates) == 1 else None


def _is_pair(event: str, other: str) -> bool:
    """Tell whether these words are an event and its absence."""
    listed = any(event in events.split("|") and other in complements.split("|") for events, complements in _PAIRS)
    if listed or (other in _SURE and event not in _OTHERS and not _negated_word(event)):
        return True
    denied, negated = _negated_word(other), _negated_word(event)
    if negated is not None and negated in _OTHERS:  # "not survived" is an event, and "survived" is none
        return other == negated or other in _OTHERS
    return denied is not None and denied not in _OTHERS and (event == denied or event in _PAIRS[0][0].split("|"))


def _negated_word(word: str) -> str | None:
    """Find the word that a phrase negates: `cancer` of "no cancer"; None where it negates nothing."""
    for start in _NOT:
        if word.startswith(f"{start} ") and len(word) > len(start) + 1:
            return word.removeprefix(f"{start} ")
    return None


def _find_class(word: str, classes: Sequence[str]) -> str:
    """Find the class that `word` names, also in another case or as another way to write the same number."""
    if word in classes:
        return word
    alike = [c for c in classes if _normalise(c) == _normalise(word)]
    alike = alike or [c for c in classes if _parse_number(word) is not None and _parse_number(c) == _parse_number(word)]
    if len(alike) != 1:
        raise BadInput(
            f"the event '{word}' is not one of the classes; {nearest(word, classes)} (use --event)",
            code="unknown-class",
        )
    return alike[0]


def _describe_doubt(classes: Sequence[str], data: Mapping[str, object]) -> str:
    """Write the sentence that stops a run, with the command that goes on."""
    from grandrounds.core.sources import AT_SITES

    label = data.get("label") or "the label"
    table, name = data.get("table"), data.get("name")
    if table == AT_SITES:
        return (
            f"which class of '{label}' is the event, '{classes[0]}' or '{classes[1]}'? its probability is shown as the "
            f'risk, and the words do not tell: agree on it with event = "{classes[0]}" in [data] of consortium.toml, or '
            f"state it in the experiment ({shlex.join(['--set', f'data.event={classes[0]}'])})"
        )
    source = ["--table", str(table), "--label", str(label)] if table else [str(name)] if name else []
    event = shlex.join(["--event", classes[0]])
    return (
        f"which class of '{label}' is the event, '{classes[0]}' or '{classes[1]}'? its probability is shown as the risk, "
        f"and the words do not tell: state it, e.g. {shlex.join(['rounds', 'run', *source])} {event} (data.event in a file)"
    )


def _normalise(word: str) -> str:
    """Strip a word of case, accents and signs between its parts."""
    spread = unicodedata.normalize("NFKD", word.strip().casefold())
    bare = "".join(c for c in spread if not unicodedata.combining(c))
    return bare if bare in ("+", "-") else " ".join(bare.replace("_", " ").replace("-", " ").replace("'", " ").split())


def _parse_number(word: str) -> float | None:
    try:
        return float(word.replace(",", "."))
    except ValueError:
        return None
