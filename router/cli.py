"""The ``boomerang`` command. Each subcommand imports what it needs when it runs: start-up stays short."""

import argparse
import difflib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from router import __version__

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

USAGE_EXIT = 2
INTERRUPT_EXIT = 130
"""128 + SIGINT, as shells count it."""

DESCRIPTION = """\
A conversation-aware, OpenAI-compatible router for vLLM prefill/decode pools:
KV goes out to decode, and comes back."""

EPILOG = """\
A first router:
  boomerang serve --prefill http://p:8100 --decode http://d:8200
Without any engine:
  boomerang demo

'boomerang COMMAND --help' tells a command's options."""

SERVE_EPILOG = """\
Each option can also be set in the environment (--pull-timeout-s as BOOMERANG_PULL_TIMEOUT_S) or in the
configuration file (as pull_timeout_s). Options win over the environment, that over the file. 'none' takes an
optional limit away."""


CHECK_EPILOG = """\
Plays two short turns through each pair of a prefill and a decode node, straight to the engines, and cleans up
after itself. Exit code: 0 without an error (warnings are allowed), 1 with one, 2 for wrong usage.
docs/check.md tells what each row means."""


EXPLAIN_EPILOG = """\
FILE holds a request's body as a client would send it, or is - for standard input. Nothing of it is run, and
no handle is used up. Exit code: 0 where there is a plan, 1 where there is none or the router does not answer,
2 for wrong usage."""


TOP_EPILOG = """\
Ctrl-C ends it. Where standard output is no terminal, what there is now is written once. Exit code: 0, 1 where
the router does not answer or refuses, 2 for wrong usage."""


class _Parser(argparse.ArgumentParser):
    """Tells wrong usage in one line, which names options and never values: a value may be a secret."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT, f"boomerang: {message} (see '{self.prog} --help')\n")

    def refuse_unknown(self, extra: Sequence[str]) -> None:
        if not extra:
            return
        option = extra[0].partition("=")[0]
        if not option.startswith("-"):
            self.error("there is one argument too many")
        close = difflib.get_close_matches(option, list(self._option_string_actions), n=1)
        self.error(f"there is no option {option}" + (f"; did you mean {close[0]}?" if close else ""))


def _add_settings(parser: argparse.ArgumentParser) -> None:
    from router.setting_sources import CONFIG_VARIABLE
    from router.settings import Settings, flag_name

    parser.add_argument(
        "--config", metavar="FILE", help=f"YAML file with settings; {CONFIG_VARIABLE} names it, too"
    )
    for name, field in Settings.model_fields.items():
        text = f"{field.description} ({_default(field)})".replace("%", "%%")
        # Nothing is parsed here: a flag goes to the settings as it was written, as a variable does.
        kind: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if field.annotation is bool:
            parser.add_argument(flag_name(name), action=argparse.BooleanOptionalAction, **kind)
        elif name in ("prefill", "decode"):
            parser.add_argument(flag_name(name), action="append", metavar="ADDRESS", **kind)
        else:
            parser.add_argument(flag_name(name), metavar=_metavar(name, field), **kind)


def _default(field: "FieldInfo") -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, bool):
        return "default: on" if value else "default: off"
    if value in (None, "", ()):
        return "default: none"
    if isinstance(value, float):
        return f"default: {value:g}"
    # ByteSize, by its only method that tells it from an int.
    human = getattr(value, "human_readable", None)
    return f"default: {human().replace('.0', '') if human else value}"


def _metavar(name: str, field: "FieldInfo") -> str:
    choices = get_args(field.annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return "|".join(choices)
    units = {"_s": "SECONDS", "_bytes": "BYTES", "_tokens": "TOKENS", "_file": "FILE"}
    return next(
        (unit for suffix, unit in units.items() if name.endswith(suffix)), name.rpartition("_")[2].upper()
    )


def _serve(args: argparse.Namespace) -> int:
    from router.setting_sources import SettingsError, load

    flags = {name: value for name, value in vars(args).items() if name != "config"}
    try:
        settings = load(flags, config=args.config)
    except SettingsError as error:
        print(f"boomerang: {error}", file=sys.stderr)
        return USAGE_EXIT
    for warning in settings.warnings():
        print(f"boomerang: warning: {warning}", file=sys.stderr)
    if settings.workers == 1:
        from router.serve import serve

        return serve(settings)
    from router.workers import metrics_folder

    with metrics_folder():  # before anything of prometheus-client is imported
        from router.serve import serve_workers

        return serve_workers(settings)


def _add_check(parser: argparse.ArgumentParser) -> None:
    from router.check.command import add_arguments

    add_arguments(parser)


def _check(args: argparse.Namespace) -> int:
    from router.check.command import run

    return run(args)


def _add_sim(parser: argparse.ArgumentParser) -> None:
    from router.sim.server import add_arguments

    add_arguments(parser)


def _sim(args: argparse.Namespace) -> int:
    from router.sim.server import run

    return run(args)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    from router.demo import add_arguments

    add_arguments(parser)


def _demo(args: argparse.Namespace) -> int:
    from router.demo import run

    return run(args)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from router.bench import add_arguments

    add_arguments(parser)


def _bench(args: argparse.Namespace) -> int:
    from router.bench import run

    return run(args)


def _add_top(parser: argparse.ArgumentParser) -> None:
    from router.top import add_arguments

    add_arguments(parser)


def _top(args: argparse.Namespace) -> int:
    from router.top import run

    return run(args)


def _add_explain(parser: argparse.ArgumentParser) -> None:
    from router.explain import add_arguments

    add_arguments(parser)


def _explain(args: argparse.Namespace) -> int:
    from router.explain import run

    return run(args)


def _add_nothing(parser: argparse.ArgumentParser) -> None:
    """The command has no options."""


def _version(args: argparse.Namespace) -> int:
    print(f"boomerang {__version__} (Python {platform.python_version()})")
    return 0


Add = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]
COMMANDS: dict[str, tuple[str, str, Add, Run]] = {
    "serve": ("Run the router", SERVE_EPILOG, _add_settings, _serve),
    "check": (
        "Test a live pool: what works, what does not, and what to do",
        CHECK_EPILOG,
        _add_check,
        _check,
    ),
    "explain": (
        "Tell what a running router would do with a request, and every other way it could go",
        EXPLAIN_EPILOG,
        _add_explain,
        _explain,
    ),
    "top": ("Watch a running router in the terminal, as the live page shows it", TOP_EPILOG, _add_top, _top),
    "sim": ("Run a simulated engine: it speaks vLLM's wire format and needs no GPU", "", _add_sim, _sim),
    "demo": (
        "Play an agent's conversation against simulated engines, with reuse off and on",
        "",
        _add_demo,
        _demo,
    ),
    "bench": (
        "Measure what the router costs and what it gains",
        "",
        _add_bench,
        _bench,
    ),
    "version": ("Print the version", "", _add_nothing, _version),
}
"""Name → help, epilogue, what adds the command's options, what runs it."""


