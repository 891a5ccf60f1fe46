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

    place = Place(tenant, lambda: _fits(admission, pools()), wake)
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
    """Those that may get one more turn; all, where others were faster since this one got in."""
    return [node for node in nodes if admission.has_room(node.key, node.limit)] or nodes


def _fits(admission: Admission, pools: Sequence[Sequence[Node]]) -> bool:
    """Whether there is room in each pool. One without nodes is for the plan to refuse, not to wait for."""
    return all(not pool or any(admission.has_room(node.key, node.limit) for node in pool) for pool in pools)
