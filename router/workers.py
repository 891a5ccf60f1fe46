"""Several processes on one port: who starts them, who stops them, and where their metrics meet.

The parent opens the socket and forks the workers, which all accept from it: a connection waits in one queue
until any of them takes it, and none is lost when one of them stops. The parent itself serves nothing. It
starts a worker again that ended without being told to, passes a stop on to all, and waits for all to drain.

Workers share a ledger and nothing else. ``PROMETHEUS_MULTIPROC_DIR`` has to be set before prometheus-client
is imported, so this module imports nothing of the router: ``metrics_folder`` comes first.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

METRICS_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
PAUSE_S: Final = 1.0
"""Between the end of a worker and the start of another one in its place."""
SOON_S: Final = 5.0
MAX_SOON: Final = 3
"""Workers that end within ``SOON_S`` of their start, one after another, are not started for ever."""
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT)
LOG: Final = logging.getLogger("router")

Work = Callable[[int], int]
"""A worker's life; its argument is a descriptor that can be read when the parent is gone. Its exit code."""


@contextlib.contextmanager
def metrics_folder() -> Iterator[None]:
    """A folder in which the workers' metrics meet; empty at the begin, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="boomerang-metrics-") as folder:
        os.environ[METRICS_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[METRICS_VARIABLE]


@dataclass(slots=True)
class Workers:
    """``count`` processes that do ``work``. For the main thread of a process that has started no other."""

    count: int
    work: Work
    ended: Callable[[int], None] = lambda _: None
    """Told the process id of each that ended."""
    _running: dict[int, float] = field(default_factory=dict)
    """Process ids, and when each was started."""
    _alarm: tuple[socket.socket, socket.socket] | None = None
    _alive: tuple[int, int] | None = None

    def run(self) -> int:
        """Until all have ended; the exit code: 0 where each that was told to stop did so well."""
        with self._listening() as alarm:
            self._alive = os.pipe()
            try:
                return self._supervise(alarm)
            finally:
                for descriptor in self._alive:
                    os.close(descriptor)

    def _supervise(self, alarm: socket.socket) -> int:
        code, soon, stopping, due_s = 0, 0, False, time.monotonic()
        while True:
            while not stopping and len(self._running) < self.count and time.monotonic() >= due_s:
                self._start()
            if stopping and not self._running:
                return code
            wait_s = max(due_s - time.monotonic(), 0.0) if len(self._running) < self.count else None
            for number in self._signals(alarm, None if stopping else wait_s):
                if number in _PASSED_ON:
                    stopping = True
                    self._tell()
            for pid, status, age_s in self._reaped():
                ended = os.waitstatus_to_exitcode(status)
                if stopping:
                    # One that was still starting has nothing to drain, and ends by the signal itself.
                    code = code or (0 if ended == -signal.SIGTERM else abs(ended))
                    continue
                LOG.warning("worker %d ended with %d after %.0f s; another one starts", pid, ended, age_s)
                soon = soon + 1 if age_s < SOON_S else 0
                due_s = time.monotonic() + PAUSE_S
                if soon >= MAX_SOON:
                    LOG.error("workers end as soon as they start: giving up")
                    stopping, code = True, 1
                    self._tell()

    def _start(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._running[pid] = time.monotonic()
            return
        code = 1
        try:
            code = self._live()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        except BaseException:
            LOG.exception("a worker failed")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _live(self) -> int:
        """The worker's side of the fork."""
        # A group of its own: Ctrl-C in a terminal reaches the parent alone, which passes it on once.
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*_PASSED_ON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if self._alarm is not None:
            for end in self._alarm:
                end.close()
        assert self._alive is not None  # noqa: S101 - it was made before any worker
        readable, writable = self._alive
        os.close(writable)
        return self.work(readable)

    def _tell(self) -> None:
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _reaped(self) -> Iterator[tuple[int, int, float]]:
        for pid, began_s in list(self._running.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._running[pid]
                self.ended(pid)
                yield pid, status, time.monotonic() - began_s

    @contextlib.contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Signals arrive as bytes on a socket, so that none is missed between two looks."""
        numbers = (*_PASSED_ON, signal.SIGCHLD)
        reading, writing = self._alarm = socket.socketpair()
        for end in (reading, writing):
            end.settimeout(0)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        wakeup = signal.set_wakeup_fd(writing.fileno())
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            reading.close()
            writing.close()
            self._alarm = None

    @staticmethod
    def _signals(alarm: socket.socket, wait_s: float | None) -> bytes:
        select.select([alarm], [], [], wait_s)
        try:
            return alarm.recv(4096)
        except BlockingIOError:
            return b""
