"""Checks of DICOM tags that show or may show who the patient is, before any pixel is used.

Burnt-in text is refused where its tag says so. Other tags give findings for the hospital's staff. Only the keyword of an
identifying tag is ever named: its value is not read into any result, sentence, log or file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grandrounds.data.scan_options import ScanFinding

IDENTIFYING = (
    "PatientName", "PatientID", "PatientBirthDate", "PatientBirthTime", "OtherPatientIDs", "OtherPatientIDsSequence",
    "OtherPatientNames", "PatientBirthName", "PatientMotherBirthName", "PatientAddress", "PatientTelephoneNumbers",
    "MedicalRecordLocator", "MilitaryRank", "IssuerOfPatientID", "AccessionNumber", "AdmissionID", "ResponsiblePerson",
    "ReferringPhysicianName", "ReferringPhysicianAddress", "ReferringPhysicianTelephoneNumbers", "PerformingPhysicianName",
    "PhysiciansOfRecord", "NameOfPhysiciansReadingStudy", "RequestingPhysician", "OperatorsName", "InstitutionName",
    "InstitutionAddress", "StationName", "PatientComments", "ImageComments", "StudyID",
)  # fmt: skip
"""Keywords of tags that name the patient, the staff or the hospital (a part of DICOM PS3.15, Annex E)."""

FLAGS = (
    "BurnedInAnnotation", "RecognizableVisualFeatures", "PatientIdentityRemoved", "DeidentificationMethod", "Modality",
    "ImageType", "SOPClassUID", "ConversionType",
)  # fmt: skip
"""Keywords of tags that the checks read."""

BURNED_IN, MAYBE_BURNED_IN, RECOGNIZABLE = "burned-in-annotation", "maybe-burned-in", "recognizable-features"
IDENTITY, IDENTIFYING_TAGS = "identity-not-removed", "identifying-tags"

_TEXT_MODALITIES = {"US", "SC", "OT", "XC", "ES", "IVUS", "GM", "SM", "DOC"}
_SCREEN_WORDS = {"SCREEN SAVE", "SCREENSAVE", "SCREENSHOT", "SCREEN", "REPORT", "DOSE_INFO", "CAPTURE"}
_SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
_NAMED = 6  # tags that a finding names


@dataclass(frozen=True)
class Identity:
    """Tags of one file that concern the patient's identity; identifying tags are named without their values."""

    burned_in: str = ""  # YES, NO or empty
    recognizable: str = ""
    removed: str = ""
    screen: bool = False  # a screenshot or secondary capture
    modality: str = ""
    present: tuple[str, ...] = ()  # identifying tags with a value


def read_identity(dataset: Any) -> Identity:
    """Read the tags that concern the identity from a DICOM data set."""
    return Identity(
        burned_in=_word(dataset, "BurnedInAnnotation"),
        recognizable=_word(dataset, "RecognizableVisualFeatures"),
        removed=_word(dataset, "PatientIdentityRemoved"),
        screen=_is_screen(dataset),
        modality=_word(dataset, "Modality"),
        present=tuple(name for name in IDENTIFYING if _has_value(dataset, name)),
    )


def check_identity(identities: Sequence[Identity]) -> list[ScanFinding]:
    """List findings about the identity in the files of one series.

    Args:
        identities: One for each file.

    Returns:
        The findings; an error means that the pixels are refused.
    """
    total = len(identities)
    findings: list[ScanFinding] = []
    burned = sum(i.burned_in == "YES" for i in identities)
    if burned:
        findings.append(
            ScanFinding(
                "error",
                BURNED_IN,
                f"BurnedInAnnotation is YES in {_of(burned, total)}: names may be part of the image. Remove the text, then set "
                "the tag to NO",
            )
        )
    unsure = sum((i.screen or i.modality in _TEXT_MODALITIES) and i.burned_in not in ("YES", "NO") for i in identities)
    if unsure:
        modality = next(i.modality for i in identities if i.screen or i.modality in _TEXT_MODALITIES) or "of no modality"
        findings.append(
            ScanFinding(
                "warning",
                MAYBE_BURNED_IN,
                f"{_of(unsure, total)} {'is' if unsure == 1 else 'are'} {modality} or a screenshot, which often has the name in "
                "the image, and BurnedInAnnotation does not say: look at them (--sheet)",
            )
        )
    faces = sum(i.recognizable == "YES" for i in identities)
    if faces:
        findings.append(
            ScanFinding("warning", RECOGNIZABLE, f"RecognizableVisualFeatures is YES in {_of(faces, total)}: a face may be seen")
        )
    kept = sum(i.removed != "YES" for i in identities)
    if kept:
        findings.append(
            ScanFinding("note", IDENTITY, f"PatientIdentityRemoved is not YES in {_of(kept, total)}: files may name the patient")
        )
    names = list(dict.fromkeys(name for i in identities for name in i.present))
    if names:
        findings.append(ScanFinding("note", IDENTIFYING_TAGS, f"identifying tags have values: {_list(names)}; none is used"))
    return findings


def _is_screen(dataset: Any) -> bool:
    words = {word.upper() for word in _words(dataset, "ImageType")}
    kind = str(dataset.get("SOPClassUID", "") or "")
    return bool(words & _SCREEN_WORDS) or kind == _SECONDARY_CAPTURE or kind.startswith(f"{_SECONDARY_CAPTURE}.")


def _word(dataset: Any, keyword: str) -> str:
    return str(dataset.get(keyword, "") or "").strip().upper()


def _words(dataset: Any, keyword: str) -> list[str]:
    value = dataset.get(keyword) or ()
    return [value] if isinstance(value, str) else [str(v) for v in value]


def _has_value(dataset: Any, keyword: str) -> bool:
    """Tell whether a tag has a value; the value itself goes nowhere."""
    try:
        value = dataset.get(keyword)
    except Exception:  # a damaged value is one
        return True
    return value is not None and str(value).strip() not in ("", "[]")


def _of(count: int, total: int) -> str:
    return "the file" if total == 1 else f"{count} of {total} files"


def _list(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
