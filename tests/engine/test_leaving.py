"""A client that leaves: nothing stays open in the router, and nothing stays pinned on D."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest

from tests.engine.conversation import opening
from tests.engine.exchange import Engines, Json, chat_body
from tests.engine.front import Front, wait_until
from tests.engine.pair import HANDLE_TTL_S, Setup
from tests.engine.play import Checked
from tests.engine.recorder import Recorder
from tests.engine.report import Run

USAGE = "vllm:kv_cache_usage_perc"
LONG_ANSWER_TOKENS = 4000
"""So many that D is still at work when the client leaves."""
SEEN_EVENTS = 3
PHASE_DEADLINE_S = 120.0
CLOSED_WITHIN_S = 30.0
FREED_WITHIN_S = HANDLE_TTL_S / 2
"""Long before the end of a handle: what is freed by then was not pinned."""


async def leave(url: str, body: Json, has_come: Callable[[], bool]) -> None:
    """Send a request, and drop the connection once ``has_come``; in a stream, after some events."""
    async with httpx.AsyncClient(timeout=None) as client:  # noqa: S113 - the wait below has a limit
        seen = 0

        async def ask() -> None:
            nonlocal seen
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                async for _ in response.aiter_bytes():
                    seen += 1

        asking = asyncio.create_task(ask())
        try:
            async with asyncio.timeout(PHASE_DEADLINE_S):
                while not (has_come() or seen >= SEEN_EVENTS):
                    assert not asking.done(), "the answer came to its end"
                    await asyncio.sleep(0.05)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("phase", "held_back", "streamed"),
    [
        ("prefill", "prefill", True),
        ("first_token", "decode", True),
        ("first_token", "decode", False),
        ("stream", None, True),
    ],
)
def test_a_client_that_leaves_leaves_nothing_behind(
    setup: Setup,
    checked: dict[str, Checked],
    router: Front,
    recorder: Recorder,
    engines: Engines,
    run: Run,
    phase: str,
    held_back: str | None,
    streamed: bool,
) -> None:
    assert checked  # the handles of earlier turns are over, or soon will be
    wait_until(lambda: engines.metric("decode", USAGE) == 0, "D holds nothing", limit_s=HANDLE_TTL_S + 30)
    label = f'boomerang_client_departures_total{{phase="{phase}"}}'
    before = _sample(router.metrics(), label)
    body = chat_body(opening(f"{phase} {streamed}", 12)) | {"stream": streamed}
    with ExitStack() as stack:
        if held_back is not None:
            stack.enter_context(recorder.holding_back(held_back))
        asyncio.run(
            leave(router.url, body | {"max_tokens": LONG_ANSWER_TOKENS}, lambda: _is_at(recorder, held_back))
        )
        closed_s = wait_until(
            lambda: router.is_idle() and not any(recorder.open.values()),
            "no turn and no leg is open",
            limit_s=CLOSED_WITHIN_S,
        )
    assert _sample(router.metrics(), label) == before + 1
    freed_s = wait_until(
        lambda: engines.metric("decode", USAGE) == 0, "D freed its blocks", limit_s=FREED_WITHIN_S
    )
    how = "streamed" if streamed else "not streamed"
    run.of(setup).notes[f"a client leaves in phase {phase}, {how}"] = (
        f"all legs closed after {closed_s:.1f} s, D's KV usage 0 after {closed_s + freed_s:.1f} s"
    )


def _is_at(recorder: Recorder, role: str | None) -> bool:
    return role is not None and recorder.open[role] > 0


def _sample(metrics: str, label: str) -> float:
    found = [line for line in metrics.splitlines() if line.startswith(label)]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
