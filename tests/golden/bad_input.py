"""Bad input by what is wrong: exit codes and the codes of errors are kept, sentences may be reworded."""

from __future__ import annotations

from tests.golden.running import Step

RUN = ("run", "patients.csv", "--label", "died", "--site", "hospital", "-q", "--set", "method.rounds=1")


def _set(number: int, *settings: str) -> tuple[str, ...]:
    return (*RUN, "--out", f"run-{number}", *(part for setting in settings for part in ("--set", setting)))


SETTINGS = (
    "method.rounds=-1", "method.rounds=0", "method.rounds=1e300", "method.rounds=ten", "method.rounds=", "train.epochs=-1",
    "train.lr=nan", "train.lr=inf", "train.lr=-1", "train.steps=1.5", "split.sites=0", "seed=true", "privacy.epsilon=-1",
    "privacy.delta=2", "train.batch=-3", "data.clip=-1", "evaluation.every=0", "method.mu=-1", "method=3", "seed.a=3",
    "method.nme=x", "method.name=nothing", "method.name=os:system", "model.name=resnet", "model.hidden=[-3]",
    "model.hidden=[1000000000]", "method.robust=krumm", "method.select.fraction=2", "method.weigh=none", "method.stability=glue",
    "method.staleness=never", "data.kinds={age='text'}", "data.drop=['nothing']", "data.features=['nothing']", "data.task=guess",
    "data.event=nothing", "data.patient=nothing", "data.time=nothing", "split.partition=dirichlet", "split.scheme=holdout",
    "split.holdout=['nowhere']", "split.fold=99", "split.val=1.5", "explain.sketch=lime", "explain.at=nowhere",
    "evaluation.calibrate=well", "evaluation.metrics=['os:getcwd']", "evaluation.threshold=2", "evaluation.subgroups=['nothing']",
    "engine.device=tpu", "engine.workers=-1", "engine.precision=float16", "engine.faults={drop=1.0}", "engine.keep_states=-1",
    "privacy.mechanism=dp", "personal.part=heart", "reference={a={rows=99999999}}", "attacks=[{kind='poison',count=1}]",
    "attacks=[{kind='label-flip',count=999}]", "train.objective=nothing", "train.optimizer=sgdd", "train.schedule=weekly",
    "name=../../up", "data.sha256=abc",
)  # fmt: skip
PAIRS = (
    ("privacy.secure=true", "method.robust=krum"),
    ("privacy.mechanism=dp-sgd", "privacy.epsilon=1e-300"),
    ("privacy.mechanism=dp-sgd", "model.name=forest"),
    ("method.name=xfed", "model.name=logistic"),
    ("method.name=pooled", "privacy.secure=true"),
    ("method.name=glm", "privacy.epsilon=1"),
    ("method.name=cox",),
    ("method.name=trees", "model.name=mlp"),
    ("method.name=sse-agg", "reference={}"),
    ("method.name=veil",),
    ("method.name=fedbn", "model.name=mlp"),
    ("method.name=clustered", "method.clusters=0"),
    ("method.name=watch",),
    ("method.preset=unknown",),
)
COMMANDS: tuple[Step, ...] = (
    ("run", "brest-cancer"),
    ("run", "nowhere.toml"),
    ("run", "--table", "none.csv", "--label", "y"),
    ("run", "patients.csv"),
    ("run", "patients.csv", "--label", "dead"),
    ("run", "patients.csv", "--label", "died", "--site", "hopital"),
    ("run", "patients.csv", "--label", "died", "--drop", "agee"),
    ("run", "heart", "--table", "patients.csv"),
    ("run", "sqlite:///nowhere.db", "--label", "died"),
    ("run", "squares.npz", "--set", "model.name=mlp"),
    ("list", "method"),
    ("resume", "nowhere"),
    ("show", "nowhere"),
    ("show", "."),
    ("compare", "one"),
    ("compare", "--methods", "fedavg,nothing"),
    ("tune", "heart", "--space", "train.lr=1"),
    ("tune", "heart", "--trials", "0"),
    ("export", "nowhere", "--to", "json"),
    ("predict", "nowhere", "--table", "new.csv"),
    ("evaluate", "nowhere", "--table", "new.csv"),
    ("explain", "nowhere", "--case", "1"),
    ("explain", "maps", "show", "nowhere"),
    ("privacy", "nowhere"),
    ("privacy", "budget", "nowhere"),
    ("attack", "nowhere"),
    ("withdraw", "nowhere", "--site", "a"),
    ("dossier", "nowhere"),
    ("card", "nowhere"),
    ("watch", "nowhere", "--site", "a", "--table", "new.csv"),
    ("recalibrate", "nowhere", "--site", "a", "--table", "new.csv"),
    ("audit", "verify", "nowhere"),
    ("audit", "check", "nowhere.json"),
    ("data", "get", "hart"),
    ("data", "check", "patients.csv"),
    ("data", "split", "patients.csv", "--out", "tables", "--by", "nothing"),
    ("cohort", "check", "nowhere.toml"),
    ("cohort", "build", "nowhere.toml", "--data", ".", "--out", "t.csv"),
    ("scans", "list", "nowhere"),
    ("quality", "patients.csv"),
    ("table1", "patients.csv", "--group", "nothing"),
    ("fit", "glm", "patients.csv"),
    ("fit", "glm", "patients.csv", "--label", "died", "--site", "hospital", "--formula", "died ~ nothing"),
    ("fit", "cox", "stays.csv", "--time", "nothing", "--event", "died"),
    ("fit", "km", "stays.csv", "--time", "days", "--event", "nothing"),
    ("models", "list", "--runs", "nowhere"),
    ("site", "check", "nowhere"),
    ("site", "policy", "nowhere"),
    ("site", "start", "nowhere"),
    ("server", "start", "nowhere"),
    ("provision", "make", "nowhere.toml", "--out", "out"),
    ("provision", "show", "nowhere"),
    ("track", "nowhere"),
    ("report", "nowhere"),
    ("nothing",),
)

BAD_INPUT: dict[str, tuple[Step, ...]] = {
    "settings": tuple(_set(k, s) for k, s in enumerate(SETTINGS)),
    "settings together": tuple(_set(k, *pair) for k, pair in enumerate(PAIRS)),
    "commands": COMMANDS,
}
