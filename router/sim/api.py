"""The HTTP surface of a simulated engine, without the sockets: a request goes in, a ``Reply`` comes out."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from hashlib import blake2b
from typing import Any

import msgspec

from router.sim import aside
from router.sim.ask import BadRequest, Job, bound_tokens, read_job
from router.sim.engine import SimEngine
from router.sim.faults import Fault
from router.sim.metrics import exposition
from router.sim.model import answer
from router.sim.openai import Chunk, Outcome, Writer
from router.sim.record import Received
from router.sim.reply import DONE, Reply, error_object, event
from router.sim.sequence import ConnectionCut, EngineError, Prompt, Sequence

Fields = dict[str, Any]


async def handle(engine: SimEngine, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """Answer one request. Header names are lower case.

    Raises ConnectionCut where the connection is to break without an answer. The caller closes the reply; to
    leave early, cancel this call, or close the reply before its end.
    """
    if method == "GET":
        return _get(engine, path)
    route = _POST.get(path)
    if route is None:
        return Reply.json({"detail": "Not Found"}, 404)
    count = engine.open_requests
    count[path] = count.get(path, 0) + 1

    def close() -> None:
        count[path] -= 1

    try:
        reply = await _post(engine, route, path, headers, body)
    except BaseException:
        close()
        raise
    reply.on_close = close
    return reply


async def _post(
    engine: SimEngine, route: _Route, path: str, headers: Mapping[str, str], body: bytes
) -> Reply:
    try:
        fields = _read_json(headers, body)
    except BadRequest as refusal:
        return Reply.error(str(refusal), refusal.status, refusal.kind, refusal.param)
    engine.received.append(Received(path, dict(headers), fields, engine.clock.now()))
    fault = engine.faults.take(path, fields)
    if fault is not None:
        if fault.restart:
            engine.restart()
            raise ConnectionCut
        await _before(engine, fault, fields)
        if fault.status is not None:
            return Reply(fault.status, (("content-type", "application/json"),), fault.body.encode())
    try:
        reply = await route(engine, path, headers, fields, fault)
    except BadRequest as refusal:
        _refuse(engine, fields)
        return Reply.error(str(refusal), refusal.status, refusal.kind, refusal.param)
    except EngineError as failure:
        return Reply.error(str(failure), failure.status, "InternalServerError")
    return reply if fault is None else reply.with_fault(fault, engine.clock)


async def _before(engine: SimEngine, fault: Fault, fields: Fields) -> None:
    if fault.hang:
        await engine.died.wait()
        raise ConnectionCut
    if fault.delay_s:
        await engine.clock.sleep(fault.delay_s)
    if fault.status is not None and fault.refuse:
        _refuse(engine, fields)


def _refuse(engine: SimEngine, fields: Fields) -> None:
    params = fields.get("kv_transfer_params")
    if isinstance(params, dict):
        engine.refuse(params)


def _read_json(headers: Mapping[str, str], body: bytes) -> Fields:
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        problem = "Unsupported Media Type: Only 'application/json' is allowed"
        raise BadRequest(f"1 validation error:\n  {problem}", kind="Bad Request")
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        problem = (
            f"{{'type': 'json_invalid', 'loc': 'body', 'msg': 'JSON decode error', 'ctx': {error!s:.80}}}"
        )
        raise BadRequest(f"1 validation error:\n  {problem}", kind="Bad Request", param="body") from None
    if not isinstance(fields, dict):
        raise BadRequest("1 validation error:\n  body must be an object", kind="Bad Request", param="body")
    return fields


def _get(engine: SimEngine, path: str) -> Reply:
    config = engine.config
    if path == "/health":
        return Reply(503 if engine.dead else 200, ())
    if path == "/version":
        return Reply.json({"version": config.version})
    if path == "/metrics":
        kind = (("content-type", "text/plain; version=1.0.0; charset=utf-8"),)
        return Reply(200, kind, exposition(engine).encode())
    if path == "/v1/models":
        return Reply.json(
            {"object": "list", "data": [_model(engine, n) for n in (config.model, *config.adapters)]}
        )
    return Reply.json({"detail": "Not Found"}, 404)


def _model(engine: SimEngine, name: str) -> Chunk:
    base = engine.config.model
    return {
        "id": name,
        "object": "model",
        "created": int(engine.started_at_s),
        "owned_by": "vllm",
        "root": name,
        "parent": None if name == base else base,
        "max_model_len": engine.config.max_model_len,
        "permission": [],
    }


# -- generation ------------------------------------------------------------------------------------------


async def _chat(
    engine: SimEngine, path: str, headers: Mapping[str, str], fields: Fields, fault: Fault | None
) -> Reply:
    began_s = engine.clock.now()
    job = read_job(fields, engine.config, chat=True)
    return await _generate(engine, path, headers, job, fault, began_s=began_s)


async def _completions(
    engine: SimEngine, path: str, headers: Mapping[str, str], fields: Fields, fault: Fault | None
) -> Reply:
    began_s = engine.clock.now()
    job = read_job(fields, engine.config, chat=False)
    return await _generate(engine, path, headers, job, fault, began_s=began_s)


async def _generate(
    engine: SimEngine,
    path: str,
    headers: Mapping[str, str],
    job: Job,
    fault: Fault | None,
    *,
    began_s: float,
) -> Reply:
    unique = headers.get("x-request-id") or secrets.token_hex(8)
    writer = Writer(job, engine.config, f"{'chatcmpl' if job.chat else 'cmpl'}-{unique}")
    if job.stream:
        return Reply.stream(_events(engine, path, writer, fault, began_s))
    outcomes: list[Outcome] = []
    for index, prompt in _children(job):
        sequence = _sequence(engine, path, writer, prompt, index, began_s=began_s)
        try:
            outcome = await _begin(engine, writer, sequence, index, fault)
            seconds = engine.config.profile.output_ms_per_token / 1e3 * (len(outcome.answer.ids) - 1)
            await engine.pause(sequence, seconds)
            outcome.params = _end(engine, sequence, outcome, fault)
        except (EngineError, ConnectionCut):
            engine.drop(sequence)
            raise
        except BaseException:
            engine.abort(sequence)
            raise
        outcomes.append(outcome)
    one = outcomes[-1] if job.chat else outcomes[0]
    hidden = fault is not None and fault.params_at == "none"
    return Reply.json(writer.whole(outcomes, None if hidden else one.params))


def _children(job: Job) -> list[tuple[int, Prompt]]:
    """Every generation of a request, by its choice's index."""
    each = [prompt for prompt in job.prompts for _ in range(job.n)]
    return list(enumerate(each))


