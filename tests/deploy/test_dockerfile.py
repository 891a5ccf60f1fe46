"""The images' steps, run for real without an image builder: their paths lie in a folder of the test."""

import fnmatch
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from router import __version__
from tests.deploy.dockerfile import Step, environment, stages

ROOT = Path(__file__).parents[2]
ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?=(?:build|opt|src|wheels)\b)")
NO_NETWORK = ("Could not find a version", "Max retries", "Temporary failure", "No matching distribution")
# Fails where a file is opened for writing, or anything of the file system is changed, as on a read-only root.
READ_ONLY = """
import os, sys
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def refuse(event, args):
    if event in CHANGES or (event == "open" and (args[2] or 0) & WRITES):
        if str(args[0]) != os.devnull:
            sys.stderr.write(f"WRITES {event} {args}\\n")
            os._exit(9)
sys.addaudithook(refuse)
from router.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Built:
    """The stages of a Dockerfile, run in a folder."""

    def __init__(self, folder: Path, context: Path, dockerfile: Path) -> None:
        self.folder, self.context = folder, context
        self.stages = stages(dockerfile)
        self.at = folder

    def mapped(self, text: str) -> str:
        return ABSOLUTE.sub(f"{self.folder}/", text)

    def do(self, step: Step) -> None:
        if step.instruction == "WORKDIR":
            self.at = Path(self.mapped(step.text))
            self.at.mkdir(parents=True, exist_ok=True)
        elif step.instruction == "COPY":
            *sources, target = step.text.split()
            to = Path(self.mapped(target)) if target.startswith("/") else self.at / target
            for source in sources:
                _copy(self.context / source, to, into=target.endswith("/"))
        elif step.instruction == "RUN":
            self.run(step.text)

    def run(self, command: str) -> None:
        # The step's own python is this one, as the image's is the base's. The cache of pip saves a download.
        path = self.folder / "python-on-path"
        path.mkdir(exist_ok=True)
        for name in ("python", "python3"):
            if not (path / name).exists():
                (path / name).symlink_to(sys.executable)
        known = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            ["sh", "-ec", self.mapped(command)],
            cwd=self.at,
            env={**known, "PATH": f"{path}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode and any(sign in done.stderr for sign in NO_NETWORK) and not os.environ.get("CI"):
            pytest.skip("packages cannot be had: no index answers")
        assert done.returncode == 0, done.stderr[-3000:]


def _copy(source: Path, to: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, to / source.name if into else to)


def test_the_build_makes_a_router_that_serves_without_writing_a_file(tmp_path: Path) -> None:
    # One test, as parallel ones would build the image several times.
    image = Built(tmp_path, ROOT, ROOT / "Dockerfile")
    for step in image.stages[0]:
        image.do(step)
    _it_has_all_its_files_and_no_pip(image)
    _it_serves_without_writing_a_file_and_its_health_check_tells(image, tmp_path)


def _it_has_all_its_files_and_no_pip(image: Built) -> None:
    boomerang = image.folder / "opt/boomerang/bin/boomerang"
    told = subprocess.run([boomerang, "version"], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.startswith(f"boomerang {__version__} ")
    (wheel,) = (image.folder / "wheels").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "router").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert wanted <= packed
    site = next((image.folder / "opt/boomerang/lib").glob("python3*/site-packages"))
    installed = {entry.name for entry in site.iterdir()}
    assert {"router", "opentelemetry", "redis"} <= installed
    assert not {"pip", "hatchling", "pytest", "playwright"} & installed


def _it_serves_without_writing_a_file_and_its_health_check_tells(image: Built, tmp_path: Path) -> None:
    final = image.stages[-1]
    (health,) = (step for step in final if step.instruction == "HEALTHCHECK")
    (command,) = (step.words() for step in final if step.instruction == "CMD")
    (entry,) = (step.words() for step in final if step.instruction == "ENTRYPOINT")
    assert (entry, command) == (["boomerang"], ["serve"])
    asking = Step("CMD", health.text[health.text.index("CMD ") + 4 :]).words()
    python = image.folder / "opt/boomerang/bin/python"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    declared = {key: value for key, value in environment(final).items() if key != "PATH"}
    known = {
        **declared,
        "BOOMERANG_PORT": port,
        "BOOMERANG_HOST": "127.0.0.1",
        "BOOMERANG_PREFILL": "http://127.0.0.1:9",
        "BOOMERANG_DECODE": "http://127.0.0.1:9",
        # What tracing needs is in the image.
        "BOOMERANG_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    assert declared["BOOMERANG_HOST"] == "0.0.0.0"  # noqa: S104 - what the image says

    def healthy() -> bool:
        check = subprocess.run([python, *asking[1:]], env=known, capture_output=True, timeout=30, check=False)
        return check.returncode == 0

    assert asking[0] == "python"
    assert not healthy()
    log = tmp_path / "log"
    with log.open("wb") as output:
        router = subprocess.Popen(
            [python, "-c", READ_ONLY, *command], env=known, cwd="/", stdout=output, stderr=output
        )
    try:
        for _ in _within(30):
            if router.poll() is not None or healthy():
                break
        assert healthy(), log.read_text()
    finally:
        router.terminate()
        assert router.wait(timeout=30) == 0, log.read_text()
    assert "WRITES" not in log.read_text()


def _within(seconds: float) -> Iterator[None]:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        yield
        time.sleep(0.05)


def test_the_image_is_pinned_and_its_process_is_nobody() -> None:
    build, final = stages(ROOT / "Dockerfile")
    assert {steps[0].text.split()[0] for steps in (build, final)} == {"python:3.12-slim-bookworm"}
    (user,) = (step.text for step in final if step.instruction == "USER")
    assert all(part.isdecimal() and int(part) > 1000 for part in user.split(":"))
    assert not [step for step in final if step.instruction == "RUN"]
    installs = [step.text for step in build if "pip install" in step.text and "--no-index" not in step.text]
    assert len(installs) == 2
    assert all("--require-hashes" in text for text in installs)


def test_what_the_build_copies_is_not_ignored_and_nothing_else_is_sent() -> None:
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        word
        for step in stages(ROOT / "Dockerfile")[0]
        if step.instruction == "COPY"
        for word in step.text.split()[:-1]
    }
    assert kept == copied
    assert all((ROOT / name).exists() for name in kept)


def test_the_lock_of_the_image_is_that_of_the_tests_and_holds_the_runtime() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9._-]+==\S+)", (ROOT / name).read_text(), re.MULTILINE))

    assert pins("requirements.lock") <= pins("requirements-image.lock") <= pins("requirements-dev.lock")
    assert pins("requirements-build.lock") <= pins("requirements-dev.lock")
    for name in ("requirements-image.lock", "requirements-build.lock"):
        assert "://" not in (ROOT / name).read_text()  # names no index


def test_the_engine_image_installs_the_plugin_where_vllm_finds_it(tmp_path: Path) -> None:
    plugin = ROOT / "deploy/vllm-plugin"
    built = Built(tmp_path, tmp_path / "context", ROOT / "deploy/engine-image/Dockerfile")
    # The builder leaves out what .dockerignore names.
    rules = [rule.removeprefix("**/") for rule in (plugin / ".dockerignore").read_text().split()]
    shutil.copytree(
        plugin,
        built.context,
        ignore=lambda _, names: [
            name for name in names if any(fnmatch.fnmatch(name, rule) for rule in rules)
        ],
    )
    (steps,) = built.stages
    assert steps[0].text == "vllm/vllm-openai:v0.32.0"
    # An environment with setuptools in it stands for vLLM's own, which has it too.
    python = tmp_path / "venv/bin/python"
    built.run(f"python -m venv {python.parents[1]} && {python} -m pip install setuptools==80.9.0")
    for step in steps[1:]:
        if step.instruction == "RUN":
            built.run(step.text.replace("python3", str(python), 1))
        else:
            built.do(step)
    found = "from importlib.metadata import entry_points as e; print(*e(group='vllm.general_plugins'))"
    told = subprocess.run([python, "-c", found], capture_output=True, text=True, check=True, timeout=60)
    assert "boomerang_vllm.register:register" in told.stdout
