"""What every test shares: an environment without settings, and hypothesis without wall-clock limits."""

import os

import hypothesis
import pytest

from router.setting_sources import CONFIG_VARIABLE, WORKERS_VARIABLE
from router.settings import Settings, variable_name

# A slow machine is no failure. In CI the same examples run every time; at a desk they vary.
hypothesis.settings.register_profile("desk", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings must not change what is tested."""
    for name in (CONFIG_VARIABLE, WORKERS_VARIABLE, *map(variable_name, Settings.model_fields)):
        monkeypatch.delenv(name, raising=False)