def _sequence(
    engine: SimEngine, path: str, writer: Writer, prompt: Prompt, index: int, *, began_s: float
) -> Sequence:
    job = writer.job
    suffix = "" if job.chat else f"-{index // job.n}"
    prefix = f"{index % job.n}_" if job.n > 1 else ""
    return engine.sequence(
        prompt,
        answer_id=f"{prefix}{writer.answer_id}{suffix}",
        path=path,
        bound_tokens=bound_tokens(job.ask, engine.config),
        params=job.params,
        salt=job.salt,
        adapter=job.adapter,
        stays=job.stays,
        fresh=job.prompt_logprobs is not None,
        began_s=None if index else began_s,  # the others follow the first one
    )


async def _begin(
    engine: SimEngine, writer: Writer, sequence: Sequence, index: int, fault: Fault | None
) -> Outcome:
    """The prefill, and the plan of the answer."""
    job = writer.job
    await engine.prefill(sequence)
    nth = index % job.n
    seed = blake2b(sequence.seed + bytes((nth,)), digest_size=8).digest() if nth else sequence.seed
    plan = answer(seed, job.ask, engine.config, clean=sequence.clean)
    del plan.ids[sequence.bound_tokens :], plan.deltas[sequence.bound_tokens :]
    if fault is not None and fault.finish_reason is not None:
        plan.finish_reason = fault.finish_reason
    reported = (sequence.params or {}).get("remote_prefill_cached_tokens")
    cached = reported if isinstance(reported, int) else sequence.cached_tokens
    return Outcome(index, sequence.prompt, plan, cached)


def _end(
    engine: SimEngine, sequence: Sequence, outcome: Outcome, fault: Fault | None
) -> dict[str, Any] | None:
    plan = outcome.answer
    sane = plan.finish_reason in ("stop", "length")
    params = engine.finish(sequence, plan.ids, by_stop_string=plan.by_stop_string or not sane)
    return {**params, **fault.extra_params} if params and fault else params


async def _events(
    engine: SimEngine, path: str, writer: Writer, fault: Fault | None, began_s: float
) -> AsyncGenerator[bytes, None]:
    chunks = _chunks(engine, path, writer, fault, began_s)
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield event(chunk)
    except EngineError as failure:
        yield event(error_object(str(failure), failure.status, "InternalServerError"))
    yield DONE


async def _chunks(
    engine: SimEngine, path: str, writer: Writer, fault: Fault | None, began_s: float
) -> AsyncGenerator[Chunk, None]:
    job, outcomes = writer.job, list[Outcome]()
    opened, params = False, None
    place = _params_place(engine, fault)
    for index, prompt in _children(job):
        sequence = _sequence(engine, path, writer, prompt, index, began_s=began_s)
        try:
            outcome = await _begin(engine, writer, sequence, index, fault)
            outcomes.append(outcome)
            if not opened:
                for nth in range(job.n):
                    for chunk in writer.opening(nth, prompt):
                        yield chunk
                opened = True
            last = len(outcome.answer.ids) - 1
            for at in range(last + 1):
                if at:
                    await engine.pause(sequence, engine.config.profile.output_ms_per_token / 1e3)
                finished = at == last
                if finished:
                    params = outcome.params = _end(engine, sequence, outcome, fault)
                made = writer.token(outcome, at, outcome.answer.client_reason if finished else None)
                if made is None:
                    continue
                if params and ((finished and place == "finish") or (at == 0 and place == "first")):
                    made["kv_transfer_params"] = params
                yield made
        except (EngineError, ConnectionCut):
            engine.drop(sequence)
            raise
        except BaseException:
            engine.abort(sequence)
            raise
    for chunk in writer.closing(outcomes):
        if params and place == "usage":
            chunk["kv_transfer_params"] = params
        yield chunk
    if params and place == "last":
        yield writer.params_only(params)


def _params_place(engine: SimEngine, fault: Fault | None) -> str:
    """Where a stream carries the params: 0.33 in the finish chunk, the plugin in one of its own."""
    if fault is not None and fault.params_at is not None:
        return fault.params_at
    if engine.config.version != "0.32.0":
        return "finish"
    return "last" if engine.config.plugin else "none"


_Route = Callable[[SimEngine, str, Mapping[str, str], Fields, Fault | None], Awaitable[Reply]]
_POST: dict[str, _Route] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completions,
    "/v1/chat/completions/render": aside.render,
    "/v1/completions/render": aside.render,
    "/tokenize": aside.tokenize,
    "/v1/embeddings": aside.embeddings,
}
