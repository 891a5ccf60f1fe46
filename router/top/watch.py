"""Follows a router's events, and draws them: on a terminal again and again, elsewhere once."""

import argparse
import contextlib
import shutil
import sys
import time
from collections.abc import Generator
from typing import Final

import httpx
import msgspec

from router import admin_api
from router.page.schemas import StateSeen, TurnSeen
from router.top.screen import BLOCKS, PLAIN, Screen

FAILED: Final = 1
USAGE: Final = 2
TIMEOUT_S: Final = 10.0
SILENT_S: Final = 30.0
"""The router sends a comment every 10 s where nothing happens: after three it is gone."""
AGAIN_S: Final = 1.0
"""Between two attempts to reach a router that was lost from sight."""
_DRAW: Final = "\x1b[H{}\x1b[J"
"""To the upper left; the picture; erase what is below it."""
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Another screen and no cursor; and back, so that the shell's own lines are there again."""


class NotWatched(Exception):
    """The router refuses, or does not answer; trying again may help where ``is_refusal`` is False."""

    def __init__(self, message: str, *, is_refusal: bool) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


def run(args: argparse.Namespace) -> int:
    """Watch until interrupted; the process's exit code."""
    try:
        origin, headers = admin_api.address(args)
    except ValueError as error:
        sys.stderr.write(f"boomerang: {error}\n")
        return USAGE
    url = f"{origin}/page/events"
    screen = Screen(BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else PLAIN)
    try:
        if args.once or not sys.stdout.isatty():
            return _once(screen, url, headers)
        return _watch(screen, url, headers)
    except NotWatched as error:
        sys.stderr.write(f"boomerang: {error}\n")
        return FAILED


class Event(msgspec.Struct):
    """``router.page.schemas.Frame``, read."""

    now_ms: int
    turns: list[TurnSeen] = []
    state: StateSeen | None = None


def events(url: str, headers: dict[str, str]) -> Generator[Event, None, None]:
    """A router's events as they come. Raises NotWatched."""
    limits = httpx.Timeout(TIMEOUT_S, read=SILENT_S)
    try:
        with (
            httpx.Client(timeout=limits, trust_env=False) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code != 200:
                answer.read()
                raise NotWatched(f"the router answered {answer.status_code}: {_why(answer)}", is_refusal=True)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield msgspec.json.decode(line[6:], type=Event)
    except httpx.HTTPError as error:
        raise NotWatched(f"{url} does not answer: {error}", is_refusal=False) from None
    except msgspec.MsgspecError:
        raise NotWatched(f"{url} answers what is no router's event", is_refusal=True) from None


def _once(screen: Screen, url: str, headers: dict[str, str]) -> int:
    with contextlib.closing(events(url, headers)) as seen:
        for event in seen:
            screen.take(event.now_ms, event.turns, event.state)
            if screen.state is not None:
                size = shutil.get_terminal_size((120, 40))
                sys.stdout.write("\n".join(screen.lines(size.columns, size.lines)) + "\n")
                return 0
    raise NotWatched(f"{url} ended before it told anything", is_refusal=False)


def _watch(screen: Screen, url: str, headers: dict[str, str]) -> int:
    """Draw until interrupted. Raises NotWatched where the router refuses, or was never there."""
    sys.stdout.write(_ENTER)
    try:
        while True:
            try:
                for event in events(url, headers):
                    screen.take(event.now_ms, event.turns, event.state)
                    _draw(screen)
                why = "the router ended"
            except NotWatched as error:
                if error.is_refusal or screen.state is None:
                    raise
                why = str(error)
            screen.restarted()
            _draw(screen, f"{why}; trying again")
            time.sleep(AGAIN_S)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _draw(screen: Screen, note: str = "") -> None:
    size = shutil.get_terminal_size()
    lines = screen.lines(size.columns, size.lines - 1)
    if note:
        lines = [note[: size.columns], *lines[: size.lines - 2]]
    # What was there before is erased to the end of each line: a shorter one leaves nothing of a longer one.
    sys.stdout.write(_DRAW.format("".join(f"{line}\x1b[K\r\n" for line in lines)))
    sys.stdout.flush()


def _why(answer: httpx.Response) -> str:
    with contextlib.suppress(msgspec.MsgspecError, TypeError, KeyError):
        return str(msgspec.json.decode(answer.content)["error"]["message"])
    return "no reason given"
