import json

import pytest

from router.engines.upstream import Broken, Call, Limits, NeverSent, TimedOut, TooLarge, Upstream
from router.sim.engine import SimEngine
from router.sim.faults import Fault
from router.sim.upstream import SimUpstream
from tests.sim.pool import CHAT, user

BODY = json.dumps({"messages": [user()], "stream": True}).encode()


async def test_whole_answers_and_streams_through_the_routers_own_protocol() -> None:
    upstream: Upstream = SimUpstream({"sim": SimEngine()})
    answer = await upstream.send("sim", Call("GET", "/version"))
    assert (answer.status, json.loads(answer.body)) == (200, {"version": "0.32.0"})
    async with upstream.stream("sim", Call("POST", CHAT, (), BODY)) as stream:
        assert upstream.open_calls() == {"sim": 1}
        assert dict(stream.headers)["content-type"].startswith("text/event-stream")
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    assert upstream.open_calls() == {}


async def test_faults_are_the_protocols_errors() -> None:
    engine = SimEngine()
    upstream = SimUpstream({"sim": engine})
    with pytest.raises(NeverSent):
        await upstream.send("elsewhere", Call("GET", "/health"))
    engine.faults.add(Fault(cut_after_chunks=1))
    with pytest.raises(Broken):
        await upstream.send("sim", Call("POST", CHAT, (), BODY))
    engine.faults.add(Fault(hang=True))
    with pytest.raises(TimedOut) as caught:
        await upstream.send("sim", Call("POST", CHAT, (), BODY, Limits(answer_s=0.01)))
    assert caught.value.phase == "answer"
    engine.faults.add(Fault(delay_chunk_s=60.0))
    with pytest.raises(TimedOut) as caught:
        await upstream.send("sim", Call("POST", CHAT, (), BODY, Limits(idle_s=0.01)))
    assert caught.value.phase == "idle"
    with pytest.raises(TooLarge):
        await upstream.send("sim", Call("POST", CHAT, (), BODY, Limits(max_answer_bytes=10)))
    assert upstream.open_calls() == {}
    assert engine.open_requests == {CHAT: 0}
    assert engine.pool.usage == 0
