"""How a command reaches a running router's admin API."""

import argparse
from pathlib import Path

from router.origin import parse_origin


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name it."""
    parser.add_argument("--url", metavar="ORIGIN", help="the router's admin API (required)")
    parser.add_argument(
        "--token-file", metavar="FILE", help="file with the admin API's token (default: none)"
    )


def address(args: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Its origin, and the headers that every request to it has. Raises ValueError, which names the option."""
    if not args.url:
        raise ValueError("--url is required: the router's admin API, as http://HOST:PORT")
    try:
        origin = parse_origin(args.url)
    except ValueError as error:
        raise ValueError(f"--url: {error}") from None
    if args.token_file is None:
        return origin, {}
    return origin, {"authorization": f"Bearer {ascii_text('--token-file', args.token_file).strip()}"}


def ascii_text(option: str, name: str) -> str:
    """A file's text. Raises ValueError."""
    try:
        return file_bytes(option, name).decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"{option}: the file is not plain text") from None


def file_bytes(option: str, name: str) -> bytes:
    """Raises ValueError."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ValueError(f"{option}: the file cannot be read: {error.strerror}") from None
