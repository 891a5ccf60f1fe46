"""What reuse is worth on real engines: conversations turn by turn, with transfer off and on, interleaved.

    python -m bench.real_ttft [--json FILE]

Two routers stand before the same pair of real vLLM engines on the CPU, one with reuse and one without
(`--verify off`). Both play the same conversations, each turn on one side and then on the other, in changing
order. The side without reuse is the reference: its answer to a turn is what the other one's has to be, token
by token, at temperature 0. Where two answers part, the likeliest two tokens of the reference tell rounding
from a wrong answer.
"""

import argparse
import contextlib
import http.client
import json
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from bench.real_engines import HANDLE_TTL_S, MODEL, VERSION, Pair, model, pair
from router.bench.figures import spread
from router.bench.streamed import NoAnswer, Streamed, ask
from router.demo.processes import BOOMERANG, NotStarted, free_port, process, wait_ready

Side = Literal["off", "on"]
Token = tuple[str, float]
"""A token of an answer, and by how much its log-probability leads that of the next likeliest."""

MIN_LEAD = 0.001
"""Below this lead another order of the same additions may choose the other token."""
GIVE_UP_S = 120.0
_TEXT = (
    "river stone light under over small bright answer block number quiet morning engine train garden window "
    "paper silver copper question because although between seven returns holds keeps moves reads writes"
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn on both sides. Times in milliseconds."""

    conversation: int
    number: int
    prompt_tokens: int
    reused_tokens: int
    plan: str
    off_ms: float
    on_ms: float
    answer: Literal["equal", "rounding", "wrong"]


def routers(engines: Pair, folder: Path, stack: contextlib.ExitStack) -> dict[Side, str]:
    """Start one router without reuse and one with it. Raises NotStarted."""
    made: dict[Side, str] = {}
    for side in ("off", "on"):
        port, log = free_port(), folder / f"router-{side}.log"
        command = ["serve", "--prefill", engines.prefill, "--decode", engines.decode, "--port", str(port)]
        # Each turn has both legs, as in the published measurements.
        command += ["--policy", "sticky", "--stay-max-tokens", "0", "--decode-ttl-s", str(HANDLE_TTL_S)]
        command += ["--log-level", "warning", *(["--verify", "off"] if side == "off" else [])]
        started = stack.enter_context(process([*BOOMERANG, *command], log))
        made[side] = f"http://127.0.0.1:{port}"
        wait_ready(f"router, transfer {side}", started, log, f"{made[side]}/ready")
    return made


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(_TEXT.split(), k=count))


def opening(engines: Pair, conversation: int, prompt_tokens: int) -> str:
    """A first question whose prompt has at least ``prompt_tokens`` tokens, and few more."""
    count = prompt_tokens // 4
    while True:
        text = f"Conversation {conversation}. {words(random.Random(conversation), count)}"
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
        tokens = int(httpx.post(f"{engines.prefill}/tokenize", json=body, timeout=60).json()["count"])
        if tokens >= prompt_tokens:
            return text
        # Most words are more than one token, so this comes near, and never runs far beyond.
        count += (prompt_tokens - tokens) // 4 + 1


def tokens_of(streamed: Streamed) -> list[Token]:
    """The answer's tokens with their leads."""
    found: list[Token] = []
    for event in streamed.events:
        for choice in event["choices"]:
            for token in (choice.get("logprobs") or {}).get("content") or ():
                first, second = (likely["logprob"] for likely in token["top_logprobs"][:2])
                found.append((token["token"], first - second))
    return found


def judged(reference: Sequence[Token], answer: Sequence[Token]) -> Literal["equal", "rounding", "wrong"]:
    """What an answer is beside the one of the cold path."""
    for (expected, lead), (token, _) in zip(reference, answer, strict=False):
        if expected != token:
            return "rounding" if lead < MIN_LEAD else "wrong"
    return "equal" if len(reference) == len(answer) else "wrong"


def converse(
    engines: Pair, origins: dict[Side, str], conversation: int, args: argparse.Namespace
) -> Iterator[Turn]:
    """Play one conversation on both sides. Raises NoAnswer, OSError and HTTPException."""
    draw = random.Random(1_000 + conversation)
    connections = {
        side: http.client.HTTPConnection(urlsplit(origin).netloc, timeout=GIVE_UP_S)
        for side, origin in origins.items()
    }
    messages = [{"role": "user", "content": opening(engines, conversation, args.prompt_tokens)}]
    with contextlib.ExitStack() as stack:
        for connection in connections.values():
            stack.callback(connection.close)
        for number in range(args.turns):
            order: tuple[Side, Side] = ("off", "on") if (conversation + number) % 2 else ("on", "off")
            body: dict[str, Any] = {
                "model": MODEL, "messages": messages, "stream": True, "temperature": 0,
                "max_tokens": args.answer_tokens, "logprobs": True, "top_logprobs": 2,
                "stream_options": {"include_usage": True},
            }  # fmt: skip
            seen = {side: ask(connections[side], body) for side in order}
            off, on = seen["off"], seen["on"]
            yield Turn(
                conversation=conversation,
                number=number + 1,
                prompt_tokens=on.events[-1]["usage"]["prompt_tokens"],
                reused_tokens=int(on.headers.get("x-boomerang-reused-tokens") or 0),
                plan=on.headers.get("x-boomerang-plan") or "",
                off_ms=off.first_ms,
                on_ms=on.first_ms,
                answer=judged(tokens_of(off), tokens_of(on)),
            )
            # Both go on from the reference, so that one wrong answer is counted once.
            messages.append({"role": "assistant", "content": off.text})
            messages.append({"role": "user", "content": words(draw, args.question_words)})


def table(turns: Sequence[Turn]) -> str:
    """The turns by their place in the conversation, as Markdown: medians (least–most)."""
    lines = [
        "| turn | prompt tokens | reused | off, ms | on, ms | off / on |",
        "|---|---|---|---|---|---|",
    ]
    groups: list[tuple[str, list[Turn]]] = [
        (str(number), [turn for turn in turns if turn.number == number])
        for number in sorted({turn.number for turn in turns})
    ]
    groups.append(("from 2 on", [turn for turn in turns if turn.number > 1]))
    for name, group in groups:
        tokens = [turn.prompt_tokens for turn in group]
        reused = sum(turn.reused_tokens for turn in group) / sum(tokens)
        lines.append(
            f"| {name} | {min(tokens):,}–{max(tokens):,} | {reused:.0%} "
            f"| {spread([turn.off_ms for turn in group])} | {spread([turn.on_ms for turn in group])} "
            f"| {spread([turn.off_ms / turn.on_ms for turn in group])} |"
        )
    return "\n".join(lines)


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures that matter: of all turns after the first of each conversation."""
    later = [turn for turn in turns if turn.number > 1]
    return {
        "vllm": VERSION,
        "python": platform.python_version(),
        "turns": len(turns),
        "turns_that_reused": sum(turn.reused_tokens > 0 for turn in later),
        "turns_after_the_first": len(later),
        "least_prompt_tokens": min(turn.prompt_tokens for turn in later),
        "reduction_median": statistics.median(turn.off_ms / turn.on_ms for turn in later),
        "wrong_answers": sum(turn.answer == "wrong" for turn in turns),
        "answers_that_rounding_changed": sum(turn.answer == "rounding" for turn in turns),
    }


def play(args: argparse.Namespace) -> list[Turn]:
    """Start everything and play all conversations."""
    turns: list[Turn] = []
    longest_tokens = 2 * args.prompt_tokens + args.turns * (args.answer_tokens + 8 * args.question_words)
    with tempfile.TemporaryDirectory(prefix="boomerang-real-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        print("starting two engines and two routers …", file=sys.stderr)
        engines = stack.enter_context(pair(model(args.layers, args.hidden), folder, longest_tokens))
        origins = routers(engines, folder, stack)
        for conversation in range(args.conversations + 1):
            played = list(converse(engines, origins, conversation, args))
            # The first one warms up: an engine's first requests compile and connect.
            turns += played if conversation else []
            last = played[-1]
            print(
                f"conversation {conversation}: {last.off_ms:.0f} ms off, {last.on_ms:.0f} ms on",
                file=sys.stderr,
            )
    return turns


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--conversations", type=int, default=4, help="besides one to warm up (default: 4)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each (default: 5)")
    parser.add_argument("--prompt-tokens", type=int, default=2_000, help="of the first turn (default: 2000)")
    parser.add_argument("--question-words", type=int, default=40, help="of later turns (default: 40)")
    parser.add_argument("--answer-tokens", type=int, default=16, help="of each answer (default: 16)")
    parser.add_argument("--layers", type=int, default=12, help="of the random model (default: 12)")
    parser.add_argument("--hidden", type=int, default=512, help="its hidden size (default: 512)")
    parser.add_argument("--json", type=Path, help="write all turns there")
    args = parser.parse_args()
    if min(args.conversations, args.turns - 1, args.prompt_tokens // 256) < 1:
        parser.error("it takes a conversation, two turns and prompts of at least 256 tokens")
    try:
        turns = play(args)
    except (NoAnswer, NotStarted, OSError, http.client.HTTPException, httpx.HTTPError) as error:
        print(f"bench.real_ttft: {error}", file=sys.stderr)
        return 1
    told = summary(turns)
    print(table(turns), end="\n\n")
    for name, value in told.items():
        text = f"{value:.2f}" if isinstance(value, float) else value
        print(f"* {name.replace('_', ' ')}: {text}")
    if args.json:
        args.json.write_text(json.dumps({**told, "each": [asdict(turn) for turn in turns]}, indent=1) + "\n")
    return 1 if told["wrong_answers"] else 0


if __name__ == "__main__":
    sys.exit(main())
