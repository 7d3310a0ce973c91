"""`gr.FederatedClassifier`: federated training behind the interface of a scikit-learn classifier."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from grandrounds.api.progress import RunProgress, run_progress
from grandrounds.api.sources import Settings, build_experiment, is_frame
from grandrounds.core.arrays import Array
from grandrounds.data.table import Table, to_column, to_text
from grandrounds.models import COLUMN_MODELS
from grandrounds.runs.run import run as start_run

_FEATURE = "x{}"
"""Name of a column of an array without names."""


class FederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classifier that is trained across sites: `fit` runs a federated experiment, `predict_proba` uses its model.

    `fit(X, y, site=...)` takes the site of each row as an array, or as the name of a column of X. Without sites the rows are
    dealt at random to `sites` simulated sites of equal size: then the federation is a simulation.

    All rows are training rows, as scikit-learn expects. To hold back validation rows at every site, for `train.early_stop` or
    `evaluation.calibrate`, set `settings={"split.val": 0.15}`. Missing values (NaN) are allowed and imputed.

    A data frame is read as `gr.run` reads it: text columns are categories, and a column of identifiers is left out. An
    array has numeric columns only. For two classes the second of `classes_` is the event.

    Args:
        method: The method's name, or its section as a dict or `gr.config.Method`.
        model: The model's name, or its section as a dict or `gr.config.Model`; of methods 'gam', 'trees' and 'card' their own.
        rounds: The number of rounds; not used by models 'gam', 'trees' and 'card', whose fit ends by itself.
        sites: The number of simulated sites where `fit` gets no sites.
        seed: The seed of every random choice.
        settings: Further settings by their names in the experiment file: `{"train.lr": 0.05}`.
        out: A folder for the run, with report, ledger and explanations. None keeps the model alone.
        progress: As in `gr.run`; by default no bar is shown.

    Attributes:
        classes_: The classes, sorted.
        n_features_in_: The number of features.
        feature_names_in_: The names of the features, where X has text as column names.
        sites_: The names of the sites, sorted.
        model_: The trained model (`TrainedModel`).
        summary_: The summary of the run (`RunSummary`).
        run_: The run, where `out` is set; else None.

    Examples:
        >>> import grandrounds as gr
        >>> model = gr.FederatedClassifier(method="fedprox", rounds=10)
        >>> model.fit(X, y, site="hospital").predict_proba(X_new)  # doctest: +SKIP
    """

    def __init__(
        self,
        method: Any = "fedavg",
        *,
        model: Any = "logistic",
        rounds: int = 20,
        sites: int = 5,
        seed: int = 0,
        settings: Settings | None = None,
        out: str | Path | None = None,
        progress: RunProgress = False,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.sites = sites
        self.seed = seed
        self.settings = settings
        self.out = out
        self.progress = progress

    def fit(self, X: Any, y: Any, site: Any = None) -> Self:
        """Train across sites.

        Args:
            X: The features: a data frame, or an array of numbers. (n rows, d features)
            y: The class of each row.
            site: The site of each row, or the name of a column of X, which then is no feature. None deals the rows to
                simulated sites.

        Returns:
            The fitted classifier.

        Raises:
            ValueError: X or y is not of the right shape or kind.
            BadInput: A setting is wrong, or the rows cannot be trained on.
        """
        features, site_of_row, site_name = _split_site(X, site)
        label_name = getattr(y, "name", None)
        checked, y = validate_data(self, **_checked_input(features), y=y, reset=True)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"FederatedClassifier needs at least two classes; y has one class: {self.classes_.tolist()}"
            )
        if site_of_row is not None:
            check_consistent_length(checked, site_of_row)
        self._site_column = site if isinstance(site, str) else None
        self._words = _class_words(self.classes_)
        columns = _columns(features, checked)
        label = _free_name(str(label_name or "label"), columns)
        columns[label] = np.array(self._words, object)[codes]
        options = self._options(len(checked), label=label, simulated=site_of_row is None)
        if site_of_row is not None:
            options["site"] = _free_name(site_name, columns)
            columns[options["site"]] = np.asarray(site_of_row)
        if not is_frame(features):
            varying = [k for k in range(checked.shape[1]) if np.unique(checked[~np.isnan(checked[:, k]), k]).size > 1]
            options["settings"]["data.kinds"] = {_FEATURE.format(k): "numeric" for k in varying}
        self._train(Table.from_mapping(columns, source="data frame"), options)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Compute the probability of each class.

        Args:
            X: The features, with the columns that `fit` had. The site column may be there; it is not used.

        Returns:
            The probabilities, with one column per class in the order of `classes_`. (n rows, classes)
        """
        check_is_fitted(self)
        features = X
        if self._site_column is not None and is_frame(X) and self._site_column in X.columns:
            features = X.drop(columns=self._site_column)
        checked = validate_data(self, **_checked_input(features), reset=False)
        table = Table.from_mapping(_columns(features, checked), source="data frame")
        made = self.model_.predict(table)
        order = [made.classes.index(word) for word in self._words]
        return np.asarray(made.probabilities[:, order], dtype=np.float64)

    def predict(self, X: Any) -> Array:
        """Predict the most probable class of each row.

        Args:
            X: The features, with the columns that `fit` had.

        Returns:
            The classes. (n rows,)
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.classifier_tags.poor_score = False
        tags.non_deterministic = False
        return tags

    def _options(self, rows: int, *, label: str, simulated: bool) -> dict[str, Any]:
        """Return the options of the experiment; settings of the user replace those of the estimator."""
        settings: dict[str, Any] = {"split.val": 0.0, "split.test": 0.0, "split.min_rows": 1}
        if simulated:
            settings |= {"split.partition": "equal", "split.sites": max(1, min(self.sites, rows // 2))}
        if self.out is None:
            settings["explain.sketch"] = "none"
        options: dict[str, Any] = {"label": label, "settings": settings}
        if len(self._words) == 2:
            options["event"] = self._words[1]
        return options

    def _train(self, table: Table, options: Mapping[str, Any]) -> None:
        """Run the experiment and keep its model."""
        own = dict(options)
        reads_columns = isinstance(self.method, str) and self.method in COLUMN_MODELS
        model = self.method if reads_columns and self.model == "logistic" else self.model
        ends_by_itself = isinstance(model, str) and model in COLUMN_MODELS
        base, rows = build_experiment(
            table,
            method=self.method,
            model=model,
            rounds=None if ends_by_itself else self.rounds,
            seed=self.seed,
            **own,
        )
        experiment, _ = build_experiment(base, settings=self.settings or ())
        with tempfile.TemporaryDirectory(prefix="grandrounds-") as scratch, run_progress(self.progress) as report:
            folder = Path(scratch) / "run" if self.out is None else Path(self.out)
            run = start_run(experiment, out=folder, table=rows, progress=report)
            self.model_, self.summary_ = run.model, run.summary
            self.sites_ = np.array(sorted(self.summary_.per_site), object)
            self.run_ = None if self.out is None else run


def _split_site(X: Any, site: Any) -> tuple[Any, Any, str]:
    """Return the features, the site of each row (None without sites), and a name for the column of sites."""
    if site is None:
        return X, None, "site"
    if not isinstance(site, str):
        return X, column_or_1d(site), str(getattr(site, "name", None) or "site")
    if not is_frame(X):
        raise ValueError(f"site='{site}' is the name of a column, and X is not a data frame: give an array of sites")
    if site not in X.columns:
        raise ValueError(f"site='{site}' is no column of X; its columns are {', '.join(map(str, X.columns))}")
    return X.drop(columns=site), X[site].to_numpy(), site


def _checked_input(features: Any) -> dict[str, Any]:
    """Return the arguments of `validate_data`: a frame of any types, or an array of numbers. Missing values are allowed."""
    if not is_frame(features):
        return {"X": features, "dtype": "numeric", "ensure_all_finite": "allow-nan"}
    plain = all(isinstance(kind, np.dtype) for kind in features.dtypes)
    return {"X": features if plain else features.astype(object), "dtype": None, "ensure_all_finite": "allow-nan"}


def _columns(features: Any, checked: Array) -> dict[str, Any]:
    """Return the features by name; columns of an array are called x0, x1 ..."""
    if is_frame(features):
        columns = dict(Table.from_pandas(features).columns)
        for name, values in columns.items():
            if values.dtype.kind == "f" and np.isinf(values).any():
                raise ValueError(f"Input X contains infinity in column '{name}'")
        return columns
    return {_FEATURE.format(k): checked[:, k] for k in range(checked.shape[1])}


def _free_name(name: str, columns: Mapping[str, Any]) -> str:
    """Return the name, with underscores added where a feature has it."""
    while name in columns:
        name += "_"
    return name


def _class_words(classes: Array) -> list[str]:
    """Return each class as the text that a run knows it by; numbers with decimals are counted instead."""
    words = [str(word) for word in to_text(to_column(classes, name="label", source="y")).tolist()]
    whole = classes.dtype.kind != "f" or bool((classes == np.floor(classes)).all())
    return words if whole and len(set(words)) == len(words) else [f"class {k}" for k in range(len(classes))]
