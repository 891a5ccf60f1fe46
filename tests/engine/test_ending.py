"""A conversation that its client ends: D's KV is free again, long before its time to live is over."""

import httpx

from tests.engine.conversation import opening
from tests.engine.exchange import Engines, chat_body
from tests.engine.front import Front, wait_until
from tests.engine.pair import HANDLE_TTL_S, Setup
from tests.engine.report import Run
from tests.engine.test_release import SOON_S, USAGE

ANSWER_DEADLINE_S = 120.0


def test_usage_falls_back_after_a_delete(setup: Setup, engines: Engines, router: Front, run: Run) -> None:
    wait_until(lambda: engines.metric("decode", USAGE) == 0, "D holds nothing", limit_s=HANDLE_TTL_S + 30)
    router.wait_serving()  # a pair that cools, as after a pull that another test has failed, releases nothing
    with httpx.Client(base_url=router.url, timeout=ANSWER_DEADLINE_S) as client:
        turn = client.post(
            "/v1/chat/completions", json=chat_body(opening("harbour", 20)), headers={"x-session-id": "mine"}
        )
        assert turn.status_code == 200
        pinned = engines.metric("decode", USAGE)
        assert pinned > 0
        assert client.delete("/v1/conversations/nobodys").status_code == 404
        ended = client.delete("/v1/conversations/mine")
        assert ended.status_code == 200
        assert ended.json()["released_handles"] == 1
    freed_s = wait_until(lambda: engines.metric("decode", USAGE) == 0, "D is freed", limit_s=SOON_S)
    run.of(setup).notes["DELETE of a conversation"] = (
        f"D's KV usage fell from {pinned:.2%} to 0 within {freed_s:.1f} s (its TTL is {HANDLE_TTL_S} s)"
    )
