"""Which of two classes is the event: known words in five languages, what is stated, and a stop where there is a doubt."""

from __future__ import annotations

import itertools

import pytest

from grandrounds.data.event import Event, guess_event, state_event
from grandrounds.data.sets.catalog import CATALOG
from tests.support import refused

KNOWN = (
    """
yes no|Yes No|YES no|Y N|true false|TRUE FALSE|1 0|1.0 0.0|died survived|dead alive|Deceased Survived|case control
disease healthy|positive negative|abnormal normal|cancer no cancer|event none|sepsis no sepsis|relapse not relapse
malignant benign|not survived survived|dead not dead|pneumonia normal|AKI control|non-survivor survivor
ja nein|verstorben überlebt|verstorben ueberlebt|tot lebend|krank gesund|Fall Kontrolle|positiv negativ
auffällig unauffällig|Sepsis keine Sepsis|verstorben nicht verstorben|bösartig gutartig|wahr falsch
oui non|décédé vivant|Décédée Vivante|malade sain|cas témoin|positif négatif|anormal normal|cancer pas de cancer|vrai faux
sí no|fallecido vivo|muerta viva|enfermo sano|caso control|positivo negativo|infarto sin infarto|verdadero falso
ja nee|overleden levend|ziek gezond|geval controle|positief negatief|sepsis geen sepsis|waar onwaar
""".replace("\n", "|")
    .strip("|")
    .split("|")
)

DOUBT = [
    "1 2",
    "0 2",
    "-1 1",
    "alpha beta",
    "A B",
    "male female",
    "yes survived",
    "home rehab",
    "no_cancer no_tumour",
    "M B",
    "yes true",
]


def pair(text: str) -> tuple[str, str]:
    """The event and the other class of a line such as "cancer no cancer", of which either may have several words."""
    words = text.split()
    if len(words) == 2:
        return words[0], words[1]
    return (" ".join(words[:2]), words[2]) if words[0] == "not" else (words[0], " ".join(words[1:]))


@pytest.mark.parametrize("text", KNOWN)
def test_known_words_are_read_in_either_order(text):
    event, other = pair(text)
    assert guess_event((event, other)) == event
    assert guess_event((other, event)) == event


@pytest.mark.parametrize("text", DOUBT)
def test_anything_else_is_a_doubt(text):
    for classes in itertools.permutations(text.split()):
        assert guess_event(classes) is None


def test_a_doubt_stops_with_both_classes_and_the_command():
    data = {"event": None, "positive": None, "label": "the outcome", "table": "t 1.csv"}
    with refused("unclear-event") as e:
        state_event(("alpha", "beta"), (3, 5), data)
    message = str(e.value)
    assert "'alpha' or 'beta'" in message
    assert "rounds run --table 't 1.csv' --label 'the outcome' --event alpha" in message


def test_a_stated_event_is_taken_also_as_another_way_to_write_it():
    for inputs, classes, event in (
        ("b", ("a", "b"), "b"),
        ("DIED", ("died", "survived"), "died"),
        ("1", ("1.0", "2.0"), "1.0"),
        ("survived", ("died", "survived"), "survived"),
    ):
        result = state_event(classes, (1, 3), {"event": inputs})
        assert (result.word, result.source) == (event, "data.event")
    with refused("unknown-class", match="'dead'.*--event"):
        state_event(("deadly", "fine"), (1, 1), {"event": "dead"})


def test_three_classes_have_no_event():
    assert state_event(("a", "b", "c"), (1, 1, 1), {"event": None}) is None
    with refused("needs-two-classes", match="3"):
        state_event(("a", "b", "c"), (1, 1, 1), {"event": "a"})


def test_the_class_that_comes_last_is_the_event():
    assert state_event(("survived", "died"), (9, 1), {"event": None, "positive": "died"}).word == "died"
    with refused("conflicting-settings"):
        state_event(("survived", "died"), (9, 1), {"event": "survived", "positive": "died"})


def test_the_line_the_column_and_the_warning():
    died = Event("died", "survived", "outcome", 0.26, "rule")
    assert (died.line, died.column, died.warning) == ("event: died (26% of rows)", "risk_of_died", None)
    ja = Event("ja", "nein", "verstorben", 0.26, "rule")
    assert (ja.line, ja.column) == ("event: verstorben = ja (26% of rows)", "risk_of_verstorben")
    assert Event("1", "0", "died").column == "risk_of_died"
    assert Event("0", "1", "survived", source="data.event").column == "risk_of_survived=0"
    assert Event("no relapse", "relapse").column == "risk_of_no_relapse"
    most = Event("survived", "died", "outcome", 0.74, "data.event")
    assert "74% of rows" in most.warning and "--event died" in most.warning
    assert Event("yes", "no", "disease", 0.55, "catalog").warning is None
    assert Event.from_dict(died.to_dict()) == died


def test_every_set_of_the_catalog_with_two_classes_states_its_event():
    stated = {name: entry.event for name, entry in CATALOG.items() if entry.event is not None}
    assert stated == {
        "breast-cancer": "malignant", "synthetic-binary": "class 1", "heart": "yes", "diabetes-130": "yes",
        "eicu-demo": "1", "eicu-demo-hospitals": "1", "icu-cohort": "1", "ham10000-malignant": "malignant",
        "ham10000-six": "malignant", "ham10000-large": "malignant", "tcga-brca": "1",
        "fed-heart-disease": "yes", "fed-heart-disease-scaled": "yes",
    }  # fmt: skip
