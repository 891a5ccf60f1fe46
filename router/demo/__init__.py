"""``boomerang demo``: an agent's conversation against simulated engines, with KV transfer off and on.

``--page`` has several agents talk instead, to be watched on the live page.
"""

import argparse
import importlib.util
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``boomerang demo``."""
    parser.add_argument("--turns", type=int, default=8, help="user turns and tool calls to play (default: 8)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port of the router that stays (default: 8000)"
    )
    parser.add_argument("--plugin", action="store_true", help="engines with the verifying plugin")
    parser.add_argument(
        "--page", action="store_true", help="let agents talk until Ctrl-C, to be watched on the live page"
    )
    parser.add_argument("--agents", type=int, default=6, help="how many agents talk then (default: 6)")
    parser.add_argument("--serve", action="store_true", help="leave engines and router running afterwards")


def run(args: argparse.Namespace) -> int:
    """Play the demo; the process's exit code."""
    if not 1 <= args.turns <= 40:
        print("boomerang: --turns has to be between 1 and 40", file=sys.stderr)
        return 2
    if not 1 <= args.agents <= 64:
        print("boomerang: --agents has to be between 1 and 64", file=sys.stderr)
        return 2
    if importlib.util.find_spec("openai") is None:
        print(
            "boomerang: the demo needs the openai client: pip install '.[demo]' in a clone",
            file=sys.stderr,
        )
        return 2
    from router.demo.play import play, watch

    if args.page:
        return watch(agents=args.agents, port=args.port, plugin=args.plugin)
    return play(turns=args.turns, port=args.port, plugin=args.plugin, stay=args.serve)
