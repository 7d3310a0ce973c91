"""Where an experiment is run and what goes wrong there: [engine] with its faults, and [[attacks]]."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from grandrounds.core.section import Section


class FaultSettings(Section):
    """Faults to inject, for tests of robustness."""

    drop: float = Field(
        0.0,
        ge=0,
        le=1,
        description="chance that a site does not answer when asked to train; with privacy.secure drawn again at each of the "
        "five steps in which models are summed",
    )
    nan: tuple[str, ...] = Field((), description="sites that send NaN")
    slow: dict[str, float] = Field(
        default_factory=dict,
        description="virtual seconds a site takes to train (default 1, or as engine.speed_spread has it)",
    )


class Engine(Section):
    """How it is run."""

    name: Literal["local"] = Field("local", description="all sites in this process")
    wire: bool = Field(False, description="send every message through bytes and back, one site at a time")
    kernel: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="what trains: auto is NumPy for tables and torch for pictures or on a GPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where torch computes; auto: a GPU if there is one"
    )
    precision: Literal["float32", "float64", "tf32", "bf16"] = Field(
        "float32", description="arithmetic; tf32 and bf16 speed up a GPU, weights stay float32"
    )
    chunk: int = Field(0, ge=0, description="sites trained at once; 0: as many as fit")
    workers: int = Field(
        0, ge=0, description="processes that train nets for pictures on a CPU; 0: as many as there are free cores"
    )
    min_sites: int = Field(1, ge=1, description="stop, with the state saved, when fewer sites answer")
    deadline: float | None = Field(None, gt=0, description="virtual seconds after which an answer is too late")
    speed_spread: float = Field(
        0.0, ge=0, le=3, description="how unequally fast sites train: seconds are log-normal with this deviation"
    )
    absences: dict[str, tuple[tuple[int, int], ...]] = Field(
        default_factory=dict,
        description="rounds, first and last, in which a site takes no part: { site-02 = [1, 3], site-05 = [[2, 4], [8, 99]] }: "
        "the first joins in round 4, the second comes back once and leaves for good; both are tested all the same",
    )
    faults: FaultSettings = FaultSettings()

    @field_validator("absences", mode="before")
    @classmethod
    def _spans(cls, value: Any) -> Any:
        """A single span may be written without its list."""
        if not isinstance(value, dict):
            return value
        return {s: [v] if isinstance(v, list | tuple) and v and isinstance(v[0], int) else v for s, v in value.items()}

    @field_validator("absences")
    @classmethod
    def _in_order(cls, value: dict[str, tuple[tuple[int, int], ...]]) -> dict[str, tuple[tuple[int, int], ...]]:
        for site, spans in value.items():
            for first, last in spans:
                if not 1 <= first <= last:
                    raise ValueError(f"{site} is away from round {first} to {last}: give the first and the last round")
        return value


class AttackSettings(Section):
    """A site that attacks, to see how the method stands it: `[[attacks]]`, one for each kind or group of sites."""

    kind: Literal[
        "label-flip",
        "label-shuffle",
        "backdoor",
        "corner",
        "background",
        "sign-flip",
        "scale",
        "gaussian",
        "free-rider",
        "lie",
        "absent",
    ] = Field(..., description="`rounds list attacks`")
    sites: tuple[str, ...] = Field((), description="the sites that do it")
    count: int = Field(0, ge=0, description="or so many sites, those with the most training rows")
    share: float = Field(1.0, ge=0, le=1, description="share of the site's training rows, for attacks on rows")
    strength: float | None = Field(None, ge=0, description="how strong; not set: the kind's own")
    target: str | None = Field(None, description="class that a backdoor's trigger is to mean")
    start_round: int = Field(1, ge=1, description="honest before this round (not for attacks on rows)")
    validation: bool = Field(
        False,
        description="attacks on rows (not backdoor): on its validation rows too, so that it looks right to itself",
    )
    reference: bool = Field(
        False, description="corner, background: the reference pictures carry such marks too, each that of its class"
    )
    lies: bool = Field(False, description="and says of itself that it is always right and agrees with all")
