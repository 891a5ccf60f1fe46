"""What a leg failed of, in a word."""

from router.engines.upstream import Exhausted, NeverSent, Stale, TimedOut, TooLarge, UpstreamError
from router.telemetry.facts import LegFault
from router.turn.refusal import Refused


class Faulty(Exception):
    """A leg that was answered, or broke, and did not do its part."""

    def __init__(self, message: str, fault: LegFault) -> None:
        super().__init__(message)
        self.fault = fault


def fault_of(error: BaseException | None) -> LegFault:
    """What a leg failed of that ended in ``error``."""
    match error:
        case Faulty():
            return error.fault
        case Refused():
            return LegFault.REFUSED
        case Exhausted():
            return LegFault.EXHAUSTED
        case NeverSent() | UpstreamError(sent=False):
            return LegFault.UNREACHABLE
        case Stale():
            return LegFault.STALE
        case TimedOut():
            return LegFault.TIMED_OUT
        case TooLarge():
            return LegFault.TOO_LARGE
        case _:
            return LegFault.BROKEN
