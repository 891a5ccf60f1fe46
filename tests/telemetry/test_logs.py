"""Log lines: one for each fact, whole, and never a secret or a forged one."""

import io
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.telemetry.facts import (
    DiscoveryFailed,
    EndedBy,
    Fact,
    HandleFact,
    LedgerFailed,
    LegFailed,
    NodeChanged,
    NodesListed,
    Outcome,
    Phase,
    PromptMismatch,
    RequestRefused,
    TaskFailed,
    TurnEnded,
)
from router.telemetry.logs import LOGGER, FactLog, set_up

TURN = TurnEnded(
    turn_id="brg-1",
    client_id="client-1",
    conversation="conversation-1",
    endpoint="chat",
    model="model-1",
    stream=True,
    plan="pull",
    reason="extension",
    prefill="p1",
    decode="d1",
    status=200,
    ended_by=EndedBy.ENGINE,
    phase=Phase.DONE,
    detail="",
    prompt_tokens=821,
    reused_tokens=768,
    completion_tokens=None,
    finish_reason="stop",
    waited_s=None,
    estimate_s=0.2,
    verify_s=0.0041234567,
    prefill_s=None,
    gap_s=0.0,
    decode_s=None,
    first_byte_s=0.2,
    total_s=1.5,
)
FACTS: list[tuple[Fact, str]] = [
    (TURN, "info"),
    (replace(TURN, ended_by=EndedBy.CLIENT), "info"),
    (replace(TURN, ended_by=EndedBy.ROUTER), "info"),
    (replace(TURN, ended_by=EndedBy.FAULT, detail="decode node d1: reset"), "warning"),
    (RequestRefused("brg-1", "client-1", "chat", 400, "bad_request"), "info"),
    (LegFailed("brg-1", "prefill", "p1", "status 500", with_handle=True, action="cold_retry"), "warning"),
    (LedgerFailed("find", "time-out"), "warning"),
    (LedgerFailed("find", "the store is not asked: time-out", asked=False), "debug"),
    (PromptMismatch("model-1", "p1", 768), "error"),
    (TaskFailed("sweep", "boom"), "error"),
    (HandleFact(Outcome.CUT, "d1", 768, "router"), "debug"),
    (NodeChanged("p1", "prefill", "ready", "probed"), "info"),
    (NodesListed("nodes_file a.yaml", 2), "info"),
    (DiscoveryFailed("nodes_file a.yaml", "not valid YAML"), "warning"),
]


@pytest.fixture(autouse=True)
def _the_logger_as_it_was() -> Iterator[None]:
    before = (LOGGER.handlers[:], LOGGER.level, LOGGER.propagate)
    yield
    LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before


def written(form: str, *facts: Fact, level: str = "debug") -> str:
    stream = io.StringIO()
    set_up(form, level, stream)
    log = FactLog()
    for fact in facts:
        log(fact)
    return stream.getvalue()


def document(*facts: Fact) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written("json", *facts))
    return found


@pytest.mark.parametrize(("fact", "level"), FACTS)
def test_a_fact_is_one_line_of_its_level_in_both_forms(fact: Fact, level: str) -> None:
    console, machine = written("console", fact), written("json", fact)
    assert console.count("\n") == machine.count("\n") == 1
    assert re.match(rf"\d\d:\d\d:\d\d\.\d\d\d {level.upper()} ", console)
    found = json.loads(machine)
    assert (found["level"], found["logger"]) == (level, "router")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])
    assert found["message"]


@pytest.mark.parametrize(("fact", "level"), FACTS)
def test_the_level_decides_what_is_written(fact: Fact, level: str) -> None:
    order = ["debug", "info", "warning", "error"]
    for at in order:
        assert bool(written("json", fact, level=at)) == (order.index(level) >= order.index(at))


def test_a_turns_line_tells_what_is_known_and_nothing_else() -> None:
    found = document(TURN)
    for name in ("time", "level", "logger"):
        del found[name]
    assert found == {
        "message": "turn pull (extension) 200 ended by engine",
        "turn_id": "brg-1",
        "client_id": "client-1",
        "conversation": "conversation-1",
        "endpoint": "chat",
        "model": "model-1",
        "stream": True,
        "plan": "pull",
        "reason": "extension",
        "prefill": "p1",
        "decode": "d1",
        "status": 200,
        "ended_by": "engine",
        "phase": "done",
        "prompt_tokens": 821,
        "reused_tokens": 768,
        "finish_reason": "stop",
        "estimate_s": 0.2,
        "verify_s": 0.004123,
        "gap_s": 0.0,
        "first_byte_s": 0.2,
        "total_s": 1.5,
    }


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        (RequestRefused("brg-1", "c", "chat", 413, "body_too_large"), "request refused: 413 body_too_large"),
        (HandleFact(Outcome.CUT, "d1", 768), "handle cut"),
        (PromptMismatch("m", "p1", 5), "prefill node p1 read another prompt than was verified; "
         "reuse is off for its model"),
        (LegFailed("t", "decode", "d1", "x", with_handle=False, action="fail"), "decode leg failed: fail"),
        (LedgerFailed("put", "x"), "ledger did not put; the turn goes cold"),
        (NodeChanged("d1", "decode", "ejected", "x"), "decode node d1 is ejected"),
        (TaskFailed("sweep", "x"), "task sweep failed and starts again"),
        (NodesListed("dns://e:1", 2), "dns://e:1 lists 2 nodes"),
        (DiscoveryFailed("dns://e:1", "x"), "dns://e:1 cannot be read; the nodes that it listed last stand"),
    ],
)  # fmt: skip
def test_headlines(fact: Fact, message: str) -> None:
    assert document(fact)["message"] == message
    assert f" {message}" in written("console", fact)


