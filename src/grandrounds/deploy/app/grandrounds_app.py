"""What would run if this app were started by Flower itself: a sentence that says how it is meant."""

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
client = ClientApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    raise SystemExit("runs of this app are conducted by `rounds server start`; nothing is run from the app itself")
