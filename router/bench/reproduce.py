"""``boomerang bench figures``: the published gain, replayed by the router over sockets."""

import argparse
import http.client
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from router.bench.comparison import Row, document, readings_table, rows, table
from router.bench.plot import NoPlot, check, draw
from router.bench.published import REQUESTS, SOURCE, Model, models
from router.bench.replay import TRANSFERS, Request, converse, pools, wrong_kv
from router.bench.streamed import NoAnswer
from router.demo.processes import NotStarted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang bench figures``."""
    names = [model.name for model in models()]
    parser.add_argument("--model", choices=names, action="append", help="only this one (default: all)")
    parser.add_argument(
        "--conversations", type=int, default=2, help="conversations of each length and side (default: 2)"
    )
    parser.add_argument(
        "--prompt-tokens", type=int, nargs="+", help="mean prompt lengths (default: the published sweep's)"
    )
    parser.add_argument(
        "--stock", action="store_true", help="engines without the plugin: the router verifies by itself"
    )
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--plot", type=Path, help="draw them there (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Replay, print and write; the process's exit code."""
    shortest = 2_000
    if args.conversations < 1 or min(args.prompt_tokens or [shortest]) < shortest:
        print(
            f"boomerang: it takes at least one conversation, and prompts of {shortest} tokens or more",
            file=sys.stderr,
        )
        return 2
    chosen = [model for model in models() if not args.model or model.name in args.model]
    try:
        if args.plot:
            check()
        played, wrong = _play(chosen, args)
        print(f"\nPublished: {SOURCE}\n")
        for model, compared, _ in played:
            print(table(model, compared), end="\n\n")
        print(readings_table(chosen))
        print(f"\nWrong KV used by any engine: {wrong}.")
        if args.json:
            args.json.write_text(json.dumps(document(played, wrong=wrong), indent=1) + "\n")
        if args.plot:
            draw([(model, compared) for model, compared, _ in played], args.plot)
    except (NoAnswer, NoPlot, NotStarted, OSError, http.client.HTTPException) as error:
        print(f"boomerang: {error}", file=sys.stderr)
        return 1
    return 1 if wrong else 0


Played = list[tuple[Model, Sequence[Row], Sequence[Request]]]


def _play(chosen: Sequence[Model], args: argparse.Namespace) -> tuple[Played, int]:
    played: Played = []
    wrong = 0
    for model in chosen:
        requests: list[Request] = []
        with pools(model.profile, plugin=not args.stock) as legs:
            for length in args.prompt_tokens or model.lengths_tokens:
                print(f"{model.name}, {length:,} tokens …", file=sys.stderr)
                for conversation in range(args.conversations):
                    for transfer in TRANSFERS:
                        requests += converse(legs[transfer].router, transfer, length, conversation, REQUESTS)
            wrong += wrong_kv(list(legs.values()))
        played.append((model, rows(model, requests), requests))
    return played, wrong