def test_a_console_line_is_for_people() -> None:
    line = written("console", replace(TURN, conversation="", detail="left in phase stream"))
    assert " INFO    turn pull (extension) 200 ended by engine turn_id=brg-1 client_id=client-1 " in line
    assert " ended_by=engine phase=done " in line
    assert ' detail="left in phase stream" ' in line
    assert "conversation=" not in line


SECRETS = [
    "cannot reach http://user:hunter2@host:8100/v1",
    "authorization: Bearer hunter2",
    "Basic hunter2",
    "redis://:hunter2@store:6379/0 refused",
    "x" * 990 + " redis://user:hunter2@store:6379 refused",
    "x" * 980 + " redis://user:hunter2@" + "s" * 100,
]


@pytest.mark.parametrize("text", SECRETS)
@pytest.mark.parametrize("form", ["console", "json"])
def test_no_secret_is_written(text: str, form: str) -> None:
    out = written(
        form,
        replace(TURN, detail=text),
        LegFailed("t", "decode", "d1", text, with_handle=False, action="fail"),
        LedgerFailed("put", text),
        TaskFailed("sweep", text),
        NodeChanged("d1", "decode", "ejected", text),
    )
    assert out.count("\n") == 5
    assert "hunter2" not in out


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_secret_is_written_by_other_parts_of_the_router_either(form: str) -> None:
    stream = io.StringIO()
    set_up(form, "info", stream)
    try:
        raise ConnectionError("redis://user:hunter2@store:6379")
    except ConnectionError:
        logging.getLogger("router.http").exception("lost %s", "redis://user:hunter2@store:6379")
    assert "hunter2" not in stream.getvalue()
    assert "ConnectionError" in stream.getvalue()


FORGED = "a\n00:00:00.000 ERROR   forged"


@pytest.mark.parametrize(
    "text",
    [FORGED, "a\r\nforged", "a\x1b[2K\x1b[1Gforged"],
)
@pytest.mark.parametrize("char", "\r\x0b\x0c\x1c\x85\u2028\u2029\x1b\x00\x7f\u202e")
def test_no_control_character_reaches_a_terminal(text: str, char: str) -> None:
    out = written(
        "console",
        replace(TURN, model=text, conversation=text, client_id=text, detail=text, finish_reason=f"a{char}b"),
        LegFailed(text, "decode", "d1", f"{text}{char}", with_handle=False, action="fail"),
        LedgerFailed("put", text),
    )
    assert len(out.splitlines()) == 3
    assert all(char.isprintable() for char in out.replace("\n", ""))
    assert "forged" in out, "it is shown, made harmless"


@pytest.mark.parametrize("text", [FORGED, 'quo"te', "back\\slash", "a\u2028b", "é 😀", "\x00\x1f\x7f"])
def test_a_document_keeps_what_it_is_told(text: str) -> None:
    out = written("json", replace(TURN, model=text))
    assert out.count("\n") == 1
    assert json.loads(out)["model"] == text


@given(st.text(max_size=60), st.sampled_from(["console", "json"]))
def test_whatever_a_field_holds_a_fact_is_one_line(text: str, form: str) -> None:
    out = written(form, replace(TURN, model=text, detail=text), TaskFailed(text, text))
    assert out.count("\n") == 2
    if form == "json":
        for line in out.removesuffix("\n").split("\n"):
            assert json.loads(line)["logger"] == "router"
    else:
        assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", " model=plain "),
        ("two words", ' model="two words" '),
        ("a status=500", ' model="a status=500" '),
        ("a=b", ' model="a=b" '),
        ('say "a" \\', ' model="say \\"a\\" \\\\" '),
        ("a\tb c", ' model="a\\tb c" '),
        ("naïve-模型", " model=naïve-模型 "),
    ],
)
def test_a_value_cannot_pass_for_another_field(text: str, shown: str) -> None:
    assert shown in written("console", replace(TURN, model=text))


def test_a_name_as_long_as_a_book_does_not_fill_the_log() -> None:
    for form in ("console", "json"):
        out = written(form, replace(TURN, model="m" * 5_000_000, detail=":@" * 1_000_000))
        assert len(out) < 5000
        assert out.endswith("\n")
    assert document(replace(TURN, model="m" * 1000))["model"] == "m" * 1000


def test_a_traceback_stays_in_its_document() -> None:
    stream = io.StringIO()
    set_up("json", "info", stream)
    try:
        raise ValueError("boom\nforged")
    except ValueError:
        logging.getLogger("router.http").exception("turn %s failed", "brg-1\nforged")
    found = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert found["message"] == "turn brg-1\nforged failed"
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: boom\nforged")


def test_setting_up_again_replaces_what_was() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up("json", "info", first)
    set_up("console", "error", second)
    FactLog()(TURN)
    FactLog()(TaskFailed("sweep", "boom"))
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert not LOGGER.propagate


def test_a_line_goes_to_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("console", "info")
    FactLog()(TURN)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "turn pull" in captured.err
