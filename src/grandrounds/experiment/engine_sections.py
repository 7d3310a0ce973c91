"""Define the sections [engine], with injected faults, and [[attacks]]."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from grandrounds.core.section import Section


class FaultSettings(Section):
    """Injected faults, for robustness tests."""

    drop: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a site drops out of a training request; with privacy.secure at each of the five steps of a "
        "secure sum",
    )
    nan: tuple[str, ...] = Field((), description="sites that send NaN")
    slow: dict[str, float] = Field(
        default_factory=dict,
        description="simulated seconds that a site takes to train (default: 1, or by engine.speed_spread)",
    )


class Engine(Section):
    """Simulation engine, hardware and timing."""

    name: Literal["local"] = Field("local", description="simulate all sites in this process")
    wire: bool = Field(False, description="serialize every message to bytes and back, one site at a time")
    kernel: Literal["auto", "numpy", "torch"] = Field(
        "auto", description="numerical backend; auto: NumPy for tables, torch for images or on a GPU"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="torch device; auto: a GPU if there is one"
    )
    precision: Literal["float32", "float64", "tf32", "bf16"] = Field(
        "float32", description="numerical precision; tf32 and bf16 speed up a GPU, weights stay float32"
    )
    chunk: int = Field(0, ge=0, description="sites trained in one batch; 0: as many as fit in memory")
    workers: int = Field(
        0, ge=0, description="processes that train image models on a CPU; 0: one per free core"
    )
    min_sites: int = Field(1, ge=1, description="sites that must answer; with fewer the run stops and can be resumed")
    deadline: float | None = Field(None, gt=0, description="simulated seconds after which an answer is too late")
    speed_spread: float = Field(
        0.0, ge=0, le=3, description="spread of training times: log-normal with this standard deviation"
    )
    absences: dict[str, tuple[tuple[int, int], ...]] = Field(
        default_factory=dict,
        description="rounds (first, last) without a site: { site-02 = [1, 3], site-05 = [[2, 4], [8, 99]] }. site-02 joins in "
        "round 4; site-05 returns once and then leaves; absent sites are still evaluated",
    )
    keep_states: int = Field(
        256,
        ge=0,
        le=1_000_000,
        description="disk space in MiB for states before rounds in which a site counts first, from which `rounds withdraw "
        "--keep-setup` continues; 0: none is kept",
    )
    faults: FaultSettings = FaultSettings()

    @field_validator("absences", mode="before")
    @classmethod
    def _spans(cls, value: Any) -> Any:
        """Wrap a single span, which may be written without its list."""
        if not isinstance(value, dict):
            return value
        return {s: [v] if isinstance(v, list | tuple) and v and isinstance(v[0], int) else v for s, v in value.items()}

    @field_validator("absences")
    @classmethod
    def _in_order(cls, value: dict[str, tuple[tuple[int, int], ...]]) -> dict[str, tuple[tuple[int, int], ...]]:
        for site, spans in value.items():
            for first, last in spans:
                if not 1 <= first <= last:
                    raise ValueError(f"{site} is absent from round {first} to {last}: give the first and the last round")
        return value


class AttackSettings(Section):
    """Simulated attack of some sites, to measure robustness. One `[[attacks]]` per kind or group of sites."""

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
    ] = Field(..., description="kind of attack (`rounds list attacks`)")
    sites: tuple[str, ...] = Field((), description="attacking sites")
    count: int = Field(0, ge=0, description="number of attacking sites, those with the most training rows; instead of sites")
    share: float = Field(1.0, ge=0, le=1, description="share of the site's training rows that are changed, for attacks on data")
    strength: float | None = Field(None, ge=0, description="strength; not set: the default of the kind")
    target: str | None = Field(None, description="target class of a backdoor's trigger")
    start_round: int = Field(1, ge=1, description="first round of the attack (not for attacks on data)")
    validation: bool = Field(
        False,
        description="attacks on data (not backdoor): change validation rows too, so that the site's own metrics look good",
    )
    reference: bool = Field(
        False, description="corner, background: reference images carry the mark of their class too"
    )
    lies: bool = Field(False, description="inflated metrics: the site also reports perfect accuracy and agreement")
