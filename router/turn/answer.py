"""The decode leg, or the only leg of a turn that one node serves: bytes through, and the handle lifted out.

A stream goes on event by event, as it comes. What is remembered is stored before the last bytes go out, so
that a client's next turn cannot overtake it. A stream that breaks off never looks complete, and leaves
nothing behind.
"""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from router.engines.upstream import Answer, AnswerStream, Call, TimedOut, UpstreamError
from router.fleet.leg import Leg
from router.telemetry.facts import EndedBy, LegFailed, LegFault
from router.turn import reading, sse, tap
from router.turn.context import Client, Context
from router.turn.decode_request import Ahead, decode_request
from router.turn.fault import Faulty, fault_of
from router.turn.forwarding import ClientStalls, Forwarding
from router.turn.learn import learn_first_byte, learn_stay
from router.turn.legs import client_headers
from router.turn.plan import Kind, Plan
from router.turn.prefill import Prefilled
from router.turn.record import Record
from router.turn.refusal import Refused
from router.turn.request import Endpoint, Request
from router.turn.waiting import WhileExpected
from router.values import value

_EVENT_STREAM: Final = "text/event-stream"
_UNBUFFERED: Final = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""A proxy in front that buffers would turn a stream into a late whole."""
_REST_S: Final = 5.0
"""How long D may take to end its body after ``[DONE]``; engines do it at once."""


class DecodeFailed(Faulty):
    """D answered a server error, or no completion. ``answer`` is its own, if that may be passed on."""

    def __init__(self, message: str, answer: Answer | None = None) -> None:
        super().__init__(message, LegFault.NONSENSE if answer is None else LegFault.STATUS)
        self.answer = answer


@value
class Ended:
    """A decode leg that ended well. Times on the ledger's clock."""

    answer: reading.Answer
    sent_at_s: float
    waited_from_s: float


Remember = Callable[[Plan, Prefilled | None, "Ended"], Awaitable[None]]
"""Puts what a turn left behind where the next one finds it."""


