"""``boomerang bench figures``: the published gain, replayed by the router over sockets."""

import argparse
import http.client
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from router.bench import own_time
from router.bench.comparison import Row, document, readings_table, rows, table
from router.bench.own_time import Calibration, calibration
from router.bench.plot import NoPlot, check, draw
from router.bench.published import REQUESTS, SOURCE, Model, models
from router.bench.replay import TRANSFERS, Request, converse, pools, wrong_kv
from router.bench.streamed import NoAnswer
from router.demo.processes import NotStarted
from router.sim.profiles import PROFILES


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
        for model, compared, _, found in played:
            print(table(model, compared), end="\n\n")
            print(own_time.told(model.name, PROFILES[model.profile], found), end="\n\n")
        print(readings_table(chosen))
        print(f"\nWrong KV used by any engine: {wrong}.")
        if args.json:
            args.json.write_text(json.dumps(document(played, wrong=wrong), indent=1) + "\n")
        if args.plot:
            draw([(model, compared) for model, compared, _, _ in played], args.plot)
    except (NoAnswer, NoPlot, NotStarted, OSError, http.client.HTTPException) as error:
        print(f"boomerang: {error}", file=sys.stderr)
        return 1
    return 1 if wrong else 0


Played = list[tuple[Model, Sequence[Row], Sequence[Request], Calibration]]


def _play(chosen: Sequence[Model], args: argparse.Namespace) -> tuple[Played, int]:
    played: Played = []
    wrong = 0
    for model in chosen:
        requests: list[Request] = []
        lengths = args.prompt_tokens or model.lengths_tokens
        found = _calibrate(model, lengths, plugin=not args.stock)
        with pools(model.profile, plugin=not args.stock, times_ms=found.times_ms) as legs:
            for length in lengths:
                print(f"{model.name}, {length:,} tokens …", file=sys.stderr)
                for conversation in range(args.conversations):
                    for transfer in TRANSFERS:
                        requests += converse(legs[transfer].router, transfer, length, conversation, REQUESTS)
            wrong += wrong_kv(list(legs.values()))
        played.append((model, rows(model, requests), requests, found))
    return played, wrong


def _calibrate(model: Model, lengths: Sequence[int], *, plugin: bool) -> Calibration:
    """From turns of its own, without transfer, at the shortest and the longest of the lengths.

    Twice: a shorter step hides less of what simulating it takes, so the chain's own time is measured again
    with what the first time took out.
    """
    made = PROFILES[model.profile]
    first = calibration(made, made, _turns_off(model, lengths, {}, plugin=plugin))
    again = _turns_off(model, lengths, first.times_ms, plugin=plugin)
    return calibration(made, first.profile, again)


def _turns_off(
    model: Model, lengths: Sequence[int], times_ms: Mapping[str, float], *, plugin: bool
) -> list[Request]:
    print(f"{model.name}, calibration …", file=sys.stderr)
    ends = {max(lengths): 1, min(lengths): own_time.SHORTEST_CONVERSATIONS}
    requests: list[Request] = []
    with pools(model.profile, plugin=plugin, transfers=("off",), times_ms=times_ms) as legs:
        for length, conversations in ends.items():
            for conversation in range(conversations):
                requests += converse(legs["off"].router, "off", length, conversation, REQUESTS)
    return requests
