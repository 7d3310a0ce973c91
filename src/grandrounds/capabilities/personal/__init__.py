"""Parts of the model that each hospital trains and keeps, and differences of hospitals from the common model."""

from grandrounds.core.capability import Capability, PersonalPart, SiteTask, Stage

_FITTED = {
    "fit": f"{__name__}.training:fit_part",
    "refusals": f"{__name__}.checks:refusals",
}
_TRAINED_IN_ROUNDS = {**_FITTED, "site": f"{__name__}.training:TrainedParts"}

CAPABILITY = Capability(
    name="personal",
    title="Parts of the model that each hospital trains and keeps, and differences of hospitals from the common model",
    budget=1_300,
    page="personal.md",
    parts={
        "head": PersonalPart(
            "the last layer, trained in every round; only the layers before it are sent (FedRep, Collins et al. 2021)",
            **_TRAINED_IN_ROUNDS,
        ),
        "ditto": PersonalPart(
            "a model of the site's own, trained in every round with a pull towards the common one (Ditto, Li et al. 2021)",
            **_TRAINED_IN_ROUNDS,
        ),
        "apfl": PersonalPart(
            "a model of the site's own, trained in every round within a mixture with the common one (APFL, Deng et al. 2020)",
            **_TRAINED_IN_ROUNDS,
        ),
        "finetune": PersonalPart("the common model, trained further at the site after the rounds", **_FITTED),
    },
    tasks={
        "personal.differences": SiteTask(
            spec=f"{__name__}.differences_task:SPEC", admits=f"{__name__}.differences_task:admits"
        ),
    },
    stages={
        "personal.differences": Stage(
            ask=f"{__name__}.differences:collect_differences",
            answer=f"{__name__}.differences:answer_differences",
            reports=f"{__name__}.differences_task:reports",
        ),
    },
)
