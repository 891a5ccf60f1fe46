"""What the real command line and settings make of arguments, as a container would give them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from router.cli import main
from router.settings import Settings


def settings_of(
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of ``boomerang ARGUMENTS``, which has to begin with ``serve``; nothing is served."""
    taken: list[Settings] = []

    def serve(settings: Settings) -> int:
        taken.append(settings)
        return 0

    for name in ("serve", "serve_workers"):
        monkeypatch.setattr(f"router.serve.{name}", serve)
    for variable, value in (environment or {}).items():
        monkeypatch.setenv(variable, value)
    assert arguments[0] == "serve"
    assert main(list(arguments)) == 0
    (settings,) = taken
    return settings


def with_secrets(config: str, folder: Path) -> Path:
    """Settings as a file, with every secret that they name there to be read; in ``folder``."""

    def secret(match: re.Match[str]) -> str:
        path = folder / match[0].strip("/").replace("/", "-")
        path.write_text("one-word")
        return str(path)

    file = folder / "boomerang.yaml"
    file.write_text(re.sub(r"/run/(?:secrets|credentials)/[\w./-]+", secret, config))
    return file
