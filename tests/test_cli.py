import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from router import __version__
from router.cli import COMMANDS, main
from router.settings import Settings, flag_name

POOLS = ["--prefill", "http://p:8100", "--decode", "http://d:8200"]


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with nothing in the environment but what is given."""
    return subprocess.run(
        [sys.executable, "-m", "router", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parent.parent,
        env={"PATH": os.environ.get("PATH", ""), **environment},
    )


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line on standard error of a call that is wrong usage."""
    try:
        code: object = main(argv)
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("boomerang: ")
    assert err.count("\n") == 1
    return err


def test_version() -> None:
    done = run("version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"boomerang {__version__} (Python 3.")
    assert run("--version").stdout == f"boomerang {__version__}\n"


def test_help_names_every_command() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for name, (text, *_) in COMMANDS.items():
        assert f"    {name}" in done.stdout
        assert text.split()[0] in done.stdout


def test_without_a_command_the_help_is_shown_as_wrong_usage() -> None:
    done = run()
    assert done.returncode == 2
    assert "boomerang serve --prefill" in done.stdout


def test_the_command_starts_without_loading_what_it_does_not_need() -> None:
    script = "import sys; from router.cli import main; main(['version']); print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"pydantic", "fastapi", "aiohttp", "yaml"} & set(done.stdout.split())


def test_help_of_serve_names_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    told, unwrapped = " ".join(out.split()), "".join(out.split())  # lines are also broken after a hyphen
    for name, field in Settings.model_fields.items():
        assert flag_name(name) + " " in told.replace(",", " ")
        assert "".join(str(field.description).split()) in unwrapped
    assert "(default: 8000)" in told
    assert "(default: 64MiB)" in told
    assert "--verify auto|engine|router|lineage|off" in told
    assert "--config FILE" in told


def test_wrong_settings_are_one_line_and_exit_code_2() -> None:
    done = run("serve", *POOLS, BOOMERANG_PORT="99999")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "boomerang: --port / BOOMERANG_PORT / port: Input should be less than or equal to 65535 (got 99999)\n"
    )


def test_flags_reach_the_settings_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "serve", *POOLS, "--prefill=http://q,http://p:8100/")
    assert "http://p:8100 is listed more than once" in told
    assert "(got ['maybe']" not in told
    assert "--verify / BOOMERANG_VERIFY / verify" in refused(capsys, "serve", *POOLS, "--verify", "maybe")
    assert "--decode / BOOMERANG_DECODE" in refused(capsys, "serve", "--prefill", "http://p")


def test_boolean_flags_go_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "boomerang.yaml"
    config.write_text("expose_params: perhaps\n")
    # The flag replaces the file's wrong value, so what is left to complain about is the port alone.
    told = refused(capsys, "serve", *POOLS, "--config", str(config), "--no-expose-params", "--port=x")
    assert "expose_params" not in told
    assert "--port" in told


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["serev"], "there is no command serev; did you mean serve?"),
        (["zzz"], "there is no command zzz; there are serve, check, explain, top, sim, demo, bench, version"),
        (["serve", "--prot", "1"], "there is no option --prot; did you mean --port?"),
        (["serve", "--engine-api-key=sk-secret"], "there is no option --engine-api-key"),
        (["serve", "--pref", "http://p"], "there is no option --pref; did you mean --prefill?"),
        (["serve", "--port"], "argument --port: expected one argument"),
        (["version", "sk-secret"], "there is one argument too many"),
        (["--zzz"], "there is no option --zzz"),
    ],
)
def test_wrong_usage_is_one_line(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, *argv)
    assert complaint in told
    assert "sk-secret" not in told


def test_ctrl_c_is_exit_code_130(tmp_path: Path) -> None:
    """A configuration that never ends to arrive keeps the command waiting until the signal comes."""
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    # Shells start background jobs with the signal ignored, and a child would inherit that of the test run.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "router", "serve", *POOLS, "--config", str(pipe)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    give_up = threading.Timer(60, process.kill)
    give_up.start()
    try:
        with pipe.open("wb"):  # opens once the command reads
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    finally:
        give_up.cancel()
    assert process.returncode == 130
    assert (out, err) == (b"", b"")
