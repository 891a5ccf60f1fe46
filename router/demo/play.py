"""Plays the demo and prints it: one row a turn, transfer off beside transfer on."""

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx

from router.demo.agent import Agent, TurnSeen
from router.demo.crowd import crowd
from router.demo.processes import NotStarted, Pool, pool

HEAD = "turn  sent            prompt  plan    reused           TTFT off   TTFT on"


def play(*, turns: int, port: int, plugin: bool, stay: bool) -> int:
    """Start the pool, play the conversation twice, turn by turn, and print the table; the exit code."""
    return _with_pool(pool(port=port, plugin=plugin), lambda started: _played(started, turns, stay=stay))


def watch(*, agents: int, port: int, plugin: bool) -> int:
    """Start a pool of two prefill and two decode nodes, and let agents talk until Ctrl-C; the exit code."""
    started = pool(port=port, plugin=plugin, prefills=2, decodes=2)
    return _with_pool(started, lambda started: _watched(started, agents))


def _played(started: Pool, turns: int, *, stay: bool) -> int:
    if stay:
        _progress("")
        print(f"Watch it live: {started.page}\n")
    corruptions = _table(started, turns)
    if stay:
        _stay(started)
    return corruptions


def _watched(started: Pool, agents: int) -> int:
    _progress("")
    print(f"The live page: {started.page}")
    print(f"{agents} agents talk to the router at {started.router_on} until Ctrl-C.")
    sys.stdout.flush()  # also where it goes to a file
    with crowd(started.router_on, _model(started), agents):
        _until_stopped()
    return 0  # Ctrl-C reaches the engines, too: nobody is left to ask


def _with_pool(starting: AbstractContextManager[Pool], run: Callable[[Pool], int]) -> int:
    # Stopped in whatever way, it leaves no engine behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _progress("starting simulated engines (Qwen3-32B timing) and the router …")
    try:
        with starting as started:
            corruptions = run(started)
    except NotStarted as error:
        _progress("")
        print(f"boomerang: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _progress("")
        return 130
    return 1 if corruptions else 0


def _table(started: Pool, turns: int) -> int:
    model = _model(started)
    off = Agent(started.router_off, model, "off").turns(turns)
    on = Agent(started.router_on, model, "on").turns(turns)
    _progress("")
    print("An agent resends its whole history at every turn; the official openai client, streamed.")
    print("Simulated engines with the published Qwen3-32B timing, 1P1D, prefix cache off on P.\n")
    print(HEAD)
    seen: list[tuple[TurnSeen, TurnSeen]] = []
    for number in range(1, turns + 1):
        _progress(f"turn {number} of {turns} …")
        seen.append((next(off), next(on)))
        _progress("")
        print(_row(number, *seen[-1]))
    corruptions = sum(_corruptions(engine) for engine in (*started.prefills, *started.decodes))
    print(_summary(seen))
    print(f"Wrong KV used by any engine: {corruptions}.")
    return corruptions


def _model(started: Pool) -> str:
    """What the engines serve."""
    name: str = httpx.get(f"{started.router_on}/v1/models", timeout=10).json()["data"][0]["id"]
    return name


def _row(number: int, off: TurnSeen, on: TurnSeen) -> str:
    share = f"{on.reused_tokens / on.prompt_tokens:.0%}" if on.prompt_tokens else ""
    return (
        f"{number:>4}  {on.asked:<14} {on.prompt_tokens:>7,}  {on.plan:<6} {on.reused_tokens:>7,} {share:>5}"
        f"   {off.first_token_s * 1e3:>6.0f} ms {on.first_token_s * 1e3:>6.0f} ms"
    )


def _summary(seen: list[tuple[TurnSeen, TurnSeen]]) -> str:
    prompt = sum(on.prompt_tokens for _, on in seen)
    reused = sum(on.reused_tokens for _, on in seen)
    lines = [f"\n{reused:,} of {prompt:,} prompt tokens came back instead of being computed again."]
    later = [(off.first_token_s, on.first_token_s) for off, on in seen[1:]]
    if later:
        faster = statistics.median(off_s / on_s for off_s, on_s in later)
        lines.append(f"Time to first token from turn 2 on: {faster:.1f}x faster (median).")
    return "\n".join(lines)


def _corruptions(engine: str) -> int:
    """How often a simulated engine used KV that was not its prompt's: it checks every block."""
    return len(httpx.get(f"{engine}/sim/state", timeout=10).json()["corruptions"])


def _stay(started: Pool) -> None:
    print(f"\nThe router stays at {started.router_on} (Ctrl-C ends it). Try:")
    print(f"  {started.page}  in a browser: what has just happened, and what happens")
    print(f"  curl -s {started.router_on}/health | python3 -m json.tool")
    print(f"  curl -s {started.router_on}/metrics | grep boomerang_")
    print(f"  OPENAI_BASE_URL={started.router_on}/v1 OPENAI_API_KEY=any  …any OpenAI client")
    sys.stdout.flush()
    _until_stopped()


def _until_stopped() -> None:
    """Wait for Ctrl-C or SIGTERM: the end that was announced, and so no failure."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def _progress(text: str) -> None:
    """A line that is written over; nothing where nobody watches."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()
