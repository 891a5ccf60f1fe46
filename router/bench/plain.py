"""The proxy that anybody would write: FastAPI and httpx, two legs, nothing remembered. To measure against."""

import argparse
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse

_COLD = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip


def application(prefill: str, decode: str) -> FastAPI:
    """The proxy's application."""
    app = FastAPI()
    client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))  # noqa: S113

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> StreamingResponse:
        body: dict[str, Any] = await request.json()
        first = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": _COLD}
        answer = await client.post(f"{prefill}/v1/chat/completions", json=first)
        body["kv_transfer_params"] = answer.json()["kv_transfer_params"]

        async def stream() -> AsyncIterator[bytes]:
            async with client.stream("POST", f"{decode}/v1/chat/completions", json=body) as said:
                async for data in said.aiter_bytes():
                    yield data

        return StreamingResponse(stream(), media_type="text/event-stream")

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    app = application(arguments.prefill, arguments.decode)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
