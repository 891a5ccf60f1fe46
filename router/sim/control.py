"""``/sim/…``: what tests and demos ask of a simulated engine, besides what vLLM answers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from router.sim import fabric
from router.sim.engine import SimEngine
from router.sim.faults import Fault
from router.sim.reply import Reply


def state(engine: SimEngine) -> dict[str, Any]:
    """Everything that a test wants to see of an engine, JSON-ready."""
    engine.expire()
    return {
        "engine_id": engine.engine_id,
        "role": engine.config.role,
        "dead": engine.dead,
        "now_s": engine.clock.now(),
        "corruptions": [asdict(record) for record in engine.corruptions],
        "aborts": [asdict(record) for record in engine.aborts],
        "pins": {
            pin.request_id: {
                "tokens": pin.tokens,
                "blocks": len(pin.blocks),
                "deadline_s": pin.deadline_s,
                "side": pin.side,
                "reads": pin.reads,
            }
            for pin in engine.pins.by_request.values()
        },
        "open_requests": {path: count for path, count in engine.open_requests.items() if count},
        "running": list(engine.running),
        "waiting": len(engine.waiting),
        "kv_usage": engine.pool.usage,
        "counters": asdict(engine.counters),
    }


def handle(engine: SimEngine, method: str, path: str, body: bytes) -> Reply:
    """Answer a request under ``/sim/``."""
    try:
        return _handle(engine, f"{method} {path}", body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        return Reply.error(str(error), 400, "BadRequestError")


def _handle(engine: SimEngine, route: str, body: bytes) -> Reply:
    match route:
        case "POST /sim/kv":
            return Reply(200, (), fabric.serve(engine, body))
        case "GET /sim/state":
            return Reply.json(state(engine))
        case "GET /sim/requests":
            return Reply.json([asdict(received) for received in engine.received])
        case "POST /sim/faults":
            for fault in msgspec.json.decode(body, type=list[Fault]):
                engine.faults.add(fault)
        case "DELETE /sim/faults":
            engine.faults.clear()
        case "POST /sim/restart":
            engine.restart()
        case "POST /sim/expire":
            engine.expire_all()
        case "POST /sim/reset":
            engine.corruptions.clear()
            engine.aborts.clear()
            engine.received.clear()
        case _:
            return Reply.json({"detail": "Not Found"}, 404)
    return Reply.json({"ok": True})
