"""``boomerang bench``: what the router itself costs, and what it gains, measured on this machine."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The benchmarks of ``boomerang bench``, each with options of its own."""
    from router.bench import reproduce

    benchmarks = parser.add_subparsers(
        dest="what", metavar="BENCHMARK", title="benchmarks", required=True, prog="boomerang bench"
    )
    overhead = "CPU and time that a router adds, beside others, against engines of no cost"
    figures = "The published gain in time to first token, replayed and predicted on simulated engines"
    _add_overhead(benchmarks.add_parser("overhead", help=overhead, description=overhead + "."))
    reproduce.add_arguments(benchmarks.add_parser("figures", help=figures, description=figures + "."))


def _add_overhead(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang bench overhead``."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every contestant (default: 5)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64], help="streams at once")
    parser.add_argument("--events", type=int, default=64, help="events of an answer (default: 64)")
    parser.add_argument("--every-ms", type=float, default=10.0, help="time between events (default: 10)")
    parser.add_argument(
        "--together", action="store_true", help="all streams begin at the same instant (default: spread)"
    )
    parser.add_argument("--turns", type=int, default=4, help="turns of each stream in a round (default: 4)")
    parser.add_argument(
        "--history-bytes", type=int, default=8_000, help="size of the first request's history"
    )
    parser.add_argument("--vllm-router", type=Path, help="the vllm-router command; left out where not given")
    parser.add_argument(
        "--router-verified",
        action="store_true",
        help="also the router on engines without the plugin",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="also so many processes, beside one, on a shared ledger"
    )
    parser.add_argument("--store", help="that ledger's URL (default: a redis-server of the benchmark's own)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=("direct", "own", "router-verified", "shared", "workers", "plain", "vllm-router"),
        help="measure only these",
    )
    parser.add_argument("--json", type=Path, help="write all results there")


def run(args: argparse.Namespace) -> int:
    """Run a benchmark; the process's exit code."""
    if args.what == "figures":
        from router.bench import reproduce

        return reproduce.run(args)
    if args.rounds < 1 or args.events < 2 or args.turns < 1 or min(args.streams) < 1:
        print(
            "boomerang: rounds, turns and streams have to be at least 1, events at least 2", file=sys.stderr
        )
        return 2
    from router.bench.overhead import main

    return main(args)
