"""One moment of the router, as the page is sent it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from router.app import Router, build
from router.fleet.fit import Line
from router.fleet.load import IDLE_PREFILL, Loads
from router.fleet.node import Role
from router.page import view as module
from router.page.view import View, without_reuse_s
from router.telemetry.live import TURNS_KEPT
from tests.e2e.http_pool import settings_for
from tests.telemetry.test_metrics import TURN

RATES = IDLE_PREFILL._replace(compute=Line(0.1, 1e-4), move=Line(0.01, 1e-5))
LOADS = Loads(prefills={"p:1": RATES})
PULLED = replace(
    TURN,
    plan="pull",
    prefill="p:1",
    stream=True,
    prompt_tokens=10_000,
    reused_tokens=8_000,
    moved_tokens=8_000,
    first_byte_s=0.5,
    verify_s=0.02,
)


@dataclass
class Told:
    """A router that is not running, and what the page is told of it."""

    router: Router
    view: View

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.view.state())
        return found


def told_of(prefills: int = 1, decodes: int = 1, **options: Any) -> Told:
    origins = [
        [f"http://{role}:{n}" for n in range(1, count + 1)]
        for role, count in (("p", prefills), ("d", decodes))
    ]
    router = build(settings_for(*origins, admin_port=0, **options))
    return Told(router, router.view())


@contextmanager
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(module, "FRESH_S", 0.0)
        yield


def test_what_reuse_saved_is_added_and_what_it_took_is_left_out() -> None:
    # 8,000 tokens computed would have been 0.8 s; reading them took 0.09 s, comparing them 0.02 s.
    assert without_reuse_s(PULLED, LOADS) == pytest.approx(0.5 + 0.8 - 0.09 - 0.02)
    held = replace(PULLED, moved_tokens=0, verify_s=None)
    assert without_reuse_s(held, LOADS) == pytest.approx(0.5 + 0.8)


@pytest.mark.parametrize(
    "turn",
    [
        replace(PULLED, stream=False),
        replace(PULLED, reused_tokens=0),
        replace(PULLED, reused_tokens=None),
        replace(PULLED, prompt_tokens=None),
        replace(PULLED, first_byte_s=None),
        replace(PULLED, prefill=""),
        replace(PULLED, prefill="p:gone"),
    ],
)
def test_an_estimate_is_given_only_where_there_is_something_to_go_by(turn: Any) -> None:
    assert without_reuse_s(turn, LOADS) is None


def test_a_frame_holds_what_is_new_and_only_that() -> None:
    told = told_of()
    first, newest, state = told.view.frame(0, b"")
    assert json.loads(first)["state"]["sums"]["turns"] == 0
    assert "turns" not in json.loads(first)
    assert told.view.frame(newest, state) == (b"", newest, state)
    told.router.context.facts.publish(PULLED)
    frame = json.loads(told.view.frame(newest, state)[0])
    assert [turn["number"] for turn in frame["turns"]] == [1]
    assert "state" not in frame, "it is still fresh"


def test_the_state_is_made_once_for_all_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of()
    before = told.view.state()
    told.router.context.facts.publish(PULLED)
    assert told.view.state() is before
    with always_fresh(monkeypatch):
        assert json.loads(told.view.state())["sums"]["turns"] == 1


def test_no_estimate_while_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of()
    context = told.router.context
    key = next(node.key for node in context.fleet.snapshot.nodes if node.role is Role.PREFILL)
    context.facts.publish(replace(PULLED, prefill=key))
    assert json.loads(told.view.frame(0, b"")[0])["turns"][0]["without_s"] is None

    with context.load.prefilling(key, 4000, context.now) as leg:
        pass
    context.load.prefilled(leg, computed_tokens=4000, moved_tokens=0)
    context.facts.publish(replace(PULLED, prefill=key))
    with always_fresh(monkeypatch):
        frame = json.loads(told.view.frame(1, b"")[0])
    estimated = frame["turns"][0]["without_s"]
    assert estimated is not None
    assert frame["state"]["first_bytes"] == {"turns": 1, "with_s": 0.5, "without_s": estimated}


def test_four_hundred_nodes_and_a_thousand_turns_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of(200, 200)
    for number in range(3 * TURNS_KEPT):
        told.router.context.facts.publish(replace(PULLED, turn_id=f"brg-{number}"))
    data, newest, _ = told.view.frame(0, b"")
    frame = json.loads(data)
    assert newest == 3 * TURNS_KEPT
    assert len(frame["turns"]) == TURNS_KEPT
    assert len(frame["state"]["nodes"]) == module.MAX_NODES
    assert frame["state"]["more_nodes"] == 400 - module.MAX_NODES
    assert len(data) < 700_000


def test_what_the_router_is_stands_in_the_state() -> None:
    state = told_of(verify="lineage", pin_budget=0.25).state()
    assert (state["verify"], state["pin_budget"], state["is_shared"]) == ("lineage", 0.25, False)
    assert state["status"] == "not_ready", "its nodes were never probed"
    assert state["warnings"][0]["level"] == "error"
    assert told_of(store="redis://127.0.0.1:1").state()["is_shared"]


def test_a_router_that_drains_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told = told_of()
    assert told.state()["status"] == "not_ready"
    told.router.draining = True
    with always_fresh(monkeypatch):
        state = told.state()
    assert state["status"] == "draining"
    assert {"level": "warning", "text": "this router is draining"} in state["warnings"]
