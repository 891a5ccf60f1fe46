"""Nodes from a YAML file that is watched.

    prefill:
      - http://10.0.0.1:8100
      - {url: http://10.0.0.2:8100, weight: 2}
    decode:
      - {url: "http://10.0.1.1:8200@0", limit: 64}

The file is read again every second and compared as a whole: its time of change says nothing where it is a
link that Kubernetes turns over (ConfigMaps), and a rename leaves no event behind. A broken file changes
nothing, and is told once.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from router.fleet.discovery.reconcile import Listing
from router.fleet.node import Node, Role, node_of

POLL_S: Final = 1.0
MAX_BYTES: Final = 262_144


class NodesFile:
    """The source that ``nodes_file`` names."""

    def __init__(self, path: Path, *, poll_s: float = POLL_S) -> None:
        self._path, self._poll_s = path, poll_s

    @property
    def name(self) -> str:
        return f"nodes_file {self._path}"

    async def run(self, listing: Listing) -> None:
        read: bytes | None = None
        while True:
            try:
                content = await asyncio.to_thread(_content, self._path)
                if content != read:
                    read = content
                    listing.are(await asyncio.to_thread(nodes_in, content))
            except OSError as error:
                read = None
                listing.failed(f"the file cannot be read: {error.strerror}")
            except ValueError as error:
                listing.failed(str(error))
            await asyncio.sleep(self._poll_s)


def _content(path: Path) -> bytes:
    """Raises OSError, and ValueError where there is too much of it."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
    return content


def nodes_in(content: bytes) -> tuple[Node, ...]:
    """The nodes that a file lists. Raises ValueError, which says where it is wrong."""
    try:
        document = yaml.safe_load(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"not valid YAML{where}") from None
    if not isinstance(document, dict) or not document:
        raise ValueError("expected a mapping with the keys prefill and decode")
    unknown = [str(key) for key in document if key not in tuple(Role)]
    if unknown:
        raise ValueError(f"there is no role {unknown[0]!r}; there are prefill and decode")
    nodes = [node for role in Role for node in _of_role(role, document.get(role.value))]
    keys = [node.key for node in nodes]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is listed more than once")
    return tuple(nodes)


def _of_role(role: Role, entries: object) -> Iterator[Node]:
    if entries is None:
        return
    if not isinstance(entries, list):
        raise ValueError(f"{role}: expected a list")
    for number, entry in enumerate(entries, 1):
        try:
            yield _node(entry, role)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{role}, entry {number}: {error}") from None


def _node(entry: Any, role: Role) -> Node:
    given = {"url": entry} if isinstance(entry, str) else entry
    if not isinstance(given, dict) or not isinstance(given.get("url"), str):
        raise ValueError("expected an address, or a mapping with url, weight and limit")
    unknown = [str(key) for key in given if key not in ("url", "weight", "limit")]
    if unknown:
        raise ValueError(f"there is no key {unknown[0]!r}; there are url, weight and limit")
    weight, limit = given.get("weight", 1.0), given.get("limit")
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError("weight: expected a number")
    if isinstance(limit, bool) or not (limit is None or isinstance(limit, int)):
        raise ValueError("limit: expected a whole number")
    return node_of(given["url"], role, weight=float(weight), limit=limit)
