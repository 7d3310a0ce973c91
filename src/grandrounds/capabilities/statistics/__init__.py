"""Statistics equal to those of pooled rows: regressions, survival, Table 1, additive models, trees, risk cards."""

from grandrounds.core.capability import Capability, Command

CAPABILITY = Capability(
    name="statistics",
    title="Statistics equal to those of pooled rows: regressions, survival, Table 1, additive models, trees, risk cards",
    budget=18_500,
    page="exact.md",
    names={
        "RiskCard": "grandrounds.api.carding:RiskCard",
        "card": "grandrounds.api.carding:card",
        "Regression": "grandrounds.api.fitting:Regression",
        "cox": "grandrounds.api.fitting:cox",
        "glm": "grandrounds.api.fitting:glm",
        "table1": "grandrounds.api.describing:table1",
        "TableOne": "grandrounds.statistics.table_result:TableOne",
        "SurvivalAnalysis": "grandrounds.api.survival:SurvivalAnalysis",
        "kaplan_meier": "grandrounds.api.survival:kaplan_meier",
        "survival_scores": "grandrounds.api.survival:survival_scores",
    },
    commands={
        "fit": Command("grandrounds.cli.fit:register", panel="Train", after="run"),
        "table1": Command("grandrounds.cli.table1:register", panel="Train", after="fit"),
        "card": Command("grandrounds.cli.card:register", panel="Use"),
    },
    methods={
        "glm": "grandrounds.methods.exact.regression:GeneralizedLinear",
        "cox": "grandrounds.methods.exact.regression:CoxRegression",
        "table1": "grandrounds.methods.exact.describe:TableOneMethod",
        "survival": "grandrounds.methods.exact.describe:SurvivalMethod",
        "gam": "grandrounds.methods.exact.gam:Additive",
        "private-gam": "grandrounds.methods.exact.private_gam:PrivateGAM",
        "trees": "grandrounds.methods.exact.trees:BoostedTrees",
        "card": "grandrounds.methods.exact.card:RiskCardMethod",
    },
)
