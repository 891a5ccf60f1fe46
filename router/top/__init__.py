"""``boomerang top``: the live page in a terminal."""

import argparse

from router import admin_api


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang top``."""
    admin_api.add_arguments(parser)
    parser.add_argument("--once", action="store_true", help="write what there is now, and end")


def run(args: argparse.Namespace) -> int:
    """Watch until interrupted; the process's exit code."""
    from router.top.watch import run as watch  # noqa: PLC0415 - start-up stays short

    return watch(args)
