"""A turn waits for its place before anything of it is sent: for a bounded time, in a bounded queue."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from router import errors
from router.fleet.admission import Admission, Full, Place, TenantFull
from router.fleet.node import Node
from router.turn.context import Context
from router.turn.record import Record


def admitted(
    context: Context, record: Record, tenant: bytes | None, pools: Callable[[], Sequence[Sequence[Node]]]
) -> "_Admitted":
    """Hold a place for one turn, which needs a node of each of ``pools``, as they are when it is looked at.

    For an ``async with`` statement. Raises errors.TooManyTurns for a tenant that has its share, and
    errors.NoCapacity where no place is free and none becomes free in time.
    """
    return _Admitted(context, record, tenant, pools)


class _Admitted:
    __slots__ = ("_context", "_place", "_pools", "_record", "_woken")

    def __init__(
        self,
        context: Context,
        record: Record,
        tenant: bytes | None,
        pools: Callable[[], Sequence[Sequence[Node]]],
    ) -> None:
        self._context, self._record, self._pools = context, record, pools
        kind = (record.request.model, record.request.unsplit is None)
        self._place = Place(tenant, kind, self._free, self._wake)
        self._woken: asyncio.Future[None] | None = None
        """Only who has to wait has one."""

    async def __aenter__(self) -> None:
        context, record = self._context, self._record
        started_s = context.now()
        try:
            if not context.admission.enter(self._place):
                self._woken = asyncio.get_running_loop().create_future()
                await _wait(self._woken, context.settings.admission_wait_s)
                record.waited_s = context.now() - started_s
        except BaseException as error:
            context.admission.leave(self._place)
            if isinstance(error, TenantFull):
                raise errors.TooManyTurns(str(error)) from None
            if isinstance(error, Full):
                raise errors.NoCapacity(f"the router is full: {error}") from None
            raise
        record.on_nodes = partial(context.admission.move, self._place)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.admission.leave(self._place)

    def _free(self) -> int | None:
        if not limits_nodes(self._context):
            return None
        return _free(self._context.admission, self._pools())

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


async def _wait(woken: "asyncio.Future[None]", limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await woken
    except TimeoutError:
        raise errors.NoCapacity(f"no place for this turn became free within {limit_s:g} s") from None


def limits_nodes(context: Context) -> bool:
    """Whether anything bounds how many turns a node may have."""
    return context.fleet.has_limits or context.admission.limits.node_turns is not None


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
