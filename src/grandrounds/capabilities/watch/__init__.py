"""Monitoring of models in use, and recalibration at a hospital."""

from grandrounds.core.capability import Capability, Command, LedgerFolder, MethodSection, SiteTask

_TASK = f"{__name__}.method.task"

CAPABILITY = Capability(
    name="watch",
    title="Monitoring of models in use, and recalibration at a hospital",
    budget=9_400,
    page="watch.md",
    names={
        "recalibrate": f"{__name__}.api.recalibrating:recalibrate",
        "watch": f"{__name__}.api.watching:watch",
        "watch_consortium": f"{__name__}.api.watching:watch_consortium",
    },
    commands={
        "watch": Command(f"{__name__}.commands.watch:register", panel="Use", after="evaluate"),
        "recalibrate": Command(f"{__name__}.commands.recalibrate:register", panel="Use", after="watch"),
    },
    methods={
        "watch": f"{__name__}.method.server:Watch",
    },
    ledgers={"a watch": LedgerFolder(holds=f"{__name__}.audit:is_watch", audit=f"{__name__}.audit:audit_watch")},
    tasks={
        "watch": SiteTask(spec=f"{_TASK}:SPEC", cost=f"{_TASK}:cost", admits=f"{_TASK}:admits"),
    },
    method_options={
        "watch": MethodSection(f"{__name__}.method.options:WatchOptions", after="card"),
    },
)
