"""What the fleet keeps of a node besides its value in the snapshot."""

from dataclasses import dataclass, field

from router.fleet.breaker import Breaker
from router.fleet.node import Circuit, Ejection
from router.fleet.probe import Fault
from router.fleet.standing import Probes, Standing


@dataclass(slots=True)
class Known:
    """Changed by the fleet alone, as events come."""

    standing: Standing = field(default_factory=Standing)
    breaker: Breaker = field(default_factory=Breaker)
    failures: int = 0
    """Probes that failed in a row."""
    fault: Fault | None = None
    """Why the newest probe failed; None where it was good."""
    refused: bool = False
    """It did not even listen since it was ready: most likely another process comes back."""
    leave_by_s: float | None = None
    """When it goes, whoever still reads from it; None where it is not to leave."""


def ejection_of(known: Known) -> Ejection | None:
    """Why a node is ejected; None while its leg on trial is on its way, which is no new reason."""
    if known.standing.probes is Probes.BAD:
        return known.fault.ejection if known.fault is not None else None
    return known.breaker.opened_by if known.breaker.circuit is Circuit.OPEN else None
