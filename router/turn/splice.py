"""Byte-exact edits of JSON documents.

The router changes a few members of documents that it does not own: a leg's body gets engine parameters, an
answer loses them. Parsing and writing such a document again would change what it does not understand (number
formats, escapes, whitespace, order, duplicate members), so the edits here work on the bytes: find where a
member lies, cut or replace exactly that, leave every other byte.

How it scans. One regular expression per member, in C. A flat container (no container inside) is one token, so
an array of 100,000 token ids costs one match; nested values are skipped bracket by bracket, without
recursion. The time is linear in the document's size.

Python before 3.11.5 does not step back when an iteration of a possessive group (`(?:...)*+`) fails half-way
(gh-106052), and Debian 12 ships 3.11.2. Hence the only possessive group here is the one in `_STRING`, whose
iterations fail half-way at the document's end only; the others are bounded, so that what they remember is
bounded too.

What it checks. The structure of the object that is asked for, and that brackets and strings inside its values
close properly. It does not validate nested values any further: a document that is not JSON deep inside may
pass.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_SPACE = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
# The non-finite numbers are no JSON, but Python's json module writes and reads them.
_SCALAR = rb"true|false|null|NaN|-?Infinity|-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?"
_FLAT_ARRAY = rb'\[[^"\[\]{}]*+\]'
_FLAT_OBJECT = rb'\{(?:[^"\[\]{}]++|' + _STRING + rb"){0,64}\}"
_SIMPLE = rb"|".join((_STRING, _SCALAR, _FLAT_ARRAY, _FLAT_OBJECT))

_KEY = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_VALUE = re.compile(rb"(" + _SIMPLE + rb")" + _SPACE + rb"([,\]}])", re.DOTALL)
_MEMBER = re.compile(_KEY.pattern + _VALUE.pattern, re.DOTALL)
_SKIP = re.compile(
    rb'(?:[^"\[\]{}]++|' + rb"|".join((_STRING, _FLAT_ARRAY, _FLAT_OBJECT)) + rb"){0,500}([\[\]{}])?",
    re.DOTALL,
)
_FOLLOW = re.compile(_SPACE + rb"([,\]}])")
_BLANK = re.compile(_SPACE)

_CLOSER = {b"{": b"}", b"[": b"]"}


class Member(NamedTuple):
    """Where one member of an object lies: `document[start:end]`, its value at `document[value_start:end]`."""

    key: str
    start: int
    value_start: int
    end: int


class Edit(NamedTuple):
    """Replace `document[start:end]` by `content` (empty: cut it out)."""

    start: int
    end: int
    content: bytes = b""


def members(document: bytes, start: int = 0, end: int | None = None) -> list[Member]:
    """The members of the object that `document[start:end]` is, in their order, duplicates included.

    Offsets are those of the document. Raises `ValueError` when that part is not one JSON object with nothing
    but whitespace around it.
    """
    end = len(document) if end is None else end
    at = _open(document, start, end, b"{")
    found: list[Member] = []
    if document.startswith(b"}", _after_blank(document, at, end)):
        _only_blank(document, _after_blank(document, at, end) + 1, end)
        return found
    while True:
        match = _MEMBER.match(document, at, end)
        if match is not None:
            key_start, value_start, value_end, follow, after = (
                match.start(1),
                match.start(2),
                match.end(2),
                match[3],
                match.end(),
            )
            key = match[1]
        else:
            match = _KEY.match(document, at, end)
            if match is None:
                raise ValueError(f"not a JSON object: no member at byte {at}")
            key, key_start, value_start = match[1], match.start(1), match.end()
            value_end, follow, after = _nested(document, value_start, end)
        found.append(Member(_text(key), key_start, value_start, value_end))
        if follow == b"}":
            _only_blank(document, after, end)
            return found
        if follow != b",":
            raise ValueError(f"not a JSON object: {follow!r} after byte {value_end}")
        at = after


def elements(document: bytes, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Start and end of each element of the array that `document[start:end]` is.

    Raises `ValueError` when that part is not one JSON array with nothing but whitespace around it.
    """
    end = len(document) if end is None else end
    at = _after_blank(document, _open(document, start, end, b"["), end)
    found: list[tuple[int, int]] = []
    if document.startswith(b"]", at):
        _only_blank(document, at + 1, end)
        return found
    while True:
        match = _VALUE.match(document, at, end)
        if match is not None:
            value_end, follow, after = match.end(1), match[2], match.end()
        else:
            value_end, follow, after = _nested(document, at, end)
        found.append((at, value_end))
        if follow == b"]":
            _only_blank(document, after, end)
            return found
        if follow != b",":
            raise ValueError(f"not a JSON array: {follow!r} after byte {value_end}")
        at = _after_blank(document, after, end)


