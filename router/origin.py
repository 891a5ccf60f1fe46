"""Where an engine is: scheme, host and port, in one spelling, so that equal origins are equal strings."""

import ipaddress
import re
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
# No host is a bare number, so what stands behind "@" is no host and what stands before it no credential.
_RANK = re.compile(r"(?P<origin>[^@]+)@(?P<rank>[0-9]{1,4})/?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_ranked_origin(text: str) -> tuple[str, int | None]:
    """``ORIGIN`` or ``ORIGIN@RANK``: the origin in its one spelling, and the data-parallel rank behind it.

    Raises ValueError where it is anything else, as ``parse_origin`` does.
    """
    ranked = _RANK.fullmatch(text)
    if ranked is None:
        return parse_origin(text), None
    return parse_origin(ranked["origin"]), int(ranked["rank"])


def parse_dns(text: str) -> tuple[str, int]:
    """``dns://NAME:PORT``: a name whose every address is an engine. Raises ValueError for anything else."""
    scheme, found, place = text.partition("://")
    if scheme.lower() != "dns" or not found:
        raise ValueError("expected dns://NAME:PORT")
    # Of an origin's own form; the port has to be told, as a name alone says nothing of engines.
    parts = urlsplit(parse_origin(f"http://{place}"))
    if parts.hostname is None or not re.search(r":[0-9]+/?$", place):
        raise ValueError("expected dns://NAME:PORT")
    return parts.hostname, parts.port or 80


def at_port(host: str, port: int, *, scheme: str = "http") -> str:
    """The origin of a host's name or address and a port."""
    return parse_origin(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")


def parse_origin(text: str) -> str:
    """``text`` as ``scheme://host[:port]``: lower case, without a trailing slash or the scheme's own port.

    Raises ValueError where it is anything else. The error's text never quotes ``text``: user, password and
    query may be secrets.
    """
    if not re.match(r"https?://", text, re.IGNORECASE):
        raise ValueError("an origin begins with http:// or https://")
    if "@" in text:
        raise ValueError("an origin has no user and password; engine_api_key_file names a file with the key")
    if "?" in text or "#" in text:
        raise ValueError("an origin has no query or fragment; expected http://HOST:PORT")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        ipv6 = ":" in host and bool(ipaddress.IPv6Address(host))
    except ValueError:
        raise ValueError("not a valid origin; expected http://HOST:PORT") from None
    if parts.path not in ("", "/"):
        raise ValueError("an origin has no path; expected http://HOST:PORT")
    if not ipv6 and not _HOST.fullmatch(host):
        raise ValueError("an origin needs a host name or address; expected http://HOST:PORT")
    if port == 0:
        raise ValueError("an origin's port is between 1 and 65535")
    told_port = "" if port is None or port == _DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{f'[{host}]' if ipv6 else host}{told_port}"
