"""The systemd unit: what systemd itself says of it, and that the router takes what it gives."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.accepted import settings_of, with_secrets

FOLDER = Path(__file__).parents[2] / "deploy/systemd"
UNIT = (FOLDER / "boomerang.service").read_text()


def _values(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.MULTILINE)


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    program = tmp_path / "boomerang"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "boomerang.service"
    unit.write_text(UNIT.replace("/opt/boomerang/bin/boomerang", str(program)))
    drop_in = tmp_path / "boomerang.service.d/credentials.conf"
    drop_in.parent.mkdir()
    drop_in.write_text((FOLDER / "credentials.conf").read_text())
    checked = _analyze("verify", "--man=no", unit)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_it_is_confined() -> None:
    # From 0 to 10, times ten; what is left is the network, which a router needs.
    checked = _analyze(
        "security", "--offline=true", "--threshold=20", "--no-pager", FOLDER / "boomerang.service"
    )
    assert checked.returncode == 0, checked.stdout[-600:]


def test_the_router_takes_its_file_and_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (command,) = _values(UNIT, "ExecStart")
    _, *arguments = command.split()
    file = with_secrets((FOLDER / "boomerang.yaml").read_text(), tmp_path)
    drop_in = (FOLDER / "credentials.conf").read_text()
    loaded = {value.partition(":")[0] for value in _values(drop_in, "LoadCredential")}
    environment = dict(value.split("=", 1) for value in _values(drop_in, "Environment"))
    assert {value.removeprefix("%d/") for value in environment.values()} == loaded
    for name in loaded:
        (tmp_path / name).write_text("one-word")
    settings = settings_of(
        monkeypatch,
        [word.replace("/etc/boomerang/boomerang.yaml", str(file)) for word in arguments],
        {name: value.replace("%d", str(tmp_path)) for name, value in environment.items()},
    )
    assert settings.engine_api_key() == settings.admin_secret() == "one-word"
    assert settings.store_password_file is not None
    assert settings.warnings() == ()


def test_it_is_given_the_time_to_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(monkeypatch, ["serve", f"--config={FOLDER / 'boomerang.yaml'}"])
    (stop_s,) = _values(UNIT, "TimeoutStopSec")
    assert int(stop_s) >= settings.drain_s + 10
    # The file is for every user's eyes: no secret, and no path to one, is in it.
    assert not {"admin_token", "store_password_file", "engine_api_key_file"} & settings.model_fields_set
