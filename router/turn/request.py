"""A client's request, read once: top-level members as raw JSON, and the few values decisions need. Pure."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from router.turn.members import (
    XARGS_FIELD,
    InvalidRequest,
    Members,
    decode_members,
    flag,
    small,
    without_steering,
)
from router.values import value


class Endpoint(StrEnum):
    """What kind of request it is, which is also what it is to be split like."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    OTHER = "other"
    """An endpoint whose answers are not proven to carry a handle; always one node."""


class Unsplit(StrEnum):
    """Why a request runs on one node: prefill and decode cannot share it soundly."""

    ENDPOINT = "endpoint"
    CHOICES = "n"
    BEST_OF = "best_of"
    BEAM_SEARCH = "beam_search"
    PROMPT_LIST = "prompt_list"
    ECHO_LOGPROBS = "echo_logprobs"
    TRUNCATION = "truncation"
    """It is cut to what the answer leaves room for, and P, asked for one token, would cut another one."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    PROMPT_EMBEDS = "prompt_embeds"


@value
class Request:
    """One request of a client. ``members`` are what it may say to an engine, each with its own bytes."""

    endpoint: Endpoint
    path: str
    headers: tuple[tuple[str, str], ...]
    """All that came, names in lower case."""
    members: Members
    model: str
    stream: bool
    wants_token_ids: bool
    """The client itself asked for ``return_token_ids``."""
    unsplit: Unsplit | None
    turn_id: str
    """Ours; unique."""
    client_id: str
    """The client's ``x-request-id``, else ours; echoed, never sent to an engine."""
    conversation: str = ""
    """The client's id for the conversation: a hint."""
    query: str = ""
    """The query string, without its question mark."""
    size_bytes: int = 0
    """Of the body, as it came."""

    @property
    def target(self) -> str:
        """Path and query, as both legs ask for them."""
        return f"{self.path}?{self.query}" if self.query else self.path


_LIST_OF_NO_IDS: Final = re.compile(rb"\[[ \t\n\r]*[^-0-9\] \t\n\r]")


def _is_prompt_list(prompt: msgspec.Raw | None) -> bool:
    """Whether ``prompt`` is several prompts; a list of token ids is one."""
    return prompt is not None and _LIST_OF_NO_IDS.match(memoryview(prompt)) is not None


_MAY_FORBID: Final = frozenset(
    {
        "n",
        "best_of",
        "use_beam_search",
        "prompt_logprobs",
        "prompt_embeds",
        "prompt",
        "echo",
        "truncate_prompt_tokens",
    }
)
"""Members that have to be there for a request to be one that cannot be split."""


def unsplit_reason(endpoint: Endpoint, members: Mapping[str, msgspec.Raw]) -> Unsplit | None:
    """Why this request cannot be split, None where it can.

    A value that is not understood counts as one that forbids it: one node answers or refuses such a request.
    """
    if endpoint is Endpoint.OTHER:
        return Unsplit.ENDPOINT
    if _MAY_FORBID.isdisjoint(members):
        return None
    rules: tuple[tuple[Unsplit, bool], ...] = (
        (Unsplit.CHOICES, _present(members, "n") and small(members, "n") != 1),
        (Unsplit.BEST_OF, _present(members, "best_of") and small(members, "best_of") != 1),
        (Unsplit.BEAM_SEARCH, _wanted(members, "use_beam_search")),
        (Unsplit.PROMPT_LOGPROBS, _present(members, "prompt_logprobs")),
        (Unsplit.PROMPT_EMBEDS, _present(members, "prompt_embeds")),
        (Unsplit.PROMPT_LIST, endpoint is Endpoint.COMPLETIONS and _is_prompt_list(members.get("prompt"))),
        (
            Unsplit.ECHO_LOGPROBS,
            # Completions count their log-probabilities: 0 asks for those of the chosen tokens. An echoed chat
            # asks for the prompt's by itself: vLLM takes ``top_logprobs`` for it, which is 0, not null.
            _wanted(members, "echo") and (endpoint is Endpoint.CHAT or _wanted(members, "logprobs")),
        ),
        (Unsplit.TRUNCATION, _present(members, "truncate_prompt_tokens") and not _keeps_a_count(members)),
    )
    return next((reason for reason, applies in rules if applies), None)


