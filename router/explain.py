"""``boomerang explain``: asks a router's admin API what a request would do now, and shows every other way."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from router import admin_api
from router.columns import columns

_FAILED: Final = 1
_USAGE: Final = 2
_TIMEOUT_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang explain``."""
    parser.add_argument("file", metavar="FILE", help="the request's body, as JSON; - reads standard input")
    admin_api.add_arguments(parser)
    parser.add_argument(
        "--path", default="/v1/chat/completions", metavar="PATH", help="where the client would send it"
    )
    parser.add_argument(
        "--header-file",
        metavar="FILE",
        help="file with the client's headers, one 'Name: value' a line; they name its tenant (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for machines")


def run(args: argparse.Namespace) -> int:
    """Ask, and show the answer; the process's exit code."""
    try:
        origin, headers = admin_api.address(args)
        headers["content-type"] = "application/json"
        document = msgspec.json.encode(
            {
                "path": args.path,
                "headers": _headers(args.header_file),
                "body": msgspec.Raw(_body(args.file)),
            }
        )
    except ValueError as error:
        sys.stderr.write(f"boomerang: {error}\n")
        return _USAGE
    try:
        with httpx.Client(timeout=_TIMEOUT_S, trust_env=False) as client:
            answer = client.post(f"{origin}/admin/explain", content=document, headers=headers)
    except httpx.HTTPError as error:
        sys.stderr.write(f"boomerang: {origin} does not answer: {error}\n")
        return _FAILED
    return _show(answer, as_json=args.json)


def _show(answer: httpx.Response, *, as_json: bool) -> int:
    try:
        told: Any = msgspec.json.decode(answer.content)
    except msgspec.MsgspecError:
        told = None
    if answer.status_code != 200 or not isinstance(told, dict):
        error = told.get("error") if isinstance(told, dict) else None
        why = error.get("message") if isinstance(error, dict) else None
        sys.stderr.write(f"boomerang: the router answered {answer.status_code}: {why or 'no explanation'}\n")
        return _FAILED
    sys.stdout.write(answer.text + "\n" if as_json else text(told))
    return 0 if told.get("plan") else _FAILED


def text(told: Mapping[str, Any]) -> str:
    """An explanation for people: the plan, what it was made of, and a row for each way."""
    plan, found, tokens = told["plan"], told["found"], told["tokens"]
    lines = []
    if plan is None:
        lines.append("no plan: no ready pair of nodes for this request")
    else:
        nodes = " > ".join(node for node in (plan["prefill"], plan["decode"]) if node)
        lines.append(f"{plan['kind']} ({plan['reason']}) on {nodes}")
    if found and "relation" in found:
        handle = found["handle"]
        held = (
            f"{handle['decode']} holds {handle['tokens']} tokens for {handle['ends_in_s']:.0f} s more"
            if handle
            else f"no handle ({found['absence']})"
        )
        lines.append(
            f"{found['relation']} at boundary {found['depth']} of {found['boundaries']}, "
            f"turn {found['turns'] + 1} of its branch; {held}"
        )
    else:
        lines.append("nothing is known of its history")
    lines.append(f"about {tokens['prompt']} tokens; {tokens['append']} of them new to the node that holds it")
    rows = [("way", "prefill", "decode", "estimate", "price", "reason, or why not")]
    rows += [
        (
            one["kind"],
            one["prefill"] or "-",
            one["decode"],
            f"{one['estimate_s'] * 1e3:.0f} ms",
            f"{one['price_s'] * 1e3:.0f} ms",
            f"not: {one['why_not']}" if one["why_not"] else one["reason"],
        )
        for one in told["alternatives"]
    ]
    return "\n".join([*lines, "", *columns(rows)]) + "\n"


def _body(name: str) -> bytes:
    """Raises ValueError."""
    raw = sys.stdin.buffer.read() if name == "-" else admin_api.file_bytes("FILE", name)
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError("FILE: not a JSON document") from None
    return raw


def _headers(name: str | None) -> dict[str, str]:
    """Raises ValueError, which shows nothing of the file: credentials are in it."""
    if name is None:
        return {}
    headers = {}
    for line in admin_api.ascii_text("--header-file", name).splitlines():
        field, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise ValueError("--header-file: each line has to be 'Name: value'")
        if colon:
            headers[field.strip().lower()] = value.strip()
    return headers
