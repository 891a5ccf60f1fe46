import json

from router.check import report
from router.check.findings import Finding, Verdict, worst
from router.check.observed import Assumed

FINDINGS = (
    Finding("reachable", "p:h:1", Verdict.OK, "http://h:1"),
    Finding("reuse", "p:h:1 -> d:h:2", Verdict.ERROR, "nothing " * 30, 'start it with \'{"a":"b-c"}\''),
    Finding("answer", "p:h:1 -> d:h:2", Verdict.SKIPPED, "P hangs"),
)


def test_the_table_is_aligned_grouped_and_narrow() -> None:
    lines = report.text(FINDINGS, width=80).splitlines()
    assert lines[0] == "p:h:1"
    assert lines[1] == "  reachable  ok       http://h:1"
    assert "p:h:1 -> d:h:2" in lines
    assert all(len(line) <= 80 for line in lines)
    assert any(line.strip() == '-> start it with \'{"a":"b-c"}\'' for line in lines)
    assert lines[-1] == "1 ok, 1 error, 1 skipped"


def test_json_has_the_documented_members() -> None:
    document = json.loads(report.as_json(FINDINGS, Assumed(ttl_s=100.0, ttl_is_set=True)))
    assert document["schema"] == report.SCHEMA
    assert document["verdict"] == "error"
    assert document["counts"] == {"ok": 1, "warning": 0, "error": 1, "skipped": 1}
    assert document["assumed"] == {"ttl_s": 100.0, "ttl_is_set": True, "lease_s": 30.0}
    assert document["findings"][2] == {
        "check": "answer",
        "subject": "p:h:1 -> d:h:2",
        "verdict": "skipped",
        "seen": "P hangs",
        "advice": "",
    }


def test_nothing_is_no_error() -> None:
    assert report.text(()).split() == ["nothing", "was", "checked"]
    assert worst(()) is Verdict.OK


def test_the_worst_verdict_counts() -> None:
    warned = Finding("x", "y", Verdict.WARNING, "")
    assert worst(FINDINGS) is Verdict.ERROR
    assert worst([FINDINGS[0], warned, FINDINGS[2]]) is Verdict.WARNING