def removal(document: bytes, found: list[Member], doomed: Collection[int]) -> list[Edit]:
    """The edits that take the members with the indexes `doomed` out of an object, each with one comma.

    `found` is what `members` gave for the object. A member goes with the comma after it; the members at the
    object's end go with the comma before them. Whitespace between a member and its comma goes too, all other
    whitespace stays.
    """
    edits: list[Edit] = []
    kept = [index for index in range(len(found)) if index not in doomed]
    last_kept = kept[-1] if kept else None
    for index in sorted(doomed):
        if last_kept is None or index > last_kept:
            break
        edits.append(Edit(found[index].start, document.index(b",", found[index].end) + 1))
    if doomed and last_kept is None:
        edits.append(Edit(found[0].start, found[-1].end))
    elif last_kept is not None and last_kept < len(found) - 1:
        edits.append(Edit(document.index(b",", found[last_kept].end), found[-1].end))
    return edits


def apply(document: bytes, edits: Iterable[Edit]) -> bytes:
    """The document with all edits made. They may come in any order but must not overlap (`ValueError`)."""
    parts: list[bytes] = []
    at = 0
    for start, end, content in sorted(edits):
        if start < at:
            raise ValueError(f"edits overlap at byte {start}")
        parts += (document[at:start], content)
        at = end
    parts.append(document[at:])
    return b"".join(parts)


def drop(document: bytes, names: Collection[str]) -> bytes:
    """The document without the top-level members called one of `names`; the same object if there is none.

    Raises `ValueError` when the document is not a JSON object.
    """
    edits = _drops(document, 0, len(document), names)
    return apply(document, edits) if edits else document


def drop_inside(document: bytes, array: str, names: Collection[str]) -> bytes:
    """The document without the members called one of `names` in the objects of the top-level array `array`.

    `drop_inside(answer, "choices", {"token_ids"})` removes every `choices[i].token_ids`. A member `array`
    that is no array, and elements that are no objects, stay as they are. Returns the same object if there is
    nothing to remove; raises `ValueError` when the document is not a JSON object.
    """
    edits: list[Edit] = []
    for member in members(document):
        if member.key == array:
            for start, end in objects(document, member):
                edits += _drops(document, start, end, names)
    return apply(document, edits) if edits else document


def objects(document: bytes, member: Member) -> list[tuple[int, int]]:
    """Start and end of the objects in a member's array; empty when its value is no array."""
    if not document.startswith(b"[", member.value_start):
        return []
    spans = elements(document, member.value_start, member.end)
    return [span for span in spans if document.startswith(b"{", span[0])]


def put(document: bytes, values: Mapping[str, bytes]) -> bytes:
    """The document with each of the top-level members set to a value, given as JSON bytes and used as it
    comes.

    A member that is there keeps its place and gets the new value, and duplicates of it go; the others are
    added at the end, in the order given. Raises `ValueError` when the document is not a JSON object.
    """
    found = members(document)
    edits: list[Edit] = []
    placed: set[str] = set()
    duplicates: set[int] = set()
    for index, member in enumerate(found):
        if member.key in placed:
            duplicates.add(index)
        elif member.key in values:
            placed.add(member.key)
            edits.append(Edit(member.value_start, member.end, values[member.key]))
    edits += removal(document, found, duplicates)
    added = [json.dumps(key).encode() + b":" + value for key, value in values.items() if key not in placed]
    if added:
        # Just before the closing brace: a cut may end at the last member's end, and equal starts would be
        # ambiguous.
        at = document.rindex(b"}")
        edits.append(Edit(at, at, (b"," if found else b"") + b",".join(added)))
    return apply(document, edits)


def _drops(document: bytes, start: int, end: int, names: Collection[str]) -> list[Edit]:
    found = members(document, start, end)
    return removal(document, found, {index for index, member in enumerate(found) if member.key in names})


def _nested(document: bytes, at: int, end: int) -> tuple[int, bytes, int]:
    """Skips a value that is a container with containers inside; gives its end, what follows, and the end of
    that."""
    opener = document[at : at + 1]
    if opener not in _CLOSER:
        raise ValueError(f"not JSON: no value at byte {at}")
    open_brackets = [_CLOSER[opener]]
    at += 1
    while open_brackets:
        match = _SKIP.match(document, at, end)
        if match is None or match.end() == at:
            raise ValueError("not JSON: it ends inside a value")
        bracket, at = match[1], match.end()
        if bracket is None:
            continue
        closer = _CLOSER.get(bracket)
        if closer is not None:
            open_brackets.append(closer)
        elif open_brackets.pop() != bracket:
            raise ValueError(f"not JSON: {bracket!r} closes nothing at byte {at - 1}")
    follow = _FOLLOW.match(document, at, end)
    if follow is None:
        raise ValueError(f"not JSON: neither a comma nor a closing bracket after byte {at}")
    return at, follow[1], follow.end()


def _text(key: bytes) -> str:
    if b"\\" not in key:
        return key[1:-1].decode()
    text: str = json.loads(key, strict=False)
    return text


def _open(document: bytes, start: int, end: int, bracket: bytes) -> int:
    at = _after_blank(document, start, end)
    if at >= end or not document.startswith(bracket, at):
        raise ValueError(f"not JSON that begins with {bracket!r}")
    return at + 1


def _after_blank(document: bytes, at: int, end: int) -> int:
    match = _BLANK.match(document, at, end)
    return at if match is None else match.end()


def _only_blank(document: bytes, at: int, end: int) -> None:
    if _after_blank(document, at, end) != end:
        raise ValueError(f"not JSON: something follows its end at byte {at}")
