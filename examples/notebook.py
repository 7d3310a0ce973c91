# %% [markdown]
# Grand Rounds from Python. Run the file as a script, or cell by cell in Jupyter or VS Code.
#
#     python examples/notebook.py

# %% Imports: grandrounds first, so that NumPy uses one thread
import grandrounds as gr  # isort: skip
import numpy as np
from sklearn.datasets import load_breast_cancer

# %% Train on a built-in data set
run = gr.run("breast-cancer", rounds=5, out="notebook/fedavg")
print(run.summary.final["auroc"])
run  # noqa: B018 (a notebook shows the summary here)

# %% Rounds, sites and weights as data frames
print(run.history[["test_auroc", "test_log_loss", "bytes_up"]])
print(run.sites[["train_rows", "weight", "accuracy", "majority"]])
print(run.weights)
run.plot("weights").write_html("notebook/weights.html")

# %% Another method on the same data, with the same seed
other = gr.run("breast-cancer", method="scaffold", rounds=5, out="notebook/scaffold")
print(gr.compare(run, other, metrics=["auroc", "log_loss"]).frame["mean"])

# %% The patient of row 12: which features raise the risk?
case = gr.explain_case(run, 12)
print(case.site, case.probability, [(a.column, a.direction) for a in case.attributions[:3]])

# %% The scikit-learn interface, with hospitals as an array
X, y = load_breast_cancer(return_X_y=True, as_frame=True)
hospital = np.arange(len(y)) % 4
model = gr.FederatedClassifier(rounds=5).fit(X, y, site=hospital)
print(model.score(X, y), model.sites_)
