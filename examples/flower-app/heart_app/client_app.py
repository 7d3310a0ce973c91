"""A hospital: trains on its own patients and reports the feature attributions of its model."""

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from grandrounds.capabilities.integrations.flower.client import sse_report
from heart_app.task import COLUMNS, NAMES, fit, predict, record, split

app = ClientApp()


def held(message: Message, context: Context):
    """Return this node's hospital, its rows and the received model."""
    hospital = NAMES[int(context.node_config["partition-id"])]
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return hospital, split(hospital, str(context.run_config["flipped"])), model


@app.train()
def train(message: Message, context: Context) -> Message:
    hospital, ((x, y), _, (x_shared, y_shared)), model = held(message, context)
    model = fit(model, x, y, int(context.run_config["local-steps"]), float(context.run_config["learning-rate"]))
    metrics = {"num-examples": len(x)}
    metrics |= sse_report(lambda rows: predict(model, rows), x_shared, y_shared, columns=COLUMNS)
    content = RecordDict(
        {
            "arrays": record(model),
            "metrics": MetricRecord(metrics),
            "about": ConfigRecord({"grandrounds.site": hospital}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, (_, (x, y), _), model = held(message, context)
    right = ((predict(model, x) > 0.5) == y).mean()
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(right)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
