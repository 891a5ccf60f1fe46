"""The page of commands, from the parsers themselves."""

import argparse
from collections.abc import Iterator

from router.cli import COMMANDS, DESCRIPTION
from scripts.reference.markdown import Incomplete, code, page, table

INTRO = """\
`boomerang COMMAND [OPTION]...`, or `python -m router COMMAND [OPTION]...`. `--help` after a command lists its options.
Wrong usage ends with exit code 2 and one line; Ctrl-C with 130.

{commands}"""
SERVE = """\
| option | for |
|---|---|
| `--config FILE` | YAML file with settings; `BOOMERANG_CONFIG` names it, too |
| `--SETTING VALUE` | each of the [settings](settings.md) |"""


def command_line_page() -> str:
    """Every command with its options."""
    listed = table(
        ("command", "does"), ((f"[`{name}`](#{name})", text) for name, (text, *_) in COMMANDS.items())
    )
    blocks = [DESCRIPTION.replace("\n", " "), INTRO.format(commands=listed)]
    for name, (text, epilog, add, _) in COMMANDS.items():
        blocks += [f"## {name}", f"{text}."]
        if name == "serve":
            blocks.append(SERVE)
        else:
            parser = argparse.ArgumentParser(prog=f"boomerang {name}")
            add(parser)
            blocks += _options(parser, name)
        if epilog:
            blocks.append(" ".join(epilog.split()))
    return page("Commands", *blocks)


def _options(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    """A table of a parser's options, and then those of the commands beneath it. Raises Incomplete."""
    rows, beneath = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if isinstance(action, argparse._SubParsersAction):
            beneath = dict(action.choices)
            continue
        if not action.help:
            raise Incomplete(f"commands: {name} {_spelled(action)} has no help text")
        rows.append((code(_spelled(action)), _text(action)))
    if rows:
        yield table(("option", "for"), rows)
    for command, inner in beneath.items():
        yield f"### {name} {command}"
        if inner.description:
            yield " ".join(inner.description.split())
        yield from _options(inner, f"{name} {command}")


def _text(action: argparse.Action) -> str:
    text, default = str(action.help).replace("%%", "%"), action.default
    if default in (None, False, argparse.SUPPRESS) or default == [] or "default" in text:
        return text
    shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
    return f"{text} (default: {shown})"


def _spelled(action: argparse.Action) -> str:
    """As it is written on the command line."""
    names = "/".join(option for option in action.option_strings if option.startswith("--"))
    if action.nargs == 0:
        return names
    if action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        value = str(action.metavar or action.dest.upper())
    more = " ..." if action.nargs in ("+", "*") else ""
    return f"{names} {value}{more}".strip()
