"""A turn waits for its place before anything of it is sent: for a bounded time, in a bounded queue."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from router import errors
from router.fleet.admission import Admission, Full, Place, TenantFull
from router.fleet.node import Node
from router.turn.context import Context
from router.turn.record import Record


@contextlib.asynccontextmanager
async def admitted(
    context: Context, record: Record, tenant: bytes | None, pools: Callable[[], Sequence[Sequence[Node]]]
) -> AsyncIterator[None]:
    """Hold a place for one turn, which needs a node of each of ``pools``, as they are when it is looked at.

    Raises errors.TooManyTurns for a tenant that has its share, and errors.NoCapacity where no place is free
    and none becomes free in time.
    """
    admission, woken = context.admission, asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    kind = (record.request.model, record.request.unsplit is None)
    place = Place(tenant, kind, lambda: _free(admission, pools()), wake)
    started_s = context.now()
    try:
        if not admission.enter(place):
            await _wait(woken, context.settings.admission_wait_s)
            record.waited_s = context.now() - started_s
        record.on_nodes = lambda nodes: admission.move(place, nodes)
        yield
    except TenantFull as full:
        raise errors.TooManyTurns(str(full)) from None
    except Full as full:
        raise errors.NoCapacity(f"the router is full: {full}") from None
    finally:
        admission.leave(place)


async def _wait(woken: "asyncio.Future[None]", limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await woken
    except TimeoutError:
        raise errors.NoCapacity(f"no place for this turn became free within {limit_s:g} s") from None


def with_room(admission: Admission, nodes: Sequence[Node]) -> Sequence[Node]:
    """Those that may get one more turn; all, where nodes have changed since this one was admitted."""
    return [node for node in nodes if admission.room(node.key, node.limit) != 0] or nodes


def _free(admission: Admission, pools: Sequence[Sequence[Node]]) -> int | None:
    """How many more turns the pools could take; None: any number.

    A pool without nodes is for the plan to refuse, not to wait for.
    """
    rooms = [_room(admission, pool) for pool in pools if pool]
    limited = [room for room in rooms if room is not None]
    return min(limited, default=None)


def _room(admission: Admission, pool: Sequence[Node]) -> int | None:
    total = 0
    for node in pool:
        room = admission.room(node.key, node.limit)
        if room is None:
            return None
        total += room
    return total
