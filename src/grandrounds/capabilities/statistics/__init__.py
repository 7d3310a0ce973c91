"""Statistics equal to those of pooled rows: regressions, survival, Table 1, additive models, trees, risk cards."""

from grandrounds.core.capability import Capability, Command, Export, MethodSection, SiteTask, TableModel

_TRAIN, _ONNX = f"{__name__}.methods.columns:train_from_sums", f"{__name__}.export_columns:build_column_graph"
_COUNTS = f"{__name__}.methods.private_gam_task"

CAPABILITY = Capability(
    name="statistics",
    title="Statistics equal to those of pooled rows: regressions, survival, Table 1, additive models, trees, risk cards",
    budget=19_500,
    page="exact.md",
    names={
        "RiskCard": f"{__name__}.api.carding:RiskCard",
        "card": f"{__name__}.api.carding:card",
        "Regression": f"{__name__}.api.fitting:Regression",
        "cox": f"{__name__}.api.fitting:cox",
        "glm": f"{__name__}.api.fitting:glm",
        "table1": f"{__name__}.api.describing:table1",
        "TableOne": f"{__name__}.table_result:TableOne",
        "SurvivalAnalysis": f"{__name__}.api.survival:SurvivalAnalysis",
        "kaplan_meier": f"{__name__}.api.survival:kaplan_meier",
        "survival_scores": f"{__name__}.api.survival:survival_scores",
    },
    commands={
        "fit": Command(f"{__name__}.commands.fit:register", panel="Train", after="run"),
        "table1": Command(f"{__name__}.commands.table1:register", panel="Train", after="fit"),
        "card": Command(f"{__name__}.commands.card:register", panel="Use"),
    },
    methods={
        "glm": f"{__name__}.methods.regression:GeneralizedLinear",
        "cox": f"{__name__}.methods.regression:CoxRegression",
        "table1": f"{__name__}.methods.describe:TableOneMethod",
        "survival": f"{__name__}.methods.describe:SurvivalMethod",
        "gam": f"{__name__}.methods.gam:Additive",
        "private-gam": f"{__name__}.methods.private_gam:PrivateGAM",
        "trees": f"{__name__}.methods.trees:BoostedTrees",
        "card": f"{__name__}.methods.card:RiskCardMethod",
    },
    tasks={
        "gam.counts": SiteTask(spec=f"{_COUNTS}:SPEC", cost=f"{_COUNTS}:cost", admits=f"{_COUNTS}:admits"),
    },
    method_options={
        "exact": MethodSection(f"{__name__}.methods.options:ExactOptions"),
        "gam": MethodSection(f"{__name__}.methods.options:GAMOptions"),
        "trees": MethodSection(f"{__name__}.methods.options:TreesOptions"),
        "card": MethodSection(f"{__name__}.methods.options:CardOptions"),
    },
    models={
        "gam": TableModel(
            "Additive model: a curve for each number and a value for each level, fitted from sums over hospitals (tables)",
            model=f"{__name__}.models.gam:AdditiveModel",
            kernels=("gam", "steps"),
            train=_TRAIN,
            refusals=f"{__name__}.methods.columns:column_refusals",
            onnx=_ONNX,
            options=f"{__name__}.methods.columns:gam_options",
            private_method="private-gam",
        ),
        "trees": TableModel(
            "Boosted trees from sums over hospitals: the same bits as with pooled rows (tables)",
            model=f"{__name__}.models.column_trees:TreesModel",
            kernels=("trees",),
            train=_TRAIN,
            refusals=f"{__name__}.methods.columns:column_refusals",
            onnx=_ONNX,
            options=f"{__name__}.methods.columns:trees_options",
        ),
        "card": TableModel(
            "Risk card: 5 to 15 terms with whole-number points, distilled from an additive model (tables)",
            model=f"{__name__}.models.card:CardModel",
            kernels=("card",),
            train=_TRAIN,
            refusals=f"{__name__}.methods.columns:card_refusals",
            onnx=_ONNX,
            options=f"{__name__}.methods.columns:card_model_options",
        ),
        "ebm": TableModel(
            "Explainable boosting machine by InterpretML without pairs, for methods 'pooled' and 'local' (tables)",
            model=f"{__name__}.models.ebm:EBMModel",
            kernels=("ebm",),
            train=f"{__name__}.methods.columns:train_ebm",
            refusals=f"{__name__}.methods.columns:ebm_refusals",
            onnx=_ONNX,
        ),
    },
    exports={
        "lightgbm": Export("model.lightgbm.txt", f"{__name__}.export_trees:to_lightgbm", models=("trees",)),
        "xgboost": Export("model.xgboost.json", f"{__name__}.export_trees:xgboost_text", models=("trees",)),
    },
    printers={
        "regression": f"{__name__}.commands.fit:show_run_estimates",
    },
)
