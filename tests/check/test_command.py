import asyncio
import json
from pathlib import Path

import pytest

from router.cli import main
from tests.check.pools import STOCK_32, STOCK_33, dead_origin, pools

POOL = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on standard error of wrong usage."""
    try:
        code: object = main(["check", *argv])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("boomerang: ")
    assert err.count("\n") == 1
    return err


def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--prefill is required" in told(capsys, "--decode", "http://d")
    assert "--decode is required" in told(capsys, "--prefill", "http://p", "--decode", " , ")
    assert "--prefill: an origin" in told(capsys, "--prefill", "ftp://p", "--decode", "http://d")
    assert "more than once" in told(capsys, "--prefill", "http://p,http://p/", "--decode", "http://d")
    assert "--timeout-s" in told(capsys, *POOL, "--timeout-s", "0")
    assert "--ttl" in told(capsys, *POOL, "--ttl", "nan")
    assert "there is no option --tll; did you mean --ttl?" in told(capsys, *POOL, "--tll", "3")


def test_a_key_is_never_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "key"
    assert "cannot be read" in told(capsys, *POOL, "--api-key-file", str(file))
    file.write_text("sk-secret and more")
    err = told(capsys, *POOL, "--api-key-file", str(file))
    assert "one key and nothing else" in err
    assert "sk-secret" not in err
    file.write_bytes(b"\xff\xfesk-secret")
    assert "not plain text" in told(capsys, *POOL, "--api-key-file", str(file))


async def test_all_well_is_exit_code_0_with_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-engine\n")
    async with pools(STOCK_33, STOCK_33) as pool:
        argv = ["check", "--prefill", pool.p.origin, "--decode", pool.d.origin, "--api-key-file", str(key)]
        assert await asyncio.to_thread(main, argv) == 0
        keys = {received.headers.get("authorization") for received in pool.p.engine.received}
        assert keys == {"Bearer sk-engine"}
    out, err = capsys.readouterr()
    assert "  reuse " in out
    assert out.endswith("26 ok\n")
    assert err == ""


async def test_an_error_is_exit_code_1_also_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    async with pools(STOCK_32, STOCK_32) as pool:
        argv = ["check", "--json", "--ttl", "120", "--prefill", pool.p.origin, "--decode", pool.d.origin]
        assert await asyncio.to_thread(main, argv) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "error"
    assert document["assumed"]["ttl_s"] == 120
    errors = [each["check"] for each in document["findings"] if each["verdict"] == "error"]
    assert errors == ["stream_handle"]


def test_dead_nodes_are_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--prefill", dead_origin(), "--decode", dead_origin()]) == 1
    out, err = capsys.readouterr()
    assert out.count("ERROR") == 2
    assert "Traceback" not in out + err
