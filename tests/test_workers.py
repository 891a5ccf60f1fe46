"""Workers as real processes: started, started again, stopped, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LIMIT_S = 60.0

PLAY = """
import logging, os, select, signal, sys, time
from router import workers
logging.basicConfig(level=logging.WARNING, format="%(message)s")
workers.PAUSE_S = 0.05

def note(text):
    with open({log!r}, "a") as log:
        log.write(text + "\\n")

def stop(*_):
    note(f"stopped {{os.getpid()}}")
    sys.exit({code})

def work(parent):
    signal.signal(signal.SIGTERM, stop)
    note(f"began {{os.getpid()}}")
    {work}

ran = workers.Workers({count}, work, ended=lambda pid: note(f"ended {{pid}}")).run()
note(f"exit {{ran}}")
sys.exit(ran)
"""
WAITS = "select.select([parent], [], []); note(f'orphan {os.getpid()}')"


class Parent:
    """The parent process, and what it and its workers noted."""

    def __init__(self, folder: Path, work: str, *, count: int = 3, code: int = 0) -> None:
        self._log = folder / "log"
        self._log.touch()
        source = PLAY.format(log=str(self._log), work=work, count=count, code=code)
        self.process = subprocess.Popen([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True)

    def noted(self, word: str) -> list[int]:
        lines = self._log.read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith(f"{word} ")]

    def until(self, word: str, times: int) -> list[int]:
        end_s = time.monotonic() + LIMIT_S
        while len(noted := self.noted(word)) < times:
            assert time.monotonic() < end_s, (word, noted, self._log.read_text())
            time.sleep(0.01)
        return noted


@contextmanager
def parent(folder: Path, work: str = WAITS, *, count: int = 3, code: int = 0) -> Iterator[Parent]:
    one = Parent(folder, work, count=count, code=code)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.communicate(timeout=LIMIT_S)
        for pid in one.noted("began"):
            assert gone(pid)


def gone(pid: int) -> bool:
    """Whether a process that nobody waits for any more ends by itself."""
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_reaches_all_and_is_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    with parent(tmp_path) as one:
        began = one.until("began", 3)
        one.process.send_signal(number)
        assert one.process.wait(LIMIT_S) == 0
        assert sorted(one.noted("stopped")) == sorted(one.noted("ended")) == sorted(began)


def test_a_worker_that_ends_is_started_again(tmp_path: Path) -> None:
    with parent(tmp_path) as one:
        first = one.until("began", 3)[0]
        os.kill(first, signal.SIGKILL)
        assert one.until("ended", 1) == [first]
        assert first not in one.until("began", 4)[1:]
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(LIMIT_S) == 0
        assert len(one.noted("stopped")) == 3


def test_workers_that_cannot_start_are_given_up(tmp_path: Path) -> None:
    with parent(tmp_path, work="return 7", count=2) as one:
        assert one.process.wait(LIMIT_S) == 1
        assert 3 <= len(one.noted("began")) <= 6


def test_an_error_of_a_worker_is_told(tmp_path: Path) -> None:
    with parent(tmp_path, work="raise ValueError('mine')", count=1) as one:
        _, told = one.process.communicate(timeout=LIMIT_S)
        assert "ValueError: mine" in told
        assert "giving up" in told


def test_one_that_stopped_badly_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with parent(tmp_path, code=3) as one:
        one.until("began", 3)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(LIMIT_S) == 3


def test_workers_notice_that_their_parent_is_gone(tmp_path: Path) -> None:
    with parent(tmp_path) as one:
        began = one.until("began", 3)
        one.process.kill()
        assert sorted(one.until("orphan", 3)) == sorted(began)
