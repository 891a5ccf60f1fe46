import msgspec
import pytest

from router.sim.config import EngineConfig
from router.sim.engine import SimEngine
from router.sim.fabric import HttpFabric, KvRead, LocalFabric, ReadAnswer, serve

ASK = KvRead("e", "r", (1, 2))


async def test_nobody_there_is_an_engine_that_is_gone() -> None:
    local, http = LocalFabric(), HttpFabric()
    for fabric in (local, http):
        answer = await fabric.read(("127.0.0.1", 1), ASK)
        assert answer.status == "engine_gone"
        fabric.notify(("127.0.0.1", 1), "e", "r")
        await fabric.close()


async def test_another_engine_at_the_address_is_gone_too() -> None:
    fabric = LocalFabric()
    engine = SimEngine(EngineConfig(engine_id="mine"), fabric=fabric)
    assert (await fabric.read(engine.address, ASK)).status == "engine_gone"
    found = await fabric.read(engine.address, KvRead("mine", "r", (1, 2)))
    assert (found.status, found.kept, len(found.kvs)) == ("ok", "unknown", 2)


def test_the_wire_of_the_side_channel() -> None:
    engine = SimEngine(EngineConfig(engine_id="e"))
    raw = serve(engine, msgspec.msgpack.encode({"do": "read", "ask": ASK}))
    assert msgspec.msgpack.decode(raw, type=ReadAnswer) == engine.serve_read(ASK)
    assert serve(engine, msgspec.msgpack.encode({"do": "notify", "engine_id": "e", "request_id": "r"})) == b""
    assert engine.counters.notifications_after_expiry == 1
    assert serve(engine, msgspec.msgpack.encode({"do": "hold", "engine_id": "e", "request_id": "r"})) == b""
    with pytest.raises(msgspec.DecodeError):
        serve(engine, b"\xc1")
