"""Single requests to engines, with the bodies that the router itself sends; every failure is a value."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import msgspec

from router.check.observed import HandlePlace, LegSeen, ParamsSeen, RouteSeen, read_params
from router.engines import nixl
from router.engines.upstream import Call, Limits, TimedOut, Upstream, UpstreamError
from router.fleet.node import Engine, Node
from router.fleet.probe import engine_in_metrics
from router.turn import render
from router.turn.legs import decode_body, engine_headers, prefill_body
from router.turn.reading import Answer
from router.turn.request import Request
from router.turn.sse import EventTooLarge, Framer
from router.turn.tap import Tap, TapSettings, lift

_LIFT = TapSettings(lift_token_ids=True)
_EXCERPT_CHARS = 160


class _ErrorBody(msgspec.Struct):
    message: str = ""


class _Failed(msgspec.Struct):
    error: _ErrorBody | None = None
    detail: object = None


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    kv_transfer_params: dict[str, msgspec.Raw] | None = None


def authorization(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The header that shows an engine's key."""
    return (("authorization", f"Bearer {api_key}"),) if api_key is not None else ()


class Engines:
    """Sends the legs of a check. ``timeout_s`` bounds each request; nothing but cancellation is raised."""

    def __init__(
        self,
        upstream: Upstream,
        *,
        api_key: str | None,
        timeout_s: float,
        connect_s: float,
        now: Callable[[], float],
    ) -> None:
        self.upstream = upstream
        self.now = now
        self._key = api_key
        self._authorization = authorization(api_key)
        self._limits = Limits(connect_s=connect_s, answer_s=timeout_s, idle_s=timeout_s)

    async def prefill(self, node: Node, request: Request, params: bytes, *, salt: str | None) -> LegSeen:
        body = prefill_body(request, params, want_token_ids=True, salt=salt)
        return await self.post(node, request.path, body)

    async def decode(self, node: Node, request: Request, params: bytes, *, salt: str | None) -> LegSeen:
        """The decode leg, not streamed."""
        body = decode_body(request, params, want_token_ids=True, salt=salt)
        return await self.post(node, request.path, body)

    async def post(self, node: Node, path: str, body: bytes) -> LegSeen:
        """A request whose answer is read whole."""
        began_s = self.now()
        try:
            answer = await self.upstream.send(node.origin, self._call(path, body))
        except UpstreamError as error:
            return self._broken(began_s, error)
        seen = LegSeen(began_s, self.now(), answer.status, body=answer.body)
        if answer.status != 200:
            return replace(seen, fault=f"answered {answer.status}{_excerpt(answer.body)}")
        try:
            return _with_answer(seen, lift(answer.body, _LIFT).answer)
        except ValueError:
            return replace(seen, fault="answered 200 with something that is not a JSON object")

    async def stream(
        self, node: Node, request: Request, params: bytes, *, salt: str | None
    ) -> tuple[LegSeen, HandlePlace]:
        """The decode leg, streamed, and where its handle was."""
        body = decode_body(request, params, want_token_ids=True, salt=salt)
        began_s, tap, framer, place = self.now(), Tap(_LIFT), Framer(), HandlePlace.NONE
        try:
            async with self.upstream.stream(node.origin, self._call(request.path, body)) as answer:
                if answer.status != 200:
                    text = await answer.read()
                    fault = f"answered {answer.status}{_excerpt(text)}"
                    return LegSeen(began_s, self.now(), answer.status, fault), place
                async for chunk in answer.chunks():
                    tap.feed(chunk)
                    for event in framer.feed(chunk):
                        data = b"\n".join(event.raw[start:end] for start, end in event.data_spans())
                        place = _place(data) or place
        except UpstreamError as error:
            return self._broken(began_s, error), place
        except EventTooLarge as error:
            return LegSeen(began_s, self.now(), 200, str(error)), place
        end = tap.finish()
        seen = LegSeen(began_s, self.now(), 200)
        if not end.done and end.answer.error is None:
            return replace(seen, fault="the stream broke off"), place
        return _with_answer(seen, end.answer), place

    async def route(self, node: Node, request: Request, prompt_ids: object) -> RouteSeen:
        """Which route tells a prompt's ids, in the router's order, and whether they are ``prompt_ids``."""
        asks = [("render", render.by_render(request)), ("tokenize", render.by_tokenize(request, media=False))]
        status = None
        for name, ask in asks:
            if ask is None:
                continue
            leg = await self.post(node, ask.path, ask.body)
            status = leg.status if leg.status is not None else status
            if leg.status == 200:
                try:
                    ids = render.ids_of(leg.body)
                except render.Unrendered:
                    continue
                return RouteSeen(name, 200, None if prompt_ids is None else ids == prompt_ids)
        return RouteSeen("", status)

    async def load(self, node: Node) -> Engine:
        """What ``/metrics`` tells now; nothing where it does not answer."""
        call = Call("GET", "/metrics", self._authorization, limits=self._limits)
        try:
            answer = await self.upstream.send(node.origin, call)
        except UpstreamError:
            return Engine()
        return engine_in_metrics(answer.body) if answer.status == 200 else Engine()

    def _call(self, path: str, body: bytes) -> Call:
        headers = engine_headers((), leg_id=f"check-{secrets.token_hex(8)}", api_key=self._key)
        return Call("POST", path, headers, body, self._limits)

    def _broken(self, began_s: float, error: UpstreamError) -> LegSeen:
        return LegSeen(
            began_s,
            self.now(),
            fault=str(error),
            timed_out=isinstance(error, TimedOut) and error.phase != "connect",
        )


def _with_answer(seen: LegSeen, answer: Answer) -> LegSeen:
    if answer.error is not None:
        return replace(seen, fault=f"answered an error under 200{_excerpt(answer.error)}")
    if answer.finish_reasons and answer.finish_reasons[0] in ("abort", "error"):
        return replace(seen, fault=f"the engine ended the request with {answer.finish_reasons[0]!r}")
    params: ParamsSeen | None = None
    if answer.params is not None:
        try:
            params = read_params(answer.params)
        except nixl.NotParams as error:
            return replace(seen, answer=answer, fault=str(error))
    return replace(seen, answer=answer, params=params)


def _place(data: bytes) -> HandlePlace | None:
    """Where the handle is, if this chunk has it."""
    if b"kv_transfer_params" not in data:
        return None
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not chunk.kv_transfer_params:
        return None
    return HandlePlace.NATIVE if chunk.choices else HandlePlace.PLUGIN


def _excerpt(body: bytes) -> str:
    """What an engine said, in one short line."""
    text = body.decode("utf-8", "replace")
    try:
        failed = msgspec.json.decode(body, type=_Failed)
        text = (failed.error.message if failed.error is not None else "") or str(failed.detail or "") or text
    except (msgspec.MsgspecError, RecursionError):
        pass
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not line:
        return ""
    return ": " + (line if len(line) <= _EXCERPT_CHARS else line[: _EXCERPT_CHARS - 1] + "…")
