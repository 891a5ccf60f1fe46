"""What the body and headers of each leg must and must not carry. Pure.

| member | prefill leg | decode leg | one node |
|---|---|---|---|
| kv_transfer_params | the handle, or ``COLD_PARAMS`` | P's, as they came | never |
| client's kv_transfer_params, ec_transfer_params, request_id | never | never | never |
| conversation_id (private to us) | never | never | never |
| boomerang_stay in vllm_xargs | never | never | where a turn stays on a D with the plugin |
| stream | false | the client's | the client's |
| max_tokens, max_completion_tokens | 1, both: the second wins in vLLM | the client's | the client's |
| stream_options, min_tokens, stop..., logprobs... | removed: no use there | the client's | the client's |
| ignore_eos | true, so that P always returns params | the client's | the client's |
| return_token_ids | true where we compare tokens | true where we keep the answer's tokens | the client's |
| cache_salt | ours added to it, where a cache is not to be trusted | the same | the same |
| all else | as it came | as it came | as it came |

P and D must see the identical prompt, so nothing that shapes it is ever changed on one leg alone.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from router.engines.headers import are_headers, is_header
from router.engines.nixl import PARAMS_FIELD
from router.turn.members import STAY_FIELD, XARGS_FIELD, Members, join
from router.turn.request import Request
from router.turn.traceparent import TRACEPARENT, TRACESTATE, read_traceparent

_NOT_ON_PREFILL: Final = frozenset(
    {
        "stream_options",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "echo",
        "n",
        "best_of",
    }
)

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_TO_ENGINES: Final = _HOP_BY_HOP | {
    "host",
    "content-length",
    "content-type",
    "accept-encoding",
    "expect",
    "x-request-id",
    "x-data-parallel-rank",  # steers the engine's scheduler
    "x-session-final",  # these two are said to us
    "x-boomerang-one-shot",
}
_NOT_TO_CLIENTS: Final = _HOP_BY_HOP | {"content-length", "date", "server", "x-request-id"}

_NONE_NAMED: Final[frozenset[str]] = frozenset()
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_ONE: Final = msgspec.Raw(b"1")
_NOTHING: Final = msgspec.Raw(b"")


def _salted(members: Members, salt: str | None) -> Members:
    """``members`` under a cache salt of ours; a client's own salt stays part of it, and goes on isolating."""
    if salt is None:
        return members
    own = members.get("cache_salt")
    mixed = salt if own is None else f"{salt}:{bytes(own).decode(errors='replace')}"
    return members | {"cache_salt": msgspec.Raw(msgspec.json.encode(mixed))}


def prefill_body(request: Request, params: bytes, *, want_token_ids: bool, salt: str | None = None) -> bytes:
    """The prefill leg's body: one token, not streamed, with ``params`` (raw JSON) for the connector."""
    members = {k: v for k, v in request.members.items() if k not in _NOT_ON_PREFILL}
    members |= {"stream": _FALSE, "max_tokens": _ONE, "ignore_eos": _TRUE}
    if "max_completion_tokens" in members:
        members["max_completion_tokens"] = _ONE
    members["return_token_ids"] = _TRUE if want_token_ids else _FALSE
    members = _salted(members, salt)
    members[PARAMS_FIELD] = msgspec.Raw(params)
    return join(members)


def decode_body(
    request: Request, params: bytes | None, *, want_token_ids: bool, salt: str | None = None
) -> bytes:
    """The decode leg's body: the client's own, with P's params, or without any where P gave none."""
    if params is not None:
        return with_params(
            decode_body_up_to_params(request, want_token_ids=want_token_ids, salt=salt), params
        )
    return join(_decode_members(request, want_token_ids=want_token_ids, salt=salt))


def decode_body_up_to_params(request: Request, *, want_token_ids: bool, salt: str | None = None) -> bytes:
    """All of the decode leg's body that is known before P has answered; ``with_params`` completes it."""
    members = _decode_members(request, want_token_ids=want_token_ids, salt=salt)
    members[PARAMS_FIELD] = _NOTHING
    return join(members)[:-1]


def with_params(body_up_to_params: bytes, params: bytes) -> bytes:
    """A decode leg's body with P's params, as they came."""
    return b"".join((body_up_to_params, params, b"}"))


def _decode_members(request: Request, *, want_token_ids: bool, salt: str | None) -> Members:
    members = dict(request.members)
    if want_token_ids:
        members["return_token_ids"] = _TRUE
    return _salted(members, salt)


def unsplit_body(request: Request, *, salt: str | None = None) -> bytes:
    """The body of a request that one node serves alone: the client's, and no params of any kind.

    Empty or undirected params would pin blocks on D that nothing ever frees.
    """
    return join(_salted(request.members, salt))


def stay_body(request: Request, *, want_token_ids: bool, salt: str | None = None) -> bytes:
    """The body of a turn that stays on a D whose plugin gives it a handle: asked for in ``vllm_xargs``.

    Never in ``kv_transfer_params``: without a direction these pin blocks that nothing ever frees.
    """
    members = dict(request.members)
    given = members.get(XARGS_FIELD)
    try:
        xargs = msgspec.json.decode(given, type=Members) if given is not None else {}
    except msgspec.MsgspecError:
        xargs = None  # null, or for the engine to refuse; the turn then leaves no handle
    if xargs is not None:
        members[XARGS_FIELD] = msgspec.Raw(join({**xargs, STAY_FIELD: _ONE}))
    if want_token_ids:
        members["return_token_ids"] = _TRUE
    return join(_salted(members, salt))


def engine_headers(
    headers: Sequence[tuple[str, str]],
    *,
    leg_id: str,
    api_key: str | None = None,
    rank: int | None = None,
    traceparent: str | None = None,
) -> tuple[tuple[str, str], ...]:
    """Headers of a leg: the client's end-to-end ones, a fresh request id, and our key if it gave none.

    ``rank`` is the data-parallel rank that the leg has to run on: the one that has the KV. ``traceparent`` is
    the leg's own span, where it has one; without it the client's passes.
    """
    named = _named_by_connection(headers)
    if traceparent is not None:
        # What the client's trace state says is said of the trace that the client named, if it could be read.
        is_continued = read_traceparent(headers) is not None
        named |= {TRACEPARENT} if is_continued else {TRACEPARENT, TRACESTATE}
    kept = [(k, v) for k, v in headers if k not in _NOT_TO_ENGINES and k not in named]
    if api_key is not None and not any(k == "authorization" for k, _ in kept):
        kept.append(("authorization", f"Bearer {api_key}"))
    kept += [
        ("content-type", "application/json"),
        ("accept-encoding", "identity"),
        ("x-request-id", leg_id),
    ]
    if traceparent is not None:
        kept.append((TRACEPARENT, traceparent))
    if rank is not None:
        kept.append(("x-data-parallel-rank", str(rank)))
    return tuple(kept)


def client_headers(headers: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """An engine's end-to-end headers, as they go on to the client; the length is for the sender to say.

    What is no header by RFC 9110, section 5, stays behind: our client lets it in, and our server refuses it.
    """
    named = _named_by_connection(headers)
    kept = [(k, v) for k, v in headers if k not in _NOT_TO_CLIENTS and k not in named]
    return kept if are_headers(kept) else [(k, v) for k, v in kept if is_header(k, v)]


def _named_by_connection(headers: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Headers that ``Connection`` declares hop-by-hop."""
    named = [v for k, v in headers if k == "connection"]
    if not named:
        return _NONE_NAMED
    return frozenset(name.strip().lower() for v in named for name in v.split(",") if name.strip())
