"""What the values of settings may be, and how they are read: types and checks that stand in their fields."""

import importlib.util
import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field
from pydantic_settings import NoDecode

from router.engines.headers import is_token
from router.ledger.address import parse_address
from router.origin import parse_dns, parse_ranked_origin

MEMORY: Final = "memory"


def split(value: object) -> object:
    """A list as environment and flags write it: separated by commas. Flags may also repeat."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return value
    split = [piece.strip() for part in parts if isinstance(part, str) for piece in part.split(",")]
    return [piece for piece in split if piece] + [part for part in parts if not isinstance(part, str)]


def no_duplicates(origins: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({origin for origin in origins if origins.count(origin) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is listed more than once")
    return origins


def address(text: str) -> str:
    """An address of nodes in its one spelling: ``ORIGIN``, ``ORIGIN@RANK`` or ``dns://NAME:PORT``."""
    if text.lower().startswith("dns://"):
        host, port = parse_dns(text)
        return f"dns://{host}:{port}"
    origin, rank = parse_ranked_origin(text)
    return origin if rank is None else f"{origin}@{rank}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def store_address(text: str) -> str:
    if text != MEMORY:
        try:
            parse_address(text)
        except ValueError as error:
            raise ValueError(f"'memory' or an address of a Redis server: {error}") from None
    return text


def prefix(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", text) is None:
        raise ValueError("1 to 64 letters, digits and any of . _ : -")
    return text


def header(text: str) -> str:
    if text and not is_token(text):
        raise ValueError("not a valid header name")
    return text.lower()


def collector(text: str) -> str:
    """A collector's address, with the path that OTLP over HTTP has where none is given."""
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("not an address like http://HOST:4318")
    if "@" in parts.netloc:
        raise ValueError("credentials go into OTEL_EXPORTER_OTLP_HEADERS, not into the address")
    if not _has_exporter():
        raise ValueError("needs OpenTelemetry: pip install 'boomerang-router[otel]'")
    return f"{text.rstrip('/')}/v1/traces" if parts.path in ("", "/") else text


def _has_exporter() -> bool:
    try:
        needed = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
        return all(importlib.util.find_spec(name) is not None for name in needed)
    except ModuleNotFoundError:
        return False


def key_in(path: Path) -> str:
    """Raises OSError and ValueError; no text of theirs holds what is in the file."""
    try:
        key = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("the file cannot be read: not plain text") from None
    if not key or len(key.split()) > 1:
        raise ValueError("the file has to hold one key and nothing else")
    return key


def readable(path: Path) -> Path:
    try:
        key_in(path)
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    return path


Origins = Annotated[
    tuple[Annotated[str, AfterValidator(address)], ...],
    NoDecode,
    BeforeValidator(split),
    AfterValidator(no_duplicates),
]
Seconds = Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)]
Bytes = Annotated[ByteSize, Field(gt=0, le=1 << 40)]
