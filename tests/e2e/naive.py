"""A hand-over that trusts a conversation's id: what this router must not be, and a control for its tests.

It keeps the last handle of each conversation and sends it with the next turn, unverified, as example proxies
do. Tests that find no corruption with it find none anywhere.
"""

from dataclasses import dataclass, field

import msgspec

from router.engines import nixl
from router.engines.upstream import Call, Upstream
from router.turn import tap
from router.turn.legs import decode_body, prefill_body
from router.turn.request import Endpoint, Request, read_request
from tests.e2e.asks import CHAT, Ask

_HEADERS = (("content-type", "application/json"),)
_LIFT = tap.TapSettings(lift_token_ids=False)


@dataclass(slots=True)
class NaiveHandOver:
    """Runs turns on one P and one D, both unmodified engines."""

    upstream: Upstream
    prefill: str
    decode: str
    """Origins of the two nodes."""
    turns: int = 0
    _last: dict[tuple[str, str], bytes] = field(default_factory=dict)

    async def turn(self, ask: Ask) -> None:
        """One turn; its answer goes nowhere."""
        self.turns += 1
        turn_id = f"{ask.tenant}.{self.turns}"
        endpoint = Endpoint.CHAT if ask.path == CHAT else Endpoint.COMPLETIONS
        body = {key: value for key, value in ask.body.items() if key not in ("stream", "stream_options")}
        request = read_request(endpoint, ask.path, ask.headers, msgspec.json.encode(body), turn_id=turn_id)
        handle = self._last.pop((ask.tenant, ask.conversation), nixl.COLD_PARAMS)
        params = await self._leg(
            self.prefill, request, prefill_body(request, handle, want_token_ids=False), f"{turn_id}-p1"
        )
        if params is None:
            return
        left = await self._leg(
            self.decode, request, decode_body(request, params, want_token_ids=False), f"{turn_id}-d1"
        )
        if left is not None:
            self._last[ask.tenant, ask.conversation] = left

    async def _leg(self, origin: str, request: Request, body: bytes, leg_id: str) -> bytes | None:
        call = Call("POST", request.path, (*_HEADERS, ("x-request-id", leg_id)), body)
        answer = await self.upstream.send(origin, call)
        return tap.lift(answer.body, _LIFT).answer.params if answer.status == 200 else None
