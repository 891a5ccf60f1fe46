"""The ASGI application in front of a router: the inference routes, and what else its port answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router import __version__
from router.app import Router
from router.http import probes
from router.http.conversations import EndRoute
from router.http.models import ModelsRoute
from router.http.openai import PATHS, InferenceRoute
from router.http.refusals import refuse
from router.http.straight_app import StraightApp
from router.turn.relay import Relay

WORKER_READY_WITHIN_S = 10.0
"""After that time a worker takes connections even if a node has not answered its first probe."""


def application(router: Router) -> FastAPI:
    """The ASGI application: inference routes, and what else may be asked on their port."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with router.running():
            if router.shared is not None:
                # Nobody asks a single worker whether it is ready: it takes no connection before it is.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(router.nodes_known(), WORKER_READY_WITHIN_S)
            yield

    settings, context = router.settings, router.context
    relay = Relay(context)
    inference = {
        path: InferenceRoute(
            relay, endpoint, router.open_turns, settings.max_body_bytes, settings.identity_header
        )
        for path, endpoint in PATHS.items()
    }
    app = StraightApp(
        inference,
        title="Boomerang",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # A redirect would name another scheme or host than the client came by, and lose what it sent.
        redirect_slashes=False,
        exception_handlers={HTTPException: refuse, Exception: refuse},
    )
    app.router.routes.append(Route("/v1/models", ModelsRoute(context).get, methods=["GET"]))
    app.router.routes.append(EndRoute(context, settings.identity_header).route())
    app.router.routes += _probe_routes(router)
    return app


def _probe_routes(router: Router) -> list[Route]:
    fleet = router.context.fleet

    async def live(_: Request) -> Response:
        return _response(probes.live())

    async def ready(_: Request) -> Response:
        return _response(probes.ready(fleet.snapshot.nodes, draining=router.draining))

    async def health(_: Request) -> Response:
        cooling = router.context.doubts.cooling(router.context.now())
        return _response(
            probes.health(
                fleet.snapshot.nodes, mode=router.settings.verify, draining=router.draining, cooling=cooling
            )
        )

    async def metrics(_: Request) -> Response:
        return Response(router.scrape(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return [Route(f"/{probe.__name__}", probe) for probe in (live, ready, health, metrics)]


def _response(answer: probes.ProbeAnswer) -> Response:
    return Response(answer.body, answer.status, media_type="application/json")
