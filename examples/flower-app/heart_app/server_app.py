"""The server: SSE-AGG in place of FedAvg."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from grandrounds.capabilities.integrations.flower import SSEAgg
from heart_app.task import record, start

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = SSEAgg(weigh={"form": "inverse", "sharpness": 3}, min_available_nodes=4)
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid=grid, initial_arrays=record(start()), num_rounds=rounds)
    for number, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {number}: accuracy {metrics['accuracy']:.3f}")
    for decision in getattr(strategy, "decisions", [])[-1:]:
        for node, weight in decision["weights"].items():
            print(f"{strategy.names.get(node, node)}: weight {weight:.3f}")
        print(decision["why"])
