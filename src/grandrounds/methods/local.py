"""Every site alone: what a hospital reaches without the others, and so the lower reference of any comparison."""

from __future__ import annotations

from grandrounds.methods.base import Method, Round, Server
from grandrounds.methods.decision import Decision
from grandrounds.methods.served import Served, together
from grandrounds.methods.weigh import data_size
from grandrounds.protocol.messages import Answers


class Local(Method):
    """Each site goes on with its own model and is judged by it. Their mean is for hospitals that did not train."""

    name = "local"
    title = "Local: every site trains alone (the lower reference)"
    parts = frozenset()

    def round(self, server: Server) -> Round:
        served = server.served or Served(server.model)
        each = served.each()
        answers: Answers = yield self.ask_to_train(server, server.sites, each=each)
        own = {site: answers["model"][k] for k, site in enumerate(answers.sites)}
        models = [own.get(s, served.for_site(s)) for s in server.sites]
        weights = data_size(answers["count"])
        mean = server.combine(answers, weights) if server.averages else server.model
        after = Served(mean, together(models), {s: k for k, s in enumerate(server.sites)})
        decision = Decision(
            signals={"data_size": answers.by_site("count")},
            weights=dict.fromkeys(answers.sites, 1.0),
            why="every site keeps the model it trained alone",
        )
        return server.next(after, decision)
