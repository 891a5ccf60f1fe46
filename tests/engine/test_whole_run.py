"""What holds over all turns of a run, whatever was done to the engines meanwhile."""

from collections import Counter

from tests.engine.front import Front, wait_until
from tests.engine.pair import Setup
from tests.engine.recorder import Recorder
from tests.engine.report import Run


def test_no_params_are_ever_sent_twice(setup: Setup, recorder: Recorder, router: Front, run: Run) -> None:
    sent: Counter[tuple[str, str, str]] = Counter()
    for exchange in recorder.exchanges:
        if exchange.sent.get("remote_request_id"):
            sent[exchange.role, exchange.sent["remote_engine_id"], exchange.sent["remote_request_id"]] += 1
    assert any(role == "prefill" for role, _, _ in sent)
    run.of(setup).notes["params sent, all of them once"] = f"{len(sent)}"
    assert [key for key, count in sent.items() if count > 1] == []
    wait_until(router.is_idle, "no turn and no leg is open", limit_s=30.0)


def test_the_router_had_no_fault(router: Front, recorder: Recorder) -> None:
    assert recorder.exchanges
    said = router.log.read_text(errors="replace")
    assert "Traceback" not in said
