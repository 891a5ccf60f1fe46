import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from router.fleet.metrics_text import Sample, samples


def one(line: bytes, name: str = "a:b") -> list[Sample]:
    return list(samples(b"# HELP a:b a:b{} 1\n# TYPE a:b gauge\n" + line, [name]))


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (b"a:b 1\n", {}, 1.0),
        (b"a:b 1", {}, 1.0),
        (b"a:b\t1.5e-3\r\n", {}, 0.0015),
        (b"a:b{} +Inf\n", {}, math.inf),
        (b"a:b{} -Inf 1395066363000\n", {}, -math.inf),
        (b'a:b{x="1"} 2\n', {"x": "1"}, 2.0),
        (b'a:b{x="1"}2\n', {"x": "1"}, 2.0),
        (b'a:b{x="1",y="2",} 3 1395066363000\n', {"x": "1", "y": "2"}, 3.0),
        (b'a:b{ x = "1" , y = "2" } 3\n', {"x": "1", "y": "2"}, 3.0),
        (rb'a:b{x="a\"},b{\\\n=c"} 4' + b"\n", {"x": 'a"},b{\\\n=c'}, 4.0),
        ('a:b{x="é漢"} 5\n'.encode(), {"x": "é漢"}, 5.0),
        (b'a:b{x=""} 6 # {trace_id="k"} 0.5\n', {"x": ""}, 6.0),
    ],
)
def test_lines(line: bytes, labels: dict[str, str], value: float) -> None:
    assert one(line) == [Sample("a:b", labels, value)]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"a:b\n",
        b"a:b \n",
        b"a:b x\n",
        b"a:b 1x\n",
        b"a:b 1.2.3\n",
        b"a:b{ 1\n",
        b'a:b{x="1 1\n',
        b"a:b{x=1} 1\n",
        b'a:b{x="1"y} 1\n',
        b"a:b_total 1\n",
        b"a:bc 1\n",
        b" a:b 1\n",
        b"x a:b 1\n",
        b'a:b{x="' + b"y" * 20_000 + b'"} 1\n',
    ],
)
def test_what_cannot_be_read_is_passed_over(line: bytes) -> None:
    assert one(line) == []
    assert one(line + b"\na:b 7\n") == [Sample("a:b", {}, 7.0)]


def test_nan_is_a_value() -> None:
    (sample,) = one(b"a:b NaN\n")
    assert math.isnan(sample.value)


def test_the_order_is_that_of_the_names() -> None:
    text = b'b 1\na 2\nb{x="1"} 3\nab 9\na 4\n'
    assert [(each.name, each.value) for each in samples(text, ["a", "b", "c"])] == [
        ("a", 2.0),
        ("a", 4.0),
        ("b", 1.0),
        ("b", 3.0),
    ]


@given(st.binary(max_size=200))
def test_nothing_makes_it_raise(noise: bytes) -> None:
    for text in (noise, b"a" + noise, b"a{" + noise, b'\na{x="' + noise, b"a 1" + noise):
        for sample in samples(text, ["a"]):
            assert isinstance(sample.value, float)


@given(
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(max_size=20), max_size=3),
    st.floats(allow_nan=False),
)
def test_what_a_client_library_writes_is_read_back(labels: dict[str, str], value: float) -> None:
    if any(name.startswith("__") for name in labels) or not all(
        text.isprintable() or text == "\n" for text in "".join(labels.values())
    ):
        return
    registry = CollectorRegistry()
    gauge = Gauge("a:b", "a:b 1", sorted(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    assert list(samples(generate_latest(registry), ["a:b"])) == [Sample("a:b", labels, value)]


def test_a_large_exposition_costs_little() -> None:
    registry = CollectorRegistry()
    for number in range(100):
        histogram = Histogram(f"vllm:time_{number}_seconds", "help", ["model", "engine"], registry=registry)
        for engine in range(3):
            histogram.labels("tiny", str(engine)).observe(1)
    Gauge("vllm:num_requests_running", "help", registry=registry).set(5)
    Counter("vllm:num_requests_running_not", "help", registry=registry)
    text = generate_latest(registry)
    assert len(text) > 300_000
    began = time.process_time()
    found = list(samples(text, ["vllm:num_requests_running", "vllm:cache_config_info"]))
    spent_s = time.process_time() - began
    assert found == [Sample("vllm:num_requests_running", {}, 5.0)]
    # It takes well under a millisecond; a parser that goes through all lines takes a hundred times that.
    assert spent_s < 0.1
