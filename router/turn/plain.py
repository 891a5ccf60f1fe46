"""Messages of texts alone, in their canonical form without a look into the texts. Pure.

Nearly all of a long history is texts, and most clients write them as the canonical form does: such a text is
taken as it stands. It gives the very bytes that ``canonical`` and ``encode`` give; what they may write in
another way (see ``_SPELLED`` and the members of ``PlainMessage``) is theirs to read.
"""

import re
from typing import Final

import msgspec

from router.turn.canonical import BILLING_HEADER

NO_TEXT: Final = msgspec.Raw()
_SPELLED: Final = re.compile(rb"\\[u/]")
"""Escapes that something else may stand for. All others are the only way to write their character: a control
character cannot stand in a text as it is."""
_SURELY_SPELLED: Final = re.compile(rb"(?:[^\\]*+\\[^u/])*+[^\\]*+\\[u/]")
"""The same, from outside of a text on: there an escaped backslash before such a letter is told from it."""
_NULL: Final = b'{"content":null'
_BILLED: Final = BILLING_HEADER.encode()


class _Function(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    arguments: str
    name: str


class _Call(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False, kw_only=True):
    # Members that have to be there: many calls in few bytes would cost more than those bytes as a text.
    function: _Function
    id: str
    type: str | None = None


class PlainMessage(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False, kw_only=True):
    """A message without parts, marks or unknown members. Its members stand in their canonical order."""

    content: msgspec.Raw = NO_TEXT
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    role: str
    tool_call_id: str | None = None
    tool_calls: list[_Call] | None = None

    def names(self) -> list[str]:
        """The members that it has."""
        there = [name for name in self.__struct_fields__[1:] if getattr(self, name) is not None]
        return there if self.content is NO_TEXT else ["content", *there]


_decode: Final = msgspec.json.Decoder(list[PlainMessage]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_plain(messages: bytes) -> tuple[list[PlainMessage], list[bytes]] | None:
    """The messages of a list, and the canonical form of each; None where one is not plain.

    Raises msgspec.DecodeError or UnicodeError for what is no JSON.
    """
    if _SPELLED.search(messages) is not None and _SURELY_SPELLED.match(messages) is not None:
        return None
    try:
        found = _decode(messages)
    except (msgspec.ValidationError, RecursionError):
        return None
    if not messages.isascii():
        messages.decode()  # a text that is taken as it stands has not been looked at
    if any(message.role == "system" for message in found) and _BILLED in messages:
        return None
    encoded = [_encode(message) for message in found]
    # Where there is a content, it stands first.
    for at in [at for at, form in enumerate(encoded) if form[10:12] != b':"']:
        if found[at].content is not NO_TEXT:
            if not encoded[at].startswith(_NULL):
                return None
            found[at].content = NO_TEXT
            encoded[at] = _encode(found[at])
    return found, encoded
