"""The decode leg's request: as much of it as does not depend on P is made while P's answer is on its way."""

from __future__ import annotations

from typing import Final, NamedTuple

from router.turn.context import Context
from router.turn.legs import (
    decode_body,
    decode_body_up_to_params,
    engine_headers,
    stay_body,
    unsplit_body,
    with_params,
)
from router.turn.plan import Kind, Plan
from router.turn.prefill import Prefilled, asks_handle, engine_verified, may_leave_handle
from router.turn.record import Record
from router.turn.spans import Span

_AHEAD_BYTES: Final = 131_072
"""Of a client's body; a copy of a larger one is made when it is sent, as many may wait for P at once."""


class Ahead(NamedTuple):
    """What was made of a decode leg's request before P had answered. Serves one leg: its id is in it."""

    plan: Plan
    salt: str | None
    lifts_ids: bool
    body_up_to_params: bytes | None
    """None of a large one."""
    span: Span
    headers: tuple[tuple[str, str], ...]


class DecodeRequest(NamedTuple):
    """The request of one decode leg, but for the limits that its call will have."""

    lifts_ids: bool
    """Whether the answer carries token ids that we asked for."""
    body: bytes
    span: Span
    headers: tuple[tuple[str, str], ...]


def make_ahead(context: Context, record: Record, plan: Plan, salt: str | None) -> Ahead:
    """For a turn whose prefill leg, under ``salt``, has left and will most likely be answered with params."""
    lifts_ids = _lifts_ids(context, record, plan)
    salt = salt or _own_salt(context, plan)
    span, headers = _headers(context, record, plan)
    body = None
    if record.request.size_bytes <= _AHEAD_BYTES:
        body = decode_body_up_to_params(record.request, want_token_ids=lifts_ids, salt=salt)
    return Ahead(plan, salt, lifts_ids, body, span, headers)


def decode_request(
    context: Context, record: Record, plan: Plan, prefilled: Prefilled | None, ahead: Ahead | None
) -> DecodeRequest:
    """The request of a decode leg, or of the only leg of a turn that one node serves."""
    # The node's own salt counts where the prefill leg had none: it may be another than was planned then.
    salt = (prefilled.salt if prefilled is not None else None) or _own_salt(context, plan)
    params = prefilled.params if prefilled is not None else None
    if ahead is not None and ahead.plan is plan and ahead.salt == salt and params is not None:
        if ahead.body_up_to_params is not None:
            body = with_params(ahead.body_up_to_params, params)
        else:
            body = decode_body(record.request, params, want_token_ids=ahead.lifts_ids, salt=salt)
        return DecodeRequest(ahead.lifts_ids, body, ahead.span, ahead.headers)
    request, lifts_ids = record.request, False
    if plan.kind is Kind.STAY and asks_handle(plan):
        lifts_ids = may_leave_handle(context, request, plan)
        body = stay_body(request, want_token_ids=lifts_ids, salt=salt)
    elif prefilled is None:
        body = unsplit_body(request, salt=salt)
    else:
        # Without params no handle comes of it.
        lifts_ids = params is not None and _lifts_ids(context, record, plan)
        body = decode_body(request, params, want_token_ids=lifts_ids, salt=salt)
    span, headers = _headers(context, record, plan)
    return DecodeRequest(lifts_ids, body, span, headers)


def _lifts_ids(context: Context, record: Record, plan: Plan) -> bool:
    return (
        context.settings.answer_tokens
        and may_leave_handle(context, record.request, plan)
        and not engine_verified(plan)
    )


def _own_salt(context: Context, plan: Plan) -> str | None:
    node = plan.decode
    return context.doubts.salt(node.origin, context.fleet.process(node.key))


def _headers(context: Context, record: Record, plan: Plan) -> tuple[Span, tuple[tuple[str, str], ...]]:
    leg_id = record.leg_id("d")
    span = record.span("decode", plan.decode.key, leg_id)
    headers = engine_headers(
        record.request.headers,
        leg_id=leg_id,
        api_key=context.settings.api_key(),
        rank=plan.decode.rank,
        traceparent=span.traceparent,
    )
    return span, headers
