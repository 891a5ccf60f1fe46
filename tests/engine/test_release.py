"""Early release: a prefill leg of one token that carries a handle frees what D holds for it, at once."""

from tests.engine.conversation import opening
from tests.engine.exchange import Engines, chat_body
from tests.engine.front import wait_until
from tests.engine.pair import HANDLE_TTL_S, Setup
from tests.engine.report import Run

USAGE = "vllm:kv_cache_usage_perc"
SOON_S = HANDLE_TTL_S / 3
"""A few seconds, on a machine that others keep busy; the handle's own end is far off."""


def test_a_handle_that_is_given_back_frees_d(setup: Setup, engines: Engines, run: Run) -> None:
    wait_until(lambda: engines.metric("decode", USAGE) == 0, "D holds nothing", limit_s=HANDLE_TTL_S + 30)
    handle = engines.two_legs(chat_body(opening("casks", 20))).decode.params
    assert handle is not None
    pinned = engines.metric("decode", USAGE)
    assert pinned > 0
    engines.release(handle)
    freed_s = wait_until(lambda: engines.metric("decode", USAGE) == 0, "D is freed", limit_s=SOON_S)
    run.of(setup).notes["early release"] = (
        f"D's KV usage fell from {pinned:.2%} to 0 within {freed_s:.1f} s of a one-token prefill leg"
        f" with the handle (its TTL is {HANDLE_TTL_S} s)"
    )
