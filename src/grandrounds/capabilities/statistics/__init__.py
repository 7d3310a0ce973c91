"""Statistics equal to those of pooled rows: regressions, survival, Table 1, additive models, trees, risk cards."""

from grandrounds.core.capability import Capability, Command, Export, MethodSection, TableModel

_TRAIN, _ONNX = "grandrounds.methods.exact.columns:train_from_sums", "grandrounds.runs.export_columns:build_column_graph"

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
    method_options={
        "exact": MethodSection("grandrounds.methods.exact.options:ExactOptions"),
        "gam": MethodSection("grandrounds.methods.exact.options:GAMOptions"),
        "trees": MethodSection("grandrounds.methods.exact.options:TreesOptions"),
        "card": MethodSection("grandrounds.methods.exact.options:CardOptions"),
    },
    models={
        "gam": TableModel(
            "Additive model: a curve for each number and a value for each level, fitted from sums over hospitals (tables)",
            model="grandrounds.models.gam:AdditiveModel",
            kernels=("gam", "steps"),
            train=_TRAIN,
            refusals="grandrounds.methods.exact.columns:column_refusals",
            onnx=_ONNX,
            options="grandrounds.methods.exact.columns:gam_options",
            private_method="private-gam",
        ),
        "trees": TableModel(
            "Boosted trees from sums over hospitals: the same bits as with pooled rows (tables)",
            model="grandrounds.models.column_trees:TreesModel",
            kernels=("trees",),
            train=_TRAIN,
            refusals="grandrounds.methods.exact.columns:column_refusals",
            onnx=_ONNX,
            options="grandrounds.methods.exact.columns:trees_options",
        ),
        "card": TableModel(
            "Risk card: 5 to 15 terms with whole-number points, distilled from an additive model (tables)",
            model="grandrounds.models.card:CardModel",
            kernels=("card",),
            train=_TRAIN,
            refusals="grandrounds.methods.exact.columns:card_refusals",
            onnx=_ONNX,
            options="grandrounds.methods.exact.columns:card_model_options",
        ),
        "ebm": TableModel(
            "Explainable boosting machine by InterpretML without pairs, for methods 'pooled' and 'local' (tables)",
            model="grandrounds.models.ebm:EBMModel",
            kernels=("ebm",),
            train="grandrounds.methods.exact.columns:train_ebm",
            refusals="grandrounds.methods.exact.columns:ebm_refusals",
            onnx=_ONNX,
        ),
    },
    exports={
        "lightgbm": Export("model.lightgbm.txt", "grandrounds.runs.export_trees:to_lightgbm", models=("trees",)),
        "xgboost": Export("model.xgboost.json", "grandrounds.runs.export_trees:xgboost_text", models=("trees",)),
    },
    printers={
        "regression": "grandrounds.cli.fit:show_run_estimates",
    },
)
