"""``boomerang check``: its options, and its run."""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop

from router.check import report
from router.check.findings import Finding, Verdict, worst
from router.check.judge import judge
from router.check.observed import Assumed
from router.check.pool import Asked, look
from router.engines.httptools_upstream import HttptoolsUpstream
from router.engines.upstream import Upstream
from router.origin import parse_origin

_FOUND_ERROR: Final = 1
_USAGE: Final = 2
_NARROW, _WIDE = 60, 120
_MAX_S: Final = 604_800.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang check``."""
    for role in ("prefill", "decode"):
        parser.add_argument(
            f"--{role}",
            action="append",
            default=[],
            metavar="ORIGIN",
            help=f"origin of a {role} node, as http://HOST:PORT; repeatable (required)",
        )
    parser.add_argument("--api-key-file", metavar="FILE", help="file with the engines' key (default: none)")
    parser.add_argument(
        "--model", default="", metavar="NAME", help="model to use (default: the first that a pair shares)"
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        metavar="SECONDS",
        help="the decode nodes' decoder_kv_blocks_ttl, as in decode_ttl_s of the router (default: 480)",
    )
    parser.add_argument(
        "--timeout-s",
        type=seconds,
        default=30.0,
        metavar="SECONDS",
        help="limit on each request; a prefill node that hangs costs this once (default: 30)",
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for machines")


def run(args: argparse.Namespace) -> int:
    """Check the pool that the options name; the process's exit code."""
    assumed = Assumed() if args.ttl is None else Assumed(ttl_s=args.ttl, ttl_is_set=True)
    try:
        asked = Asked(
            prefill=_origins("--prefill", args.prefill),
            decode=_origins("--decode", args.decode),
            model=args.model,
            api_key=_key(args.api_key_file),
            timeout_s=args.timeout_s,
            assumed=assumed,
        )
    except ValueError as error:
        sys.stderr.write(f"boomerang: {error}\n")
        return _USAGE
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        findings = runner.run(check(asked, tell=_progress))
    if args.json:
        sys.stdout.write(report.as_json(findings, assumed).decode())
    else:
        width = shutil.get_terminal_size((100, 24)).columns
        sys.stdout.write(report.text(findings, width=min(max(width, _NARROW), _WIDE)))
    return exit_code(findings)


async def check(
    asked: Asked, *, upstream: Upstream | None = None, tell: Callable[[str], None] | None = None
) -> tuple[Finding, ...]:
    """Look at a pool and judge it.

    ``upstream`` replaces the HTTP client, and is closed at the end; ``tell`` hears what is being done.
    """
    client = upstream if upstream is not None else HttptoolsUpstream()
    try:
        seen = await look(client, asked, tell=tell)
    finally:
        await client.close()
    return judge(seen, asked.assumed)


def exit_code(findings: Sequence[Finding]) -> int:
    return _FOUND_ERROR if worst(findings) is Verdict.ERROR else 0


def _progress(told: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{told}\n")


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _MAX_S:
        raise ValueError(text)
    return value


def _origins(option: str, given: Sequence[str]) -> tuple[str, ...]:
    """Origins as given, separated by commas or repeated. Raises ValueError."""
    words = [word.strip() for each in given for word in each.split(",") if word.strip()]
    if not words:
        raise ValueError(f"{option} is required: the origin of a node, as http://HOST:PORT")
    try:
        origins = tuple(parse_origin(word) for word in words)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if len(set(origins)) < len(origins):
        raise ValueError(f"{option}: a node is listed more than once")
    return origins


def _key(path: str | None) -> str | None:
    """The key in a file. Raises ValueError, which never shows what the file holds."""
    if path is None:
        return None
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except OSError as error:
        raise ValueError(f"--api-key-file: the file cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError("--api-key-file: the file is not plain text") from None
    if len(words) != 1:
        raise ValueError("--api-key-file: the file has to hold one key and nothing else")
    return words[0]
