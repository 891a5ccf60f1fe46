"""What of an engine's answer is not for the client: where it is in a JSON document, and how it is taken out.

`router/turn/tap` says when that is looked for, and what the client gets instead. Bytes in, edits out; nothing
is kept.
"""

from typing import Final, NamedTuple

from router.turn.reading import EMPTY
from router.turn.splice import Edit, Member, members, objects, removal
from router.turn.sse import DEFAULT_MAX_EVENT_BYTES
from router.values import value

PRIVATE_MARK: Final = b"_transfer_params"
"""In every name of a private member that is written without an escape."""
PARAMS_BEGIN: Final = b'"kv_transfer_params":'
ESCAPED_ASCII: Final = b"\\u00"
"""With which every escape of an ASCII letter begins."""
_PARAMS = "kv_transfer_params"
_PRIVATE = frozenset({_PARAMS, "ec_transfer_params"})
_TOKEN_IDS = frozenset({"token_ids", "prompt_token_ids"})
# What every chunk of an OpenAI stream carries, whatever it is for.
_ENVELOPE = frozenset({"id", "object", "created", "model", "system_fingerprint", "service_tier"})


@value(kw_only=True)
class TapSettings:
    """What to lift, and what to leave in the client's answer.

    `lift_token_ids`: read prompt and answer token ids. `hide_token_ids`: the router asked for them, the
    client did not. `expose_params`: the operator wants clients to see the engine's transfer parameters.
    """

    lift_token_ids: bool = False
    hide_token_ids: bool = False
    expose_params: bool = False
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES


class Private(NamedTuple):
    """A document's members, its parameters, and the edits that hide what is private in it."""

    found: list[Member]
    params: bytes | None
    edits: list[Edit]


def may_hold_params(document: bytes) -> bool:
    """Whether a member for transfer parameters may be in it; surely none is after False."""
    return document.find(PRIVATE_MARK) >= 0 or document.find(ESCAPED_ASCII) >= 0


def only_params(document: bytes, params: bytes) -> int | None:
    """Where the value of the one member lies that is private in a document; None where it may be another.

    ``params`` is what a parser read in ``kv_transfer_params`` of the document itself. Where its bytes mention
    such a name only once, and nothing in them is written with an escape, that is this member.
    """
    if document.count(PRIVATE_MARK) != 1 or document.find(ESCAPED_ASCII) >= 0:
        return None
    start = document.find(PARAMS_BEGIN) + len(PARAMS_BEGIN)
    return start if start >= len(PARAMS_BEGIN) and document.startswith(params, start) else None


def may_need_edits(document: bytes, settings: TapSettings) -> bool:
    """Whether something private may be in it; surely nothing is after False."""
    return may_hold_params(document) or (settings.hide_token_ids and document.find(b"token_ids") >= 0)


def find_private(document: bytes, settings: TapSettings, *, blank: bool) -> Private:
    """Finds what is private. The parameters are cut out, or set to null where `blank`.

    Raises `ValueError` when the document is not a JSON object.
    """
    found = members(document)
    params: bytes | None = None
    edits: list[Edit] = []
    cut: set[int] = set()
    for index, member in enumerate(found):
        if member.key in _PRIVATE:
            value = document[member.value_start : member.end]
            if value == b"null":
                continue
            if member.key == _PARAMS:
                params = value
            if settings.expose_params:
                continue
            if blank:
                edits.append(_nulled(member))
            else:
                cut.add(index)
        elif settings.hide_token_ids and member.key == "choices":
            for span in objects(document, member):
                edits += _hidden_ids(document, members(document, *span))
        elif settings.hide_token_ids and member.key in _TOKEN_IDS:
            edits += _hidden_ids(document, [member])
    return Private(found, params, edits + removal(document, found, cut))


def _hidden_ids(document: bytes, found: list[Member]) -> list[Edit]:
    return [
        _nulled(member)
        for member in found
        if member.key in _TOKEN_IDS and document[member.value_start : member.end] != b"null"
    ]


def _nulled(member: Member) -> Edit:
    return Edit(member.value_start, member.end, b"null")


def nothing_left(document: bytes, found: list[Member], settings: TapSettings) -> bool:
    """Whether an event would tell the client nothing once what is private is out of it.

    Such an event is only sent for the router: a plugin's chunk with the handle and `choices: []`, on which a
    client that indexes `choices[0]` breaks, or the chunk with an empty delta that vLLM (0.32) adds for tokens
    without text where token ids are asked for. A chunk with usage tells something, so it stays.
    """
    for member in found:
        if member.key in _ENVELOPE or _is_empty(document, member):
            continue
        if member.key in _PRIVATE and not settings.expose_params:
            continue
        if member.key in _TOKEN_IDS and settings.hide_token_ids:
            continue
        spans = objects(document, member) if member.key == "choices" else []
        if not spans or not all(_is_idle_choice(document, members(document, *span)) for span in spans):
            return False
    return True


def _is_idle_choice(document: bytes, found: list[Member]) -> bool:
    return any(member.key == "delta" for member in found) and all(
        member.key == "index" or member.key in _TOKEN_IDS or _is_empty(document, member) for member in found
    )


def _is_empty(document: bytes, member: Member) -> bool:
    # Whitespace may make an empty container longer, but nobody writes that much of it.
    value = document[member.value_start : min(member.end, member.value_start + 16)]
    return value in EMPTY or (value[:1] in (b"[", b"{") and b"".join(value.split()) in EMPTY)


def in_event(edits: list[Edit], spans: list[tuple[int, int]]) -> list[Edit]:
    """Edits of an event's data, as edits of its bytes. The lines of the event stay, only their values change.

    A line end inside of what is edited stays: in JSON it can only be whitespace between tokens.
    """
    moved: list[Edit] = []
    for start, end, content in edits:
        left = content
        line_at = 0
        for line_start, line_end in spans:
            length = line_end - line_start
            low, high = max(start - line_at, 0), min(end - line_at, length)
            if low < high:
                moved.append(Edit(line_start + low, line_start + high, left))
                left = b""
            line_at += length + 1
    return moved
