"""What routers of one pool tell each other: operators' drains, doubts, and silences.

Each router sees only the turns that come to it. What it learns from them the others would learn as well, at
the cost of a failed pull each, and an engine whose prefix cache may be wrong must not be trusted by those
that have not seen it. What each sees by itself within seconds (states of nodes, restarts, how fast a node is)
is not told.

No turn waits for any of this: it goes over the shared ledger's board, every ``SHARE_EVERY_S``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from router.fleet.doubts import Doubted
from router.fleet.drains import DrainWish
from router.fleet.node import another_process
from router.ledger.store import Board, LedgerUnavailable
from router.turn.context import Context

SHARE_EVERY_S: Final = 2.0
DRAINS_HEARD_S: Final = 259_200.0
"""Three days, well within ``LIFTED_KEPT_S``. An older note is of a router that is gone; its drains may have
been lifted so long ago that nobody remembers, and would come back."""
MAX_TOLD: Final = 1_024
"""Of each kind of doubt, the newest: a note stays small."""


class Told(msgspec.Struct, array_like=True):
    """A router's note. Fields are only ever added at the end, so that two versions read each other."""

    drains: dict[str, tuple[float, str | None]] = {}
    pairs: list[tuple[str, str, float]] = []
    models: dict[str, float] = {}
    tainted: dict[str, tuple[str | None, str]] = {}
    gaps: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Told).decode


@dataclass(frozen=True, slots=True)
class Sharing:
    """The exchange of one router."""

    context: Context
    board: Board

    async def step(self) -> None:
        """Tell the others, and hear them. A store that does not answer costs nothing but time."""
        try:
            notes = await self.board.exchange(_encode(self._told()))
        except LedgerUnavailable:
            return  # its own facts tell
        heard = []
        for note in notes:
            try:
                heard.append((_decode(note.value), note.age_s))
            except (msgspec.MsgspecError, RecursionError):
                continue  # another version's
        context, now_s = self.context, self.context.now()
        for told, age_s in heard:
            if age_s < DRAINS_HEARD_S:
                context.fleet.hear_drains({key: DrainWish(*wish) for key, wish in told.drains.items()})
            pairs = {(prefill, decode): until_s for prefill, decode, until_s in told.pairs}
            context.doubts.hear(Doubted(pairs, told.models, self._running(told.tainted)), now_s)
        context.gaps.hear((told.gaps, age_s) for told, age_s in heard)

    def _running(self, tainted: Mapping[str, tuple[str | None, str]]) -> dict[str, tuple[str | None, str]]:
        """Without engines whose process is another one by now.

        Each router forgets such a doubt at its next turn there, and would hear it again from the others.
        """
        running = {node.origin: node.engine.engine_id for node in self.context.fleet.snapshot.nodes}
        return {
            origin: (process, salt)
            for origin, (process, salt) in tainted.items()
            if not another_process(running.get(origin), process)
        }

    def _told(self) -> Told:
        context = self.context
        doubted = context.doubts.told(context.now())
        return Told(
            {key: (wish.at_s, wish.why) for key, wish in context.fleet.drains().items()},
            [(*pair, until_s) for pair, until_s in list(doubted.pairs.items())[-MAX_TOLD:]],
            dict(list(doubted.models.items())[-MAX_TOLD:]),
            dict(list(doubted.tainted.items())[-MAX_TOLD:]),
            dict(context.gaps.told()),
        )
