"""The three wrapped methods together: what P would read, what D returns, and who is told."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from stand_in import BLOCK, HASHES, SCHEDULER, PullScheduler, Request, module

from boomerang_vllm import check, scheduler
from boomerang_vllm.settings import Settings

PROMPT = list(range(1000, 1300))
ANSWER = list(range(50))
HELD = len(PROMPT) + len(ANSWER) - 1
COLD: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}


@pytest.fixture(autouse=True)
def hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, HASHES, NONE_HASH=b"the first value of all chains")


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Schedulers with the plugin, by its settings."""

    def wrapped(settings: Settings | None = None, **shape: Any) -> PullScheduler:
        names = ("get_num_new_matched_tokens", "update_state_after_alloc", "request_finished")
        cls = type("Wrapped", (PullScheduler,), {name: getattr(PullScheduler, name) for name in names})
        module(monkeypatch, SCHEDULER, NixlPullConnectorScheduler=cls)
        assert scheduler.install(settings or Settings())
        made: PullScheduler = cls(**shape)
        return made

    return wrapped


def block_ids(tokens: int) -> list[list[int]]:
    return [list(range(200, 200 - -(-tokens // BLOCK), -1))]


def over_the_wire(params: Any) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(params))
    return copied


def prefill(
    node: PullScheduler, prompt: list[int], params: dict[str, Any], **more: Any
) -> tuple[int, dict[str, Any] | None, Request]:
    """A prefill leg: tokens read from D, P's own params, and the request."""
    request = Request(prompt, over_the_wire(params), **more)
    count, _ = node.get_num_new_matched_tokens(request, 0)
    node.update_state_after_alloc(request, None, count)
    request.output = [1]
    _, returned = node.request_finished(request, block_ids(len(prompt)))
    return count, returned, request


def decode(node: PullScheduler, params: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """A decode leg to its end: the handle, as it goes over the wire."""
    request = Request(PROMPT, params, list(ANSWER), **more)
    if params:
        params["do_remote_prefill"] = False
    delayed, returned = node.request_finished(request, block_ids(HELD + request.ahead))
    assert delayed
    return over_the_wire(returned)


def exchange(p: PullScheduler, d: PullScheduler, **more: Any) -> dict[str, Any]:
    """A first turn through both: the handle."""
    _, params, _ = prefill(p, PROMPT, COLD, **more)
    assert params is not None
    return decode(d, over_the_wire(params), **more)


def test_the_next_turn_reads_all_that_is_held(make: Any) -> None:
    handle = exchange(make(), make())
    count, params, _ = prefill(make(), [*PROMPT, *ANSWER, 7], handle)
    assert count == HELD
    assert params is not None
    assert params["boomerang"]["verified_tokens"] == count


def test_p_tells_what_it_did_not_compute_where_its_engine_does_not(make: Any) -> None:
    p = make()
    handle = exchange(p, make())
    request = Request([*PROMPT, *ANSWER, 7], over_the_wire(handle))
    own = 2 * BLOCK
    count, _ = p.get_num_new_matched_tokens(request, own)
    p.update_state_after_alloc(request, None, count)
    # Preempted after the read: what it then lacks is computed, and what was read stays told.
    assert p.get_num_new_matched_tokens(request, 0) == (0, False)
    _, params = p.request_finished(request, block_ids(len(request.prompt)))
    assert params is not None
    assert params["remote_prefill_cached_tokens"] == own + count == HELD
    cold, params, _ = prefill(p, PROMPT, COLD)
    assert params is not None
    assert params["remote_prefill_cached_tokens"] == cold == 0


def test_the_tokens_past_the_last_full_block_are_compared_too(make: Any) -> None:
    handle = exchange(make(), make())
    prompt = [*PROMPT, *ANSWER, 7]
    prompt[HELD - 1] += 1
    assert prefill(make(), prompt, handle)[0] == HELD // BLOCK * BLOCK


def test_with_token_digests_it_is_all_to_the_last_token(make: Any) -> None:
    settings = Settings(digests="tokens")
    handle = exchange(make(settings), make(settings))
    assert handle["boomerang"]["kind"] == "tokens"
    assert prefill(make(settings), [*PROMPT, *ANSWER, 7], handle)[0] == HELD


def test_a_stamp_says_how_long_and_in_which_blocks(make: Any) -> None:
    stamp = exchange(make(), make())["boomerang"]
    assert (stamp["ttl_s"], stamp["block_size"], stamp["tokens"]) == (480.0, BLOCK, HELD)


@pytest.mark.parametrize("digests", ["auto", "tokens"])
def test_another_prompt_reads_nothing_and_d_is_told(make: Any, digests: str) -> None:
    settings = Settings(digests=digests)
    p = make(settings)
    count, params, request = prefill(p, [5] * 500, exchange(make(settings), make(settings)))
    assert count == 0
    assert p._reqs_need_recv == {request.request_id: ()}
    assert params is not None
    assert params["boomerang"]["verified_tokens"] == 0
    assert params["boomerang"]["reason"] == "another prompt"


@pytest.mark.parametrize(("digests", "kept"), [("auto", 128), ("tokens", 128)])
def test_an_edited_history_reads_what_is_common_in_the_order_it_was(
    make: Any, digests: str, kept: int
) -> None:
    settings = Settings(digests=digests)
    handle = exchange(make(settings), make(settings))
    prompt = [*PROMPT[:200], 9, *PROMPT[201:], *ANSWER, 7]
    p = make(settings)
    count, _, request = prefill(p, prompt, handle)
    assert count == kept
    assert p._reqs_need_recv[request.request_id] == [handle["remote_block_ids"][0][: kept // BLOCK]]


def test_every_prefill_leg_says_that_it_verifies(make: Any) -> None:
    _, params, _ = prefill(make(), PROMPT, COLD)
    assert params is not None
    report = params["boomerang"]
    assert (report["v"], report["verified_tokens"], report["bidirectional"]) == (1, 0, True)
    assert "reason" not in report


def test_without_the_part_nothing_is_said_or_cut(make: Any) -> None:
    handle = exchange(make(), make())
    count, params, _ = prefill(make(Settings(frozenset({"stamp"}))), [5] * 500, handle)
    assert count == HELD  # the wrong KV, as on a stock engine
    assert params is not None
    assert "boomerang" not in params


def test_it_is_asked_more_than_once_and_checked_once(make: Any) -> None:
    p, handle = make(), exchange(make(), make())
    request = Request([*PROMPT[:200], 9, *PROMPT[201:]], handle)
    first = p.get_num_new_matched_tokens(request, 0)
    assert p.get_num_new_matched_tokens(request, 0) == first == (128, True)


def test_a_preempted_read_is_not_counted_on_again(make: Any) -> None:
    p, handle = make(), exchange(make(), make())
    request = Request([*PROMPT, *ANSWER, 7], handle)
    count, _ = p.get_num_new_matched_tokens(request, 0)
    p.update_state_after_alloc(request, None, count)
    assert p.get_num_new_matched_tokens(request, 0) == (0, False)


def test_a_node_that_is_not_bidirectional_ignores_a_handle(make: Any) -> None:
    handle = exchange(make(), make())
    count, params, _ = prefill(make(bidirectional=False), [*PROMPT, *ANSWER, 7], handle)
    assert count == 0
    assert params is not None
    assert params["boomerang"]["bidirectional"] is False


def test_a_node_with_a_host_buffer_ignores_a_handle(make: Any) -> None:
    p, handle = make(), exchange(make(), make())
    p.use_host_buffer = True
    assert prefill(p, [*PROMPT, *ANSWER, 7], handle)[0] == 0


@pytest.mark.parametrize(("unstamped", "read"), [("pass", HELD), ("refuse", 0)])
def test_a_handle_without_a_stamp(make: Any, unstamped: str, read: int) -> None:
    handle = exchange(make(), make())
    del handle["boomerang"]
    p = make(Settings(unstamped=unstamped))
    count, params, request = prefill(p, [*PROMPT, *ANSWER, 7], handle)
    assert count == read
    assert request.request_id in p._reqs_need_recv
    assert params is not None
    assert params["boomerang"]["verified_tokens"] == 0


# -- which digests are stamped ----------------------------------------------------------------------------


def test_the_engines_hashes_are_stamped_for_a_p_that_hashes_alike(make: Any) -> None:
    assert exchange(make(), make())["boomerang"]["kind"] == "blocks"


@pytest.mark.parametrize("algorithm", ["xxhash", "sha256_cbor"])
def test_token_digests_for_one_that_does_not(make: Any, algorithm: str) -> None:
    handle = exchange(make(algorithm=algorithm), make())
    assert handle["boomerang"]["kind"] == "tokens"
    assert prefill(make(algorithm=algorithm), [*PROMPT, *ANSWER, 7], handle)[0] == HELD


def test_token_digests_for_one_without_the_plugin(make: Any) -> None:
    _, params, _ = prefill(PullScheduler(), PROMPT, COLD)
    assert params is not None
    assert decode(make(), params)["boomerang"]["kind"] == "tokens"


def test_a_salt_is_no_part_of_the_tokens(make: Any) -> None:
    handle = exchange(make(), make(), cache_salt="a salt of one turn")
    assert handle["boomerang"]["kind"] == "tokens"
    assert prefill(make(), [*PROMPT, *ANSWER, 7], handle)[0] == HELD


def test_hashes_of_another_block_size_are_not_stamped(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    d, p = make(), make()
    for node in (d, p):
        node.kv_cache_config.hash_block_size = 8
    handle = exchange(p, d)
    assert handle["boomerang"]["kind"] == "tokens"
    assert "not as expected" in caplog.text


def test_another_lora_reads_nothing(make: Any) -> None:
    settings = Settings(digests="tokens")
    one, two = (SimpleNamespace(lora_name=name, lora_path=f"/{name}") for name in ("one", "two"))
    handle = exchange(make(settings), make(settings), lora_request=one)
    assert prefill(make(settings), [*PROMPT, *ANSWER, 7], handle, lora_request=two)[0] == 0
    assert prefill(make(settings), [*PROMPT, *ANSWER, 7], handle)[0] == 0
    assert prefill(make(settings), [*PROMPT, *ANSWER, 7], handle, lora_request=one)[0] == HELD


def picture(name: str | None, at: int) -> Any:
    place = SimpleNamespace(offset=at, length=40)
    return SimpleNamespace(identifier=name, modality="image", mm_position=place)


def test_another_picture_past_the_last_full_block(make: Any) -> None:
    handle = exchange(make(), make(), mm_features=[picture("cat", 340)])
    assert handle["boomerang"]["kind"] == "blocks"
    prompt = [*PROMPT, *ANSWER, 7]
    assert prefill(make(), prompt, handle, mm_features=[picture("cat", 340)])[0] == HELD
    assert prefill(make(), prompt, handle, mm_features=[picture("dog", 340)])[0] == HELD // BLOCK * BLOCK


def test_another_picture_reads_what_is_before_it(make: Any) -> None:
    settings = Settings(digests="tokens")
    handle = exchange(make(settings), make(settings), mm_features=[picture("cat", 150)])
    prompt = [*PROMPT, *ANSWER, 7]
    assert prefill(make(settings), prompt, handle, mm_features=[picture("dog", 150)])[0] == 128
    assert prefill(make(settings), prompt, handle, mm_features=[picture("cat", 151)])[0] == 128
    assert prefill(make(settings), prompt, handle)[0] == 128
    assert prefill(make(settings), prompt, handle, mm_features=[picture("cat", 150)])[0] == HELD


@pytest.mark.parametrize(
    "more",
    [{"prompt_embeds": object()}, {"resumable": True}, {"mm_features": [picture(None, 10)]}],
    ids=["embeddings", "session", "picture without a name"],
)
def test_what_cannot_be_told_is_not_stamped(make: Any, more: dict[str, Any]) -> None:
    assert "boomerang" not in exchange(
        make(Settings(digests="tokens")), make(Settings(digests="tokens")), **more
    )


# -- only real tokens -------------------------------------------------------------------------------------


def test_positions_computed_ahead_are_taken_off(make: Any) -> None:
    handle = exchange(make(), make(), ahead=1, num_in_flight_tokens=1)
    assert handle["remote_num_tokens"] == handle["boomerang"]["tokens"] == HELD


def test_so_are_their_blocks(make: Any) -> None:
    ahead = -HELD % BLOCK + 1  # into a block of its own
    handle = exchange(make(), make(), ahead=ahead, num_in_flight_tokens=ahead)
    assert handle["remote_num_tokens"] == HELD
    assert len(handle["remote_block_ids"][0]) == -(-HELD // BLOCK)


def test_rejected_tokens_that_are_not_in_flight(make: Any) -> None:
    assert exchange(make(), make(), ahead=3)["boomerang"]["tokens"] == HELD


# -- release and stay -------------------------------------------------------------------------------------


def test_a_release_leg_pins_nothing_and_d_is_told(make: Any) -> None:
    p, handle = make(), exchange(make(), make())
    prefill(p, [*PROMPT, *ANSWER, 7], handle)
    p._reqs_need_recv.clear()
    count, params, request = prefill(p, [1], handle)
    assert (count, params) == (0, None)
    assert p._reqs_need_recv == {request.request_id: ()}
    assert p._reqs_not_processed == {request.request_id}


def test_the_first_release_to_a_d_keeps_its_lease_until_they_have_met(make: Any) -> None:
    p, handle = make(), exchange(make(), make())
    assert prefill(p, [1], handle)[1] is not None
    assert prefill(p, [1], handle)[1] is None
    other = handle | {"remote_engine_id": "another"}
    assert prefill(p, [1], other)[1] is not None


def test_a_prompt_of_one_token_without_a_handle_is_none(make: Any) -> None:
    assert prefill(make(), [1], COLD)[1] is not None


def test_a_turn_that_asks_to_stay_gets_a_handle_that_ends(make: Any) -> None:
    d = make()
    request = Request(PROMPT, None, extra_args={"boomerang_stay": 1})
    assert d.get_num_new_matched_tokens(request, 0) == (0, False)
    d.update_state_after_alloc(request, None, 0)
    request.output = list(ANSWER)
    delayed, handle = d.request_finished(request, block_ids(HELD))
    assert delayed
    assert d._reqs_in_batch == {request.request_id}
    assert prefill(make(), [*PROMPT, *ANSWER, 7], over_the_wire(handle))[0] == HELD


@pytest.mark.parametrize("extra_args", [None, {}, {"boomerang_stay": 0}, {"boomerang_stay": "no"}])
def test_a_turn_that_does_not_ask_gets_none(make: Any, extra_args: dict[str, Any] | None) -> None:
    d = make()
    request = Request(PROMPT, None, extra_args=extra_args)
    d.get_num_new_matched_tokens(request, 0)
    d.update_state_after_alloc(request, None, 0)
    assert request.kv_transfer_params is None
    assert not d._reqs_in_batch


# -- an engine that is not as expected --------------------------------------------------------------------


def test_without_its_attributes_the_engine_goes_on_by_itself(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    handle = exchange(make(), make())
    p, d = make(), make()
    del p.decoder_kv_blocks_ttl, d.decoder_kv_blocks_ttl
    count, params, _ = prefill(p, [*PROMPT, *ANSWER, 7], handle)
    assert count == HELD
    assert params is not None
    assert "boomerang" not in params  # so the router knows that it was not verified
    assert "boomerang" not in decode(d, params)
    assert "decoder_kv_blocks_ttl" in caplog.text


def test_a_check_that_fails_reads_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    p, handle = make(), exchange(make(), make())

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of the plugin")

    monkeypatch.setattr(check, "check", broken)
    assert prefill(p, [*PROMPT, *ANSWER, 7], handle)[0] == 0
    assert "a fault of the plugin" in caplog.text


def test_a_missing_method_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> None: ...

    module(monkeypatch, SCHEDULER, NixlPullConnectorScheduler=Other)
    before = Other.get_num_new_matched_tokens
    assert scheduler.install(Settings()) is False
    assert Other.get_num_new_matched_tokens is before
