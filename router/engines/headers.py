"""What may stand in an HTTP header (RFC 9110, 5.5 and 5.6.2), for both sides of the router. Pure."""

import re
from collections.abc import Sequence
from typing import Final

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def is_token(text: str) -> bool:
    """Whether ``text`` may be a header's name, or a method."""
    return _TOKEN.fullmatch(text) is not None


def is_header(name: str, value: str) -> bool:
    """Whether these are one header on the wire, and no more than one."""
    return is_token(name) and _CONTROL.search(value) is None


def are_headers(headers: Sequence[tuple[str, str]]) -> bool:
    """Whether each of them is one; ``is_header`` tells of one that is not."""
    # Names run together are a name, and values run together hold what one of them holds.
    names = [name for name, _ in headers]
    return (
        all(names)
        and (not names or is_token("".join(names)))
        and _CONTROL.search("".join([value for _, value in headers])) is None
    )


def as_utf8(value: str) -> str:
    """Header text is bytes read as ISO-8859-1; a writer of UTF-8 is to keep UTF-8 as the bytes it was."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value
