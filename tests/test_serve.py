"""How a router is served: what it loads, and how much it may open."""

import subprocess
import sys


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()


def test_what_the_defaults_do_not_need_is_not_loaded() -> None:
    loaded = run("import sys, router.serve, router.setting_sources; print(*sys.modules)")
    assert "router.app" in loaded
    assert not {"redis", "aiohttp", "httpx", "opentelemetry.sdk"} & set(loaded)


def open_files(soft: int, hard: int, needed: int) -> list[str]:
    return run(
        "import logging, resource, sys\n"
        "from router.serve import allow_files\n"
        "logging.basicConfig(level='INFO', stream=sys.stdout, format='%(message)s')\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"allow_files({needed})\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )


def test_a_soft_limit_of_open_files_is_raised_as_far_as_turns_need() -> None:
    assert open_files(100, 1_000, 500) == ["500", "1000"]
    assert open_files(600, 1_000, 500) == ["600", "1000"]


def test_where_the_limit_may_not_be_changed_it_stays() -> None:
    forbidden = (
        "import resource\n"
        "from router.serve import allow_files\n"
        "def refuse(*_): raise ValueError('not permitted')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 1_000))\n"
        "resource.setrlimit = refuse\n"
        "allow_files(500)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert run(forbidden) == ["100", "1000"]


def test_a_hard_limit_that_is_too_low_is_told() -> None:
    told = " ".join(open_files(100, 400, 500))
    assert told == (
        "max_turns: that many turns would need 500 open files, and the hard limit is 400: raise it"
        " (LimitNOFILE=, ulimit -Hn) or lower max_turns, if you expect so many 400 400"
    )
