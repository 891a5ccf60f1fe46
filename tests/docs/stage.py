"""Plays a page's examples: files are written, commands run, engines simulated, all on free ports."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from router.demo.processes import free_port, process, wait_ready
from tests.docs.pages import ROOT, Example

RUN_TIMEOUT_S = 90.0
PROGRAMS = "bin"
_PORT = re.compile(r"\b(?:80\d\d|8[12]\d\d|9000)\b")


@dataclass(slots=True)
class Stage:
    """A folder in which a page's examples run. Ports that the page names are replaced by free ones."""

    folder: Path
    started: contextlib.ExitStack
    ports: dict[str, int] = field(default_factory=dict)
    said: str = ""
    """What the last command wrote."""

    def play(self, example: Example) -> None:
        """Raises AssertionError where a page's example does not do what the page says."""
        match example.what:
            case "start":
                self._start(example)
            case "file":
                (self.folder / example.rest).write_text(self._moved(example.text), encoding="utf-8")
            case "run":
                self._run(example)
            case "output":
                _compare(example.text, self.said)
            case _:
                raise AssertionError(f"no such example: {example.what}")

    def _start(self, example: Example) -> None:
        """Commands that go on, one a line, each with its ``&``; then until each port answers."""
        lines = [line for line in example.text.splitlines() if line and not line.startswith("#")]
        ports = example.rest.split()
        assert len(lines) == len(ports), "one port for each command"
        running = []
        for line, port in zip(lines, ports, strict=True):
            assert line.endswith(" &"), line
            command = ["bash", "-c", f"exec {self._moved(line.removesuffix(' &'))}"]
            log = self.folder / f"{port}.log"
            with _environment(self._environment()), contextlib.chdir(self.folder):
                running.append((self.started.enter_context(process(command, log)), log, port))
        for one, log, port in running:
            path = "/ready" if port.startswith("80") else "/health"
            wait_ready(f"process of port {port}", one, log, f"http://127.0.0.1:{self._port(port)}{path}")

    def _run(self, example: Example) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._moved(example.text)],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        self.said = done.stdout
        assert done.returncode == 0, f"{example.text}\n{done.stdout}{done.stderr}"
        shown = re.search(r'shows "(.*)"', example.rest)
        assert shown is None or shown[1] in done.stdout, f"{shown[1]!r} is not in:\n{done.stdout}"

    def _environment(self) -> dict[str, str]:
        """As in an activated virtual environment: our command and this very interpreter come first."""
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        # A router without --port is the one of port 8000. No proxy that the machine has leads to loopback.
        return kept | {
            "PATH": f"{self.folder / PROGRAMS}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "BOOMERANG_PORT": str(self._port("8000")),
            "NO_PROXY": "127.0.0.1",
        }

    def _moved(self, text: str) -> str:
        return _PORT.sub(lambda port: str(self._port(port[0])), text)

    def _port(self, written: str) -> int:
        if written not in self.ports:
            self.ports[written] = free_port()
        return self.ports[written]


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A stage; what was started on it is stopped at the end."""
    (folder / PROGRAMS).mkdir()
    for name, arguments in (("boomerang", " -m router"), ("python", "")):
        program = folder / PROGRAMS / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    with contextlib.ExitStack() as started:
        yield Stage(folder, started)


@contextlib.contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _compare(shown: str, said: str) -> None:
    """Every line that a page shows has to be said, in that order."""
    lines = iter(" ".join(line.split()) for line in said.splitlines())
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        assert wanted in lines, f"{wanted!r} is not said, in its place, in:\n{said}"


def lacking(*programs: str) -> list[str]:
    """Those of them that this machine does not have."""
    return [program for program in programs if shutil.which(program) is None]
