"""The entry point: what vLLM calls in every process of an engine, possibly more than once."""

from __future__ import annotations

import sys

from boomerang_vllm import __version__, guard, scheduler, settings, stream

_SCHEDULER_PARTS = frozenset({"stamp", "verify", "release", "stay"})


def register() -> None:
    """Switch the parts on. Never raises."""
    try:
        _register()
    except Exception as error:  # the engine starts without us
        guard.say_once("register", "Boomerang: the plugin is off", error=error)


def _register() -> None:
    chosen, wrong = settings.read()
    for text in wrong:
        guard.say_once(text, "Boomerang: %s", text)
    on: set[str] = set()
    if chosen.parts & _SCHEDULER_PARTS and scheduler.install(chosen):
        on |= chosen.parts & _SCHEDULER_PARTS
    if "stream" in chosen.parts and stream.install():
        on.add("stream")
    version = getattr(sys.modules.get("vllm"), "__version__", "unknown")
    guard.log.info(
        "Boomerang %s with vLLM %s: %s; handles without a stamp: %s",
        __version__,
        version,
        ", ".join(sorted(on)) or "nothing is on",
        chosen.unstamped,
    )