def _keeps_a_count(members: Mapping[str, msgspec.Raw]) -> bool:
    """Whether ``truncate_prompt_tokens`` says how many tokens stay.

    To vLLM -1 means as many as the model takes less those of the answer (``TokenizeParams.max_input_tokens``
    in renderers/params.py): another prompt on each leg.
    """
    count = small(members, "truncate_prompt_tokens")
    return isinstance(count, int | float) and count >= 0


def _present(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    raw = members.get(name)
    return raw is not None and bytes(memoryview(raw)[:4]) != b"null"


def _wanted(members: Mapping[str, msgspec.Raw], name: str) -> bool:
    """Whether a member is anything but absent, null or false."""
    return _present(members, name) and small(members, name) is not False


_CLIENT_ID_CHARS: Final = 256


def client_id(headers: Mapping[str, str], turn_id: str) -> str:
    """The client's ``x-request-id``, made safe for headers and logs; ours where it gave none."""
    given = headers.get("x-request-id")
    if not given:
        return turn_id
    return "".join(c for c in given if c.isascii() and c.isprintable())[:_CLIENT_ID_CHARS] or turn_id


_CONVERSATION_HEADERS: Final = (
    "x-session-id",
    "x-conversation-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "x-correlation-id",
)
_ID_HEADERS: Final = frozenset(_CONVERSATION_HEADERS)
_ID_MEMBERS: Final = frozenset({"session_id", "conversation_id", XARGS_FIELD})
"""Where an id may stand: in none of them for most requests."""
_CONVERSATION_CHARS: Final = 128
_DECODE_NAME: Final = msgspec.json.Decoder(str | None).decode


def conversation_hint(headers: Mapping[str, str], members: Mapping[str, msgspec.Raw]) -> str:
    """The client's own id for its conversation, made safe for logs; empty where it gave none.

    ``session_id`` in the body, then ``X-Session-ID``, and ``vllm_xargs.session_id`` last is the order of vLLM
    0.29 and later.
    """
    if _ID_HEADERS.isdisjoint(headers) and _ID_MEMBERS.isdisjoint(members):
        return ""
    for given in _conversation_ids(headers, members):
        if not given:
            continue
        safe = "".join(c for c in given if c.isascii() and c.isprintable()).strip()[:_CONVERSATION_CHARS]
        if safe:
            return safe
    return ""


def _conversation_ids(headers: Mapping[str, str], members: Mapping[str, msgspec.Raw]) -> Iterator[str]:
    yield _text(members, "session_id")
    for name in _CONVERSATION_HEADERS:
        yield headers.get(name, "")
    yield _text(members, "conversation_id")
    if XARGS_FIELD in members:
        try:
            yield _text(msgspec.json.decode(members[XARGS_FIELD], type=Members), "session_id")
        except (msgspec.MsgspecError, RecursionError):
            return


def _text(members: Mapping[str, msgspec.Raw], name: str) -> str:
    """A member that is a text of an id's length, else nothing."""
    raw = members.get(name)
    if raw is None or len(memoryview(raw)) > 2 * _CONVERSATION_CHARS:
        return ""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        return ""


def read_request(
    endpoint: Endpoint,
    path: str,
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    *,
    turn_id: str,
    query: str = "",
) -> Request:
    """Read a request. Raises InvalidRequest for what no engine could answer."""
    given = decode_members(body)
    members = without_steering(given)
    by_name = dict(headers)
    model = members.get("model")
    try:
        name = _DECODE_NAME(model) if model is not None else None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidRequest("model has to be a string", "model") from None
    return Request(
        endpoint=endpoint,
        path=path,
        headers=headers,
        members=members,
        model=name or "",
        stream=flag(members, "stream"),
        wants_token_ids=flag(members, "return_token_ids"),
        unsplit=unsplit_reason(endpoint, members),
        turn_id=turn_id,
        client_id=client_id(by_name, turn_id),
        conversation=conversation_hint(by_name, given),
        query=query,
        size_bytes=len(body),
    )