@value
class DecodeLeg:
    """What one decode leg is made of."""

    context: Context
    request: Request
    plan: Plan
    prefilled: Prefilled | None
    record: Record
    client: Client
    remember: Remember
    explain: tuple[tuple[str, str], ...]
    ahead: Ahead | None
    """What was made of the request already."""
    tell_before: Callable[[], None]
    """Tells what the prefill leg has taught, when that keeps nobody waiting."""

    async def run(self) -> None:
        """Send the leg and forward its answer.

        Raises UpstreamError and DecodeFailed before the client got anything, and Refused for D's 4xx. After
        the first byte nothing is raised: the stream ends in an error event.
        """
        request, settings, node = self.request, self.context.settings, self.plan.decode
        sent = decode_request(self.context, self.record, self.plan, self.prefilled, self.ahead)
        answer_s = settings.first_token_s if request.stream else settings.decode_s
        # A D that is reached after P's lease reads blocks that are another prompt's by then.
        left_s = self.record.lease_left_s(settings.prefill_lease_s)
        limits = settings.limits(answer_s, connect_within_s=left_s)
        # A stream's first token is to come soon, and the client waits for it; a whole answer takes its time.
        meanwhile = None if request.stream else self.tell_before
        call = Call("POST", request.target, sent.headers, sent.body, limits, meanwhile)
        self.record.decode_sent()
        sent_at_s = self.context.now()
        with (
            sent.span as span,
            self.context.fleet.leg(node.key, peer=self._read_from()) as leg,
            self.context.load.decoding(node.key, self.context.now) as self.record.decode_legs,
            WhileExpected(leg) as end_watch,
        ):
            async with self.context.upstream.stream(node.origin, call) as answer:
                span.answered(answer.status)
                if answer.status != 200:
                    leg.answered(answer.status, answer.headers)
                    await self._refuse(answer)
                media, encoding = _kind_of(answer)
                streamed = media == _EVENT_STREAM
                if encoding not in ("", "identity") and (streamed or self.plan.kind is not Kind.UNSPLIT):
                    # Nothing private could be taken out of it, and nothing be added.
                    raise self._nonsense(leg, f"an answer in {encoding!r} encoding, which was not asked for")
                tap_settings = _tap_settings(
                    sent.lifts_ids, sent.lifts_ids and not request.wants_token_ids, settings.expose_params
                )
                if streamed:
                    await self._stream(answer, tap_settings, sent_at_s, leg, end_watch)
                else:
                    await self._whole(answer, tap_settings, sent_at_s, leg, end_watch)

    def _read_from(self) -> str:
        """The key of the prefill node that D reads from; empty where it reads from none."""
        reads = self.prefilled is not None and self.prefilled.params is not None
        return self.plan.prefill.key if reads and self.plan.prefill is not None else ""

    async def _refuse(self, answer: AnswerStream) -> None:
        whole = Answer(answer.status, answer.headers, await answer.read())
        if 400 <= whole.status < 500:
            raise Refused("decode", self.plan.decode.key, whole)
        raise DecodeFailed(f"status {whole.status}", whole)

    async def _whole(
        self,
        answer: AnswerStream,
        settings: tap.TapSettings,
        sent_at_s: float,
        leg: Leg,
        end_watch: Callable[[], None],
    ) -> None:
        waited_from_s = self.context.now()
        body = await answer.read()
        end_watch()
        leg.answered(answer.status)
        try:
            lifted = tap.lift(body, settings)
        except ValueError as error:
            if self.plan.kind is not Kind.UNSPLIT:
                raise self._nonsense(leg, f"an answer that is no JSON object: {error}") from None
            # An endpoint that we do not know may answer anything; without JSON there are no private fields.
            await self._pass(answer, body)
            return
        if lifted.answer.error is not None:
            leg.failed("an error under status 200")
            raise DecodeFailed("an error under status 200", Answer(502, answer.headers, lifted.body))
        self._note(lifted.answer)
        if "error" in lifted.answer.finish_reasons:
            raise self._nonsense(leg, "finish reason error")
        if not lifted.answer.unreadable:
            await self._remember(Ended(lifted.answer, sent_at_s, waited_from_s))
        await self._pass(answer, lifted.body)

    @staticmethod
    def _nonsense(leg: Leg, why: str) -> DecodeFailed:
        """A status of 200 is no sign of health where what comes with it is no answer."""
        leg.failed(why)
        return DecodeFailed(why)

    async def _pass(self, answer: AnswerStream, body: bytes) -> None:
        self.record.first_byte()
        self.record.status = 200
        await self.client.whole(200, self._headers(answer.headers, ()), body)

    async def _stream(
        self,
        answer: AnswerStream,
        settings: tap.TapSettings,
        sent_at_s: float,
        leg: Leg,
        end_watch: Callable[[], None],
    ) -> None:
        wire = tap.Tap(settings)
        # Engines send headers before they compute anything. The client gets them with the first byte, so that
        # until then the turn can go elsewhere.
        waited_from_s = self.context.now()
        chunk = await self._first(answer, waited_from_s - sent_at_s)
        if chunk is None:
            raise self._nonsense(leg, "a stream without a single byte")
        end_watch()
        came_s = self.context.now()
        self.record.status = 200
        await self.client.start(200, self._headers(answer.headers, _UNBUFFERED))
        forwarding = Forwarding(self.client, wire, self.record, self.context.now, waited_from_s)
        try:
            goes_on = forwarding.take(chunk, None)
            # The client has waited for that, and for no more.
            self.tell_before()
            leg.answered(answer.status)
            learn_first_byte(
                self.context.load, self.plan, self.prefilled,
                seconds=came_s - sent_at_s, legs=self.record.decode_legs, now_s=came_s,
            )  # fmt: skip
            await self._forward(answer, forwarding, wire, sent_at_s, goes_on=goes_on)
        except (UpstreamError, sse.EventTooLarge) as error:
            # After [DONE] the client has the whole answer, and only the connection ended badly.
            if not wire.done:
                leg.failed(str(error))
                by = EndedBy.ROUTER if isinstance(error, TimedOut) else EndedBy.FAULT
                await self._break_off(wire, str(error), by, fault_of(error))
                return
        end = wire.finish()
        self._note(end.answer)
        if end.answer.error is not None:
            self.record.ended(EndedBy.ENGINE, "error event in the stream")
        elif not (end.done or self._ends_without_done(end)):
            leg.failed("the stream ended without [DONE]")
            await self._break_off(wire, "the stream ended without [DONE]", EndedBy.FAULT, LegFault.BROKEN)
            return
        await self.client.end()

    async def _forward(
        self, answer: AnswerStream, forwarding: Forwarding, wire: tap.Tap, sent_at_s: float, *, goes_on: bool
    ) -> None:
        """Forward what follows a stream's first piece. Raises UpstreamError and EventTooLarge."""
        while True:
            if forwarding.is_held:
                await self._remember(Ended(wire.answer(), sent_at_s, forwarding.waited_from_s))
                if not forwarding.let_go():
                    await self._flush()
                self.client.told_all()
                await self._rest(answer, forwarding)
                return
            if not goes_on:
                await self._flush()
            if await answer.pump(forwarding.take, forwarding.shortcut):
                return
            goes_on = False

    async def _flush(self) -> None:
        """Wait for a client that has fallen behind; the engine waits with it. Raises ClientStalls."""
        limit_s = self.context.settings.client_s
        try:
            async with asyncio.timeout(limit_s):
                await self.client.flush()
        except TimeoutError:
            raise ClientStalls(f"the client has read nothing for {limit_s:g} s") from None

    async def _rest(self, answer: AnswerStream, forwarding: Forwarding) -> None:
        """What follows ``[DONE]``: the body's end. The client may be gone: nobody else ends this wait."""
        try:
            async with asyncio.timeout(_REST_S):
                while not await answer.pump(forwarding.take):
                    await self._flush()
        except TimeoutError:
            raise TimedOut("end", _REST_S) from None

    async def _first(self, answer: AnswerStream, since_s: float) -> bytes | None:
        """The first piece of a stream: engines send headers at once, and the rest from the first token on."""
        limit_s, came = self.context.settings.first_token_s, []

        def take_one(piece: bytes, _: bytes | None) -> bool:
            came.append(piece)
            return False

        if limit_s is None:
            await answer.pump(take_one)
        else:
            try:
                async with asyncio.timeout(max(limit_s - since_s, 0.0)):
                    await answer.pump(take_one)
            except TimeoutError:
                raise TimedOut("first token", limit_s) from None
        return came[0] if came else None

    def _ends_without_done(self, end: tap.TapEnd) -> bool:
        """Whether such a stream is complete without ``[DONE]``, which only chat and completions promise."""
        return self.request.endpoint is Endpoint.OTHER and not end.dropped_bytes

    async def _remember(self, ended: Ended) -> None:
        """Store what the turn leaves behind, if D says that it came to its end."""
        if ended.answer.error is None and ended.answer.unsound_finish is None:
            await self.remember(self.plan, self.prefilled, ended)

    async def _break_off(self, wire: tap.Tap, why: str, by: EndedBy, fault: LegFault) -> None:
        """End a stream that has begun and cannot be finished, in a way that no client takes for its end."""
        self._note(wire.answer())
        self.record.ended(by, why)
        if self.record.spans is not None:
            self.record.spans.newest.failed(why)
        self.context.facts.publish(
            LegFailed(
                self.request.turn_id, "decode", self.plan.decode.key, why,
                with_handle=False, action="error_event", fault=fault,
            )
        )  # fmt: skip
        message = f"the engine broke off its answer: {why}"
        told = tap.error_event(message, "server_error", "engine_broke_off", self.request.path)
        if not self.client.put(told):
            await self._flush()
        await self.client.end()

    def _note(self, answer: reading.Answer) -> None:
        record = self.record
        if answer.finish_reasons:
            record.finish_reason = answer.finish_reasons[0]
            if "error" in answer.finish_reasons:
                record.ended(EndedBy.ENGINE, "finish reason error")
        if answer.usage is not None:
            record.prompt_tokens = answer.usage.prompt_tokens
            record.completion_tokens = answer.usage.completion_tokens
            if self.plan.kind is Kind.STAY and answer.usage.cached_tokens is not None:
                record.reused_tokens = answer.usage.cached_tokens
                learn_stay(self.context, self.plan, answer.usage.cached_tokens)
        if record.prompt_tokens is None and answer.prompt_token_ids is not None:
            record.prompt_tokens = len(answer.prompt_token_ids)
        if record.completion_tokens is None and answer.answer_token_ids is not None:
            record.completion_tokens = len(answer.answer_token_ids)

    def _headers(
        self, engine: Sequence[tuple[str, str]], ours: Sequence[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        explain = (*self.explain, *self.record.server_timing()) if self.explain else ()
        set_here = {name for name, _ in (*ours, *explain)}
        kept = [(name, value) for name, value in client_headers(engine) if name not in set_here]
        return [*kept, *ours, *explain]


@functools.cache
def _tap_settings(lifts_ids: bool, hides_ids: bool, exposes_params: bool) -> tap.TapSettings:  # noqa: FBT001
    """One of the few that there are."""
    return tap.TapSettings(lift_token_ids=lifts_ids, hide_token_ids=hides_ids, expose_params=exposes_params)


def _kind_of(answer: AnswerStream) -> tuple[str, str]:
    """The media type and the encoding of an answer, in lower case; empty where it says nothing."""
    media = encoding = ""
    for name, text in answer.headers:
        if name == "content-type":
            media = media or text.partition(";")[0].strip().lower()
        elif name == "content-encoding":
            encoding = encoding or text.strip().lower()
    return media, encoding


def held_ids(prefilled: Prefilled | None, answer: reading.Answer, held_tokens: int) -> array[int] | None:
    """The ids of the tokens that D holds and that we can name; None where P's and D's prompts differ.

    The last generated token has no KV yet, and what an engine counts past the real tokens is not trusted.
    Where the answer's ids are not known, what is held of it is left out.
    """
    by_prefill = prefilled.prompt_ids if prefilled is not None else None
    prompt = answer.prompt_token_ids if answer.prompt_token_ids is not None else by_prefill
    if prompt is None or (by_prefill is not None and by_prefill != prompt):
        return None
    if answer.answer_token_ids:
        return (prompt + answer.answer_token_ids[:-1])[:held_tokens]
    return prompt[:held_tokens]