def _parser(chosen: str | None) -> tuple[_Parser, _Parser | None]:
    """The command line's parser, and the one of the chosen command; only that one has its options."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="boomerang", description=DESCRIPTION, epilog=EPILOG, formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"boomerang {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=_Parser
    )
    of_chosen: _Parser | None = None
    for name, (help_text, epilog, add, _) in COMMANDS.items():
        command: _Parser = commands.add_parser(
            name,
            help=help_text,
            description=help_text + ".",
            epilog=epilog,
            usage=f"boomerang {name} [OPTION]...",
            formatter_class=raw,
            allow_abbrev=False,
        )
        if name == chosen:
            add(command)
            of_chosen = command
    return parser, of_chosen


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``boomerang`` with ``argv`` (default: the process's own); the exit code.

    2 stands for wrong usage or a wrong setting, told in one line on standard error; 130 for Ctrl-C.
    Raises SystemExit for ``--help`` and for usage errors that argparse finds.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in given if not word.startswith("-")), None)
    try:
        parser, command = _parser(chosen)
        if chosen is not None and command is None:
            close = difflib.get_close_matches(chosen, COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
            parser.error(f"there is no command {chosen}; {hint}")
        args, extra = parser.parse_known_args(given)
        (command or parser).refuse_unknown(extra)
        if args.command is None:
            parser.print_help()
            return USAGE_EXIT
        run = COMMANDS[args.command][3]
        del args.command
        return run(args)
    except KeyboardInterrupt:
        return INTERRUPT_EXIT
    except BrokenPipeError:
        # The reader of a pipe (`boomerang --help | head`) left; a second failure at exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
