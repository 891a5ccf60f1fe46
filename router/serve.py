"""Runs a router: on a socket, until it is stopped, in one process or in several."""

import asyncio
import contextlib
import gc
import logging
import math
import resource
import signal
import socket
from typing import Any, Final

import uvicorn

from router import __version__
from router.app import Router, build
from router.front import application
from router.http.listener import listen, origin_of
from router.http.protocol import Protocol
from router.settings import Settings
from router.telemetry import logs, shared_metrics
from router.workers import Workers

LOG = logging.getLogger("router")
GC_OBJECTS = 10_000
"""New objects, less those that are gone, until the youngest are searched for cycles."""
FILES_A_TURN: Final = 3
"""Descriptors: the client's connection, and one to each of the two nodes."""
FILES_BESIDES: Final = 256
"""Listeners, the ledger's connections, probes, logs."""


class _Server(uvicorn.Server):
    """Tells the router at once when it is to stop, so that ``/ready`` can say so on open connections.

    A second signal, whichever, ends without waiting for open turns.
    """

    def __init__(self, config: uvicorn.Config, router: Router, *, parent: int | None = None) -> None:
        super().__init__(config)
        self._router = router
        self._parent = parent
        """Can be read once the process that started this one is gone."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._parent is not None:
            asyncio.get_running_loop().add_reader(self._parent, self._orphaned, self._parent)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            drain_s = self.config.timeout_graceful_shutdown
            LOG.info("stopping: open turns have %s s to end; a second signal ends at once", drain_s)
        await super().shutdown(sockets)
        LOG.info("stopped")

    def _orphaned(self, parent: int) -> None:
        """Nobody would stop this worker any more, and the next start would find the port taken."""
        asyncio.get_running_loop().remove_reader(parent)
        self.handle_exit(signal.SIGTERM, None)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._router.draining = True
        self.force_exit = self.force_exit or self.should_exit
        super().handle_exit(sig, frame)
        if sig == signal.SIGTERM and not self.force_exit:
            # uvicorn would raise it again in the end: a stop that was asked for and went well is no failure.
            self._captured_signals.remove(sig)


def server_config(settings: Settings, router: Router) -> uvicorn.Config:
    """How the router is served: what stands between its ASGI application and a socket."""
    return uvicorn.Config(
        application(router),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=Protocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing here asks for a client's address
        timeout_keep_alive=math.ceil(settings.keepalive_s),
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
    )


def serve_workers(settings: Settings) -> int:
    """Run ``settings.workers`` processes on one port until they are stopped; the exit code."""
    logs.set_up(settings.log_format, settings.log_level)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        LOG.error("host, port: cannot listen on them: %s", error.strerror or error)
        return 1
    with listener:
        LOG.info("%d workers on %s", settings.workers, origin_of(listener))
        return Workers(
            settings.workers,
            lambda parent: serve(settings, listener=listener, parent=parent),
            ended=shared_metrics.forget,
        ).run()


def allow_files(needed: int) -> None:
    """Let this process open ``needed`` files if it may: usual limits are those of a few hundred turns."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [limit for limit in (needed, hard) if limit != resource.RLIM_INFINITY]
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if min(limits) > soft:
        # A sandbox may forbid it, and some systems take less than their own hard limit.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits), hard))
    if min(limits) < needed:
        LOG.info(
            "max_turns: that many turns would need %d open files, and the hard limit is %d: raise it"
            " (LimitNOFILE=, ulimit -Hn) or lower max_turns, if you expect so many",
            needed,
            hard,
        )


def serve(settings: Settings, *, listener: socket.socket | None = None, parent: int | None = None) -> int:
    """Run the router until it is stopped; the process's exit code.

    ``listener`` is a socket that other workers accept from, too; ``parent`` a descriptor that can be read
    once the process that started them is gone.
    """
    logs.set_up(settings.log_format, settings.log_level)
    allow_files(FILES_A_TURN * settings.max_turns + FILES_BESIDES)
    router = build(settings)
    LOG.info(
        "boomerang %s: verify=%s store=%s prefill=%s decode=%s",
        __version__,
        settings.verify,
        settings.store_shown,
        ",".join(settings.prefill),
        ",".join(settings.decode),
    )
    if settings.admin_port is not None:
        try:
            router.listen_for_admin()
        except OSError as error:
            LOG.error("admin_host, admin_port: cannot listen on them: %s", error.strerror or error)
            return 1
    server = _Server(server_config(settings, router), router, parent=parent)
    # What is loaded by now stays: without it a full collection of a large ledger is shorter.
    gc.collect()
    gc.freeze()
    # A turn makes some thousand objects and leaves few cycles: not each one is to look for them.
    gc.set_threshold(GC_OBJECTS, 20, 20)
    server.run(sockets=[listener] if listener is not None else None)
    return 0 if server.started else 1
