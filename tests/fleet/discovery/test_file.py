"""A watched file of nodes."""

from pathlib import Path

import pytest

from router.fleet.discovery.file import MAX_BYTES, NodesFile, nodes_in
from tests.fleet.discovery.listened import listening

GOOD = """\
prefill:
  - http://10.0.0.1:8100
  - {url: http://10.0.0.2:8100, weight: 2}
decode:
  - url: "http://[fd00::1]:8200@1"
    limit: 64
"""


def test_a_file() -> None:
    nodes = nodes_in(GOOD.encode())
    assert [(node.key, node.weight, node.limit, node.rank) for node in nodes] == [
        ("p:10.0.0.1:8100", 1.0, None, None),
        ("p:10.0.0.2:8100", 2.0, None, None),
        ("d:[fd00::1]:8200@1", 1.0, 64, 1),
    ]
    assert nodes_in(b"prefill: [http://a]\ndecode:\n")[0].key == "p:a:80"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "expected a mapping"),
        ("[a]", "expected a mapping"),
        ("prefill: [http://a", "not valid YAML (line 1, column 19)"),
        ("\0", "not valid YAML"),
        ("prefil: [http://a]", "there is no role 'prefil'"),
        ("prefill: http://a", "prefill: expected a list"),
        ("prefill: [1]", "prefill, entry 1: expected an address"),
        ("prefill: [http://a, ftp://b]", "prefill, entry 2: an origin begins with http"),
        ("prefill: [{url: http://a, wieght: 2}]", "there is no key 'wieght'"),
        ("prefill: [{url: http://a, weight: -1}]", "a weight has to be a positive number"),
        ("prefill: [{url: http://a, weight: .inf}]", "a weight has to be a positive number"),
        ("prefill: [{url: http://a, weight: true}]", "weight: expected a number"),
        ("prefill: [{url: http://a, limit: 0}]", "a limit has to be at least 1"),
        ("prefill: [{url: http://a, limit: 1.5}]", "limit: expected a whole number"),
        ("prefill: [{weight: 1}]", "expected an address"),
        ("decode: [http://a, 'http://A:80/']", "d:a:80 is listed more than once"),
    ],
)
def test_what_is_wrong_is_told(content: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".+") as raised:
        nodes_in(content.encode())
    assert complaint in str(raised.value)


async def test_changes_are_followed_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    async with listening(NodesFile(path, poll_s=0.005)) as heard:
        await heard.until(lambda: bool(heard.failures))
        assert heard.told[-1] == "the file cannot be read: No such file or directory"
        path.write_text("prefill: [http://a:1]")
        await heard.until_keys("p:a:1")
        path.write_text("prefill: [http://a:1")
        await heard.until(lambda: "YAML" in str(heard.told[-1]))
        path.write_text("prefill: [http://a:1]\ndecode: [http://b:2]")
        await heard.until_keys("p:a:1", "d:b:2")
        # As Kubernetes does with ConfigMaps, and editors with files.
        (tmp_path / "next.yaml").write_text("decode: [http://b:2]")
        (tmp_path / "next.yaml").rename(path)
        await heard.until_keys("d:b:2")
        path.write_text("#" * (MAX_BYTES + 1))
        await heard.until(lambda: "larger than" in str(heard.told[-1]))


async def test_an_unchanged_file_is_told_once(tmp_path: Path) -> None:
    path, other = tmp_path / "nodes.yaml", tmp_path / "other"
    path.write_text("decode: [http://b:2]")
    async with listening(NodesFile(path, poll_s=0.001)) as heard:
        await heard.until_keys("d:b:2")
        # Broken content is told once, too, however often it is looked at.
        path.write_text("- 1")
        await heard.until(lambda: bool(heard.failures))
        other.write_text("decode: [http://c:3]")
        other.rename(path)
        await heard.until_keys("d:c:3")
    assert len(heard.told) == 3
