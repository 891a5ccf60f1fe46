"""What each leg of a turn carries, as the engines see it."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from router.sim.config import EngineConfig
from router.sim.record import Received
from tests.e2e.http_pool import (
    CHAT,
    COMPLETIONS,
    MODEL,
    STOCK_33,
    Body,
    HttpPool,
    assert_right,
    carries_handle,
    continued,
    fault,
    http_pool,
    legs,
    opening,
    user,
)

COLD = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
STEERING = {
    "do_remote_prefill": True,
    "remote_host": "169.254.169.254",
    "remote_port": 80,
    "remote_block_ids": [[7]],
}
JSON = {"content-type": "application/json"}
PLUGIN = EngineConfig(version="0.33.0", plugin=True)


async def two_legs(pool: HttpPool, body: Body, path: str = CHAT, **headers: str) -> tuple[Received, Received]:
    """The legs of one turn that goes well."""
    before = len(legs(pool.p)), len(legs(pool.d))
    answer = await pool.chat(body, path=path, **headers)
    assert answer.status_code == 200, answer.text
    (prefill,), (decode,) = legs(pool.p)[before[0] :], legs(pool.d)[before[1] :]
    return prefill, decode


def prompt_of(received: Received) -> dict[str, Any]:
    shaping = ("model", "messages", "prompt", "tools", "chat_template_kwargs", "tool_choice", "cache_salt")
    return {name: received.body[name] for name in shaping if name in received.body}


async def test_the_prefill_leg_is_one_token_and_the_decode_leg_is_the_clients() -> None:
    body = opening(
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=50,
        max_completion_tokens=40,
        min_tokens=5,
        stop=["zzz"],
        stop_token_ids=[3],
        include_stop_str_in_output=True,
        logprobs=True,
        top_logprobs=2,
        n=1,
        temperature=0.5,
        chat_template_kwargs={"enable_thinking": False},
        future_field={"deep": [1, {"x": None}]},
        parallel_tool_calls=False,
    )
    async with http_pool() as pool:
        prefill, decode = await two_legs(pool, body)
        assert (prefill.body["max_tokens"], prefill.body["max_completion_tokens"]) == (1, 1)
        assert prefill.body["stream"] is False
        assert prefill.body["ignore_eos"] is True
        assert prefill.body["kv_transfer_params"] == COLD
        dropped = {
            *("stream_options", "min_tokens", "stop", "stop_token_ids", "include_stop_str_in_output"),
            *("logprobs", "top_logprobs", "n"),
        }
        assert not dropped & set(prefill.body)
        added = {"kv_transfer_params", "return_token_ids"}
        assert {key: value for key, value in decode.body.items() if key not in added} == body
        assert decode.body["kv_transfer_params"]["do_remote_prefill"] is True
        kept = set(body) - dropped - {"stream", "max_tokens", "max_completion_tokens"}
        assert {key: prefill.body[key] for key in kept} == {key: body[key] for key in kept}


async def test_both_legs_have_the_identical_prompt_and_p_s_params_go_on_as_they_came() -> None:
    async with http_pool() as pool:
        fault(pool.p, leg="prefill", extra_params={"future_key": {"a": [1]}})
        prefill, decode = await two_legs(pool, opening())
        assert prompt_of(prefill) == prompt_of(decode)
        params = decode.body["kv_transfer_params"]
        assert params["future_key"] == {"a": [1]}
        assert params["remote_engine_id"] == pool.p.engine.engine_id


async def test_the_handle_of_the_last_turn_goes_along_once() -> None:
    async with http_pool(prefill=[EngineConfig(version="0.33.0", prefix_cache=False)]) as pool:
        fault(pool.d, leg="decode", extra_params={"future_key": 5})
        first = await pool.turn(opening())
        second = continued(opening(), first)
        await pool.turn(second, plan="pull")
        carried = legs(pool.p)[1].body["kv_transfer_params"]
        assert carried["future_key"] == 5
        assert carried["remote_engine_id"] == pool.d.engine.engine_id
        await pool.turn(second)
        handles = [
            one.body["kv_transfer_params"]["remote_request_id"] for one in legs(pool.p) if carries_handle(one)
        ]
        assert len(handles) == len(set(handles))
        pool.sound()


async def test_every_leg_and_attempt_has_a_fresh_id_and_the_client_gets_its_own_back() -> None:
    async with http_pool() as pool:
        fault(pool.p, with_handle=True, status=500)
        body = opening()
        answer = await pool.chat(body, x_request_id="mine")
        body = continued(body, answer.json())
        again = await pool.chat(body, x_request_id="mine")  # its prefill leg is tried twice
        assert [one.headers["x-request-id"] for one in (answer, again)] == ["mine", "mine"]
        sent = [*legs(pool.p), *legs(pool.d)]
        ids = [one.headers["x-request-id"] for one in sent]
        assert len(sent) == 5
        assert len(set(ids)) == 5
        assert "mine" not in "".join(ids)
        assert "mine" not in json.dumps([one.body for one in sent])
        assert (await pool.chat(opening("x"))).headers["x-request-id"].startswith("brg-")
        refused = await pool.chat({"model": 5}, x_request_id="err")
        assert refused.headers["x-request-id"] == "err"


HIDDEN = [
    '"kv_transfer_params":%s',
    '"kv\\u005ftransfer_params":%s',
    '"vllm_xargs":{"kv_transfer_params":%s,"keep":1}',
    '"vllm_xargs":{"keep":1,"\\u006bv_transfer_params":%s}',
    '"kv_transfer_params":null,"kv_transfer_params":%s',
    '"kv_transfer_params":%s,"kv_transfer_params":null',
    '"ec_transfer_params":%s',
    '"vllm_xargs":{"ec_transfer_params":%s}',
]


async def test_a_client_cannot_steer_an_engine() -> None:
    prompts = {CHAT: '"messages":[{"role":"user","content":"hi"}]', COMPLETIONS: '"prompt":"hi"'}
    async with http_pool() as pool:
        for hidden, n, (path, prompt) in product(HIDDEN, (1, 2), prompts.items()):
            steering = hidden.replace("%s", json.dumps(STEERING))
            raw = f'{{"model":"{MODEL}",{prompt},"n":{n},{steering}}}'
            for server in pool.engines:
                server.engine.received.clear()
            answer = await pool.http.post(path, content=raw.encode(), headers=JSON)
            assert answer.status_code == 200, answer.text
            seen = [*legs(pool.p), *legs(pool.d)]
            assert len(seen) == (2 if n == 1 else 1)
            for one in seen:
                assert "169.254" not in json.dumps(one.body), hidden
                assert "ec_transfer_params" not in one.body, hidden
                assert ("keep" in hidden) == (one.body.get("vllm_xargs") == {"keep": 1}), hidden
                assert n == 1 or "kv_transfer_params" not in one.body, hidden


async def test_headers_are_the_clients_end_to_end_ones() -> None:
    sent: Any = {
        "authorization": "Bearer sk-client",
        "x-custom": "größe".encode(),
        "x-session-id": "s-1",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "connection": "keep-alive, x-hop",
        "x-hop": "only for you",
        "te": "trailers",
        "accept-encoding": "gzip, br",
        "x-data-parallel-rank": "3",
    }
    async with http_pool() as pool:
        answer = await pool.http.post(CHAT, json=opening(), headers=sent)
        assert answer.status_code == 200
        for one in (legs(pool.p)[0], legs(pool.d)[0]):
            assert one.headers["authorization"] == "Bearer sk-client"
            assert one.headers["x-custom"].encode("latin-1").decode() == "größe"
            assert one.headers["x-session-id"] == "s-1"
            assert one.headers["traceparent"] == sent["traceparent"]
            assert one.headers["host"] != pool.origin.removeprefix("http://")
            assert one.headers["accept-encoding"] == "identity"
            for hop in ("x-hop", "te", "x-data-parallel-rank", "transfer-encoding"):
                assert hop not in one.headers


async def test_ids_of_a_conversation_go_on_but_the_private_field_does_not() -> None:
    async with http_pool() as pool:
        prefill, decode = await two_legs(pool, opening(conversation_id="c-1", session_id="s-2"))
        for one in (prefill, decode):
            assert "conversation_id" not in one.body
            assert one.body["session_id"] == "s-2"
        assert pool.ended().conversation == "s-2"


async def test_our_key_is_for_callers_that_have_none(tmp_path: Any) -> None:
    key = tmp_path / "key"
    key.write_text("sk-pool\n")
    async with http_pool(engine_api_key_file=key) as pool:
        await two_legs(pool, opening())
        await two_legs(pool, opening(), authorization="Bearer sk-own")
        for server in pool.engines:
            assert [one.headers["authorization"] for one in legs(server)] == [
                "Bearer sk-pool",
                "Bearer sk-own",
            ]


UNSPLIT: dict[str, tuple[str, Body]] = {
    "n": (CHAT, opening(n=2)),
    "prompt_logprobs": (CHAT, opening(prompt_logprobs=0)),
    "best_of": (COMPLETIONS, {"prompt": "hi", "best_of": 2}),
    "beam_search": (COMPLETIONS, {"prompt": "hi", "use_beam_search": True}),
    "prompt_list": (COMPLETIONS, {"prompt": ["hi", "there"]}),
    "echo_logprobs": (COMPLETIONS, {"prompt": "hi", "echo": True, "logprobs": 1}),
    "prompt_embeds": (COMPLETIONS, {"prompt": "hi", "prompt_embeds": "AAAA"}),
    "truncation": (CHAT, opening(truncate_prompt_tokens=-1, max_tokens=5)),
    "endpoint": ("/v1/embeddings", {"input": "hi"}),
}


@pytest.mark.parametrize("reason", UNSPLIT)
async def test_what_cannot_be_split_runs_on_one_node_without_any_params(reason: str) -> None:
    path, members = UNSPLIT[reason]
    body = {"model": MODEL, **members}
    async with http_pool() as pool:
        for _ in range(2):
            answer = await pool.chat(body, path=path)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-boomerang-plan"] == "unsplit"
            assert answer.headers["x-boomerang-reason"] == reason
        assert not [one for one in pool.p.engine.received if one.path == path]
        asked = [one.body for one in pool.d.engine.received if one.path == path]
        assert asked == [body, body]
        assert not pool.d.engine.pins.by_request, "nothing that nobody would ever free"
        assert await pool.metric("turns_total", plan="unsplit", reason=reason) == 2
        assert await pool.metric("handles_total") == 0


async def test_a_prompt_that_is_cut_to_fit_its_answer_is_the_same_for_the_node_that_answers() -> None:
    """-1 keeps what the answer leaves room for: asked for one token, P would keep more than D."""
    small = replace(STOCK_33, max_model_len=800, prefix_cache=False)
    body = opening("and now? " * 100, truncate_prompt_tokens=-1, max_tokens=300, return_token_ids=True)
    for config in (small, replace(small, plugin=True)):
        async with http_pool(config) as pool:
            answer = await pool.chat(body)
            assert len(answer.json()["prompt_token_ids"]) == 500
            await assert_right(pool, answer, body, small)


async def test_a_streamed_answer_with_several_choices_leaves_no_handle() -> None:
    async with http_pool() as pool:
        raw = await pool.stream(opening(n=2))
        assert {chunk["choices"][0]["index"] for chunk in _chunks(raw)} == {0, 1}
        assert pool.ended().plan == "unsplit"


def _chunks(raw: bytes) -> list[Any]:
    found = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line and not line.endswith(b"[DONE]")]
    return [chunk for chunk in found if chunk["choices"]]


async def test_token_ids_are_asked_for_where_the_router_compares_and_nowhere_else() -> None:
    for config, mode, wanted in (
        (STOCK_33, "auto", True),
        (STOCK_33, "router", True),
        (STOCK_33, "off", False),
        (STOCK_33, "lineage", False),
        (PLUGIN, "engine", False),
    ):
        async with http_pool(config, verify=mode) as pool:
            prefill, decode = await two_legs(pool, opening())
            assert prefill.body["return_token_ids"] is wanted, mode
            assert decode.body.get("return_token_ids", False) is wanted, mode


async def test_a_pair_with_the_plugin_is_not_asked_for_ids_any_more() -> None:
    async with http_pool(PLUGIN) as pool:
        body = opening()
        for _ in range(3):
            body = continued(body, await pool.turn(body))
        assert legs(pool.p)[-1].body["return_token_ids"] is False
        assert "return_token_ids" not in legs(pool.d)[-1].body
        assert pool.ended().plan == "local"
        health = (await pool.http.get("/health")).json()
        assert health["verify"] == {"engine": 1}
        pool.sound()


async def test_one_session_id_for_several_conversations_mixes_none_of_them() -> None:
    async with http_pool() as pool:
        bodies = [opening(f"agent {n}", user="same") for n in range(4)]
        for _ in range(2):
            for at, body in enumerate(bodies):
                bodies[at] = continued(body, await pool.turn(body, x_session_id="one"))
        plans = [fact.plan for fact in pool.facts if hasattr(fact, "plan")]
        assert plans == ["cold"] * 4 + ["local"] * 4
        pool.sound()


async def test_a_query_string_is_taken() -> None:
    async with http_pool() as pool:
        answer = await pool.http.post(f"{CHAT}?beta=true", json={"model": MODEL, "messages": [user("hi")]})
        assert answer.status_code == 200
        assert [one.path for one in legs(pool.d)] == [CHAT]
