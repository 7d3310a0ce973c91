"""Monitoring of models in use, and recalibration at a hospital."""

from grandrounds.core.capability import Capability, Command, MethodSection

CAPABILITY = Capability(
    name="watch",
    title="Monitoring of models in use, and recalibration at a hospital",
    budget=7_500,
    page="watch.md",
    names={
        "recalibrate": "grandrounds.api.recalibrating:recalibrate",
        "watch": "grandrounds.api.watching:watch",
        "watch_consortium": "grandrounds.api.watching:watch_consortium",
    },
    commands={
        "watch": Command(f"{__name__}.commands.watch:register", panel="Use", after="evaluate"),
        "recalibrate": Command(f"{__name__}.commands.recalibrate:register", panel="Use", after="watch"),
    },
    methods={
        "watch": "grandrounds.methods.watch.server:Watch",
    },
    method_options={
        "watch": MethodSection("grandrounds.methods.watch.options:WatchOptions", after="card"),
    },
)
