"""Pages for people. Each file has the routes of one page; what they show comes from `views`."""

from grandrounds.console.pages import audit, case, compare, privacy, run, runs

ROUTERS = (runs.router, run.router, case.router, compare.router, audit.router, privacy.router)
