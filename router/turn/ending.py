"""The end of a conversation, as its client says it: what it pins is released."""

from collections.abc import Sequence
from typing import Final

from router.ledger.store import owner_of
from router.turn.context import Context
from router.turn.lineage import Lineage
from router.turn.release import Cause
from router.turn.request import Endpoint, Request

FINAL_HEADER: Final = "x-session-final"
"""``true``: this turn is the conversation's last one."""
ONE_SHOT_HEADER: Final = "x-boomerang-one-shot"
"""``true``: this turn is to be the only one."""
_TOOLS: Final = frozenset({"tools", "functions"})


async def end_conversation(context: Context, tenant: bytes | None, conversation: str) -> int | None:
    """End what ``tenant`` calls so; how many handles are released, None where there is no such conversation.

    Raises LedgerUnavailable.
    """
    if context.pins is None or tenant is None:
        return None
    handles = await context.pins.end(owner_of(tenant, conversation))
    if handles is None:
        return None
    for handle in handles:
        context.releases.add(handle, Cause.ENDED)
    return len(handles)


def is_final(request: Request) -> bool:
    """Whether the client says that nothing follows this turn."""
    return _says_true(request.headers, FINAL_HEADER)


def last_turn(setting: str, request: Request, lineage: Lineage) -> Cause | None:
    """Why no turn is to follow this one, so that it need not leave a handle; None where one may.

    ``setting`` is ``one_shot``: off, header or auto.
    """
    if is_final(request):
        return Cause.ENDED
    if setting == "off":
        return None
    if _says_true(request.headers, ONE_SHOT_HEADER):
        return Cause.ONE_SHOT
    if setting == "auto" and _looks_single(request, lineage):
        return Cause.ONE_SHOT
    return None


def _looks_single(request: Request, lineage: Lineage) -> bool:
    """A first question without tools, of a client that has no name for the conversation."""
    return (
        request.endpoint is Endpoint.CHAT
        and not request.conversation
        and _TOOLS.isdisjoint(request.members)
        and len(lineage.keys) <= lineage.own_depth
    )


def _says_true(headers: Sequence[tuple[str, str]], name: str) -> bool:
    for given, value in headers:  # noqa: SIM110 - without a generator's frame
        if given == name and value.strip().lower() == "true":
            return True
    return False
