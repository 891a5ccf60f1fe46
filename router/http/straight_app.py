"""The application around all routes: requests for inference pass by the framework."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send


class StraightApp(FastAPI):
    """``inference`` are the POST routes, by path, that answer errors by themselves and need no framework.

    They are routes of the framework as well, which answers for their other methods.
    """

    def __init__(self, inference: Mapping[str, ASGIApp], **options: Any) -> None:
        super().__init__(**options)
        self._inference = inference
        self.router.routes += [Route(path, route, methods=["POST"]) for path, route in inference.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            route = self._inference.get(scope["path"])
            if route is not None:
                await route(scope, receive, send)
                return
        await super().__call__(scope, receive, send)
