"""Flower app that carries the settings of a run. It raises an error if Flower itself starts it."""

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
client = ClientApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    raise SystemExit("this app is run by `rounds server start`; it contains no code of its own")
