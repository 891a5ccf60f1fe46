"""The plain manifests: what belongs together fits, and the router takes what they give it."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml

from router.app import build
from router.demo.processes import BOOMERANG, free_port, process, wait_ready
from router.front import application
from router.settings import Settings
from tests.deploy import kube
from tests.deploy.accepted import settings_of, with_secrets
from tests.fleet.discovery.api_server import api_server, endpoint, endpoint_slice
from tests.ledger import servers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/kubernetes"
FOLDERS = [FOLDER, FOLDER / "engines", FOLDER / "sidecar"]
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def applied(request: pytest.FixtureRequest) -> list[kube.Manifest]:
    """All manifests of one folder."""
    return kube.folder(request.param)


def test_selectors_find_their_pods(applied: list[kube.Manifest]) -> None:
    kube.check_selectors(applied)


def test_there_are_no_secrets_in_them(applied: list[kube.Manifest]) -> None:
    kube.check_no_secrets(applied)


def test_volumes_are_there_for_every_mount(applied: list[kube.Manifest]) -> None:
    configured = {one["metadata"]["name"] for one in kube.of_kind(applied, "ConfigMap")}
    for _, template in kube.pods(applied):
        kube.check_volumes(template)
        named = {
            volume["configMap"]["name"] for volume in template["spec"]["volumes"] if "configMap" in volume
        }
        assert named <= configured


def test_every_file_is_applied_by_some_folder() -> None:
    applied = {
        folder / name
        for folder in FOLDERS
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    }
    generated = {FOLDER / "boomerang.yaml"}
    by_hand = {FOLDER / "monitoring/servicemonitor.yaml"}
    there = {file for file in FOLDER.rglob("*.yaml") if file.name != "kustomization.yaml"}
    assert there == applied | generated | by_hand


def test_the_router_runs_restricted_and_ends_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    applied = kube.folder(FOLDER)
    template = dict(kube.pods(applied))["boomerang"]
    router = kube.container(template, "router")
    settings = _settings(monkeypatch, tmp_path)
    kube.check_restricted(template, router)
    kube.check_probes(router)
    kube.check_ends_in_time(template, router, settings.drain_s)
    redis = dict(kube.pods(applied))["boomerang-redis"]
    kube.check_restricted(redis, kube.container(redis, "redis"))
    assert redis["spec"]["automountServiceAccountToken"] is False


def test_the_sidecar_pool_runs_restricted_and_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    template = dict(kube.pods(kube.folder(FOLDER / "sidecar")))["boomerang-pool"]
    router = kube.container(template, "router")
    settings = settings_of(monkeypatch, router["args"])
    kube.check_restricted(template, router)
    kube.check_probes(router)
    kube.check_ends_in_time(template, router, settings.drain_s)
    # As sidecars the engines start before the router, and end after it.
    engines = template["spec"]["initContainers"]
    assert [engine["restartPolicy"] for engine in engines] == ["Always", "Always"]
    assert template["spec"]["containers"] == [router]
    for engine, nodes in zip(engines, (settings.prefill, settings.decode), strict=True):
        (port,) = (word.partition("=")[2] for word in engine["args"] if word.startswith("--port="))
        assert nodes == (f"http://127.0.0.1:{port}",)
        asked = engine["startupProbe"]["exec"]["command"]
        assert asked[:2] == ["python3", "-c"]
        assert f"http://127.0.0.1:{port}/health" in asked[2]
        compile(asked[2], "probe", "exec")


def test_probes_are_routes_of_the_router() -> None:
    app = application(build(Settings(prefill=("http://p",), decode=("http://d",))))
    assert {"/live", "/ready", "/health", "/metrics"} <= {getattr(route, "path", "") for route in app.routes}


def test_the_account_may_do_what_discovery_does_and_nothing_else() -> None:
    applied = kube.folder(FOLDER)
    role = kube.named(applied, "Role", "boomerang")
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    # The same as the manual says.
    told = re.search(r"```yaml\n(apiVersion: rbac.*?)```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL)
    assert told is not None
    assert yaml.safe_load(told[1])["rules"] == role["rules"]
    binding = kube.named(applied, "RoleBinding", "boomerang")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == ["boomerang"]
    template = dict(kube.pods(applied))["boomerang"]
    assert template["spec"]["serviceAccountName"] == "boomerang"


def test_the_router_looks_for_the_engines_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = _settings(monkeypatch, tmp_path)
    engines = kube.folder(FOLDER / "engines")
    for role, selector in (("prefill", settings.kubernetes_prefill), ("decode", settings.kubernetes_decode)):
        label, _, service = selector.partition("=")
        assert label == "kubernetes.io/service-name"
        ports = kube.named(engines, "Service", service)["spec"]["ports"]
        assert settings.kubernetes_port in {port["name"] for port in ports}
        template = dict(kube.pods(engines))[f"vllm-{role}"]
        engine = kube.container(template, "vllm")
        # A node that ends has time for what runs on it, and for those who read its KV.
        grace_s = template["spec"]["terminationGracePeriodSeconds"]
        assert grace_s > engine["lifecycle"]["preStop"]["sleep"]["seconds"] >= settings.prefill_lease_s


async def test_the_router_finds_the_engines_of_the_manifests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("tok")
    (tmp_path / "namespace").write_text("serving")
    services = kube.of_kind(kube.folder(FOLDER / "engines"), "Service")
    async with api_server() as api:
        for number, service in enumerate(services):
            # Slices carry the name of their Service, and its labels.
            labels = {
                "kubernetes.io/service-name": service["metadata"]["name"],
                **service["metadata"]["labels"],
            }
            api.put(
                endpoint_slice(
                    labels["kubernetes.io/service-name"], endpoint(f"127.0.0.{number + 1}"), **labels
                )
            )
        more = [f"--kubernetes-api={api.origin}", f"--kubernetes-account={tmp_path}"]
        settings = _settings(monkeypatch, tmp_path, *more, "--store=memory", "--admin-port=none")
        router = build(settings)
        async with router.running(), asyncio.timeout(30):
            while len(router.context.fleet.snapshot.nodes) < len(services):
                await asyncio.sleep(0.01)
            found = {node.key for node in router.context.fleet.snapshot.nodes}
    assert found == {"p:127.0.0.1:8000", "d:127.0.0.2:8000"}


def test_the_network_lets_the_router_at_what_it_needs() -> None:
    applied, engines = kube.folder(FOLDER), kube.folder(FOLDER / "engines")
    policy = kube.named(applied, "NetworkPolicy", "boomerang")["spec"]
    wanted = [peer["podSelector"]["matchLabels"] for rule in policy["egress"] for peer in rule.get("to", [])]
    reached = [template for _, template in (*kube.pods(applied), *kube.pods(engines))]
    found = {
        template["metadata"]["labels"]["app.kubernetes.io/component"]
        for template in reached
        for labels in wanted
        if kube.matches(labels, template["metadata"]["labels"])
    }
    assert found == {"redis", "prefill", "decode"}
    inward = kube.named(engines, "NetworkPolicy", "vllm")["spec"]["ingress"]
    router = dict(kube.pods(applied))["boomerang"]["metadata"]["labels"]
    assert any(
        kube.matches(peer["podSelector"]["matchLabels"], router)
        for peer in inward[0]["from"]
        if "podSelector" in peer
    )


@pytest.mark.parametrize("folder", ["engines", "sidecar"])
def test_engines_and_router_agree_on_how_long_kv_is_kept(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    applied = kube.folder(FOLDER / folder)
    if folder == "sidecar":
        template = dict(kube.pods(applied))["boomerang-pool"]
        settings = settings_of(monkeypatch, kube.container(template, "router")["args"])
        engines = template["spec"]["initContainers"]
    else:
        settings = _settings(monkeypatch, tmp_path)
        engines = [kube.container(template, "vllm") for _, template in kube.pods(applied)]
    assert len(engines) == 2
    for engine in engines:
        config = kube.transfer_config(engine["args"])
        assert (config["kv_connector"], config["kv_role"]) == ("NixlConnector", "kv_both")
        assert config["kv_connector_extra_config"] == {
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": settings.decode_ttl_s,
            "kv_lease_duration": settings.prefill_lease_s,
            "kv_recompute_threshold": settings.reuse_threshold_tokens,
        }
    sides = [
        variable["value"]
        for engine in engines
        for variable in engine["env"]
        if variable["name"] == "VLLM_NIXL_SIDE_CHANNEL_PORT"
    ]
    assert folder == "engines" or len(set(sides)) == 2  # one network for both


def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *more: str) -> Settings:
    """The settings of the Deployment, as its pods would read them, and flags beside them."""
    applied = kube.folder(FOLDER)
    template = dict(kube.pods(applied))["boomerang"]
    args = kube.container(template, "router")["args"]
    config = kube.named(applied, "ConfigMap", "boomerang")["data"]["boomerang.yaml"]
    file = with_secrets(config, tmp_path)
    given = [re.sub(r"/etc/boomerang/boomerang\.yaml", str(file), word) for word in args]
    return settings_of(monkeypatch, [*given, *more], IN_A_POD)


@pytest.fixture
def redis_pod(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Redis, started by the very command of its pod, and the file with its password; on another port."""
    servers.needed()
    applied = kube.folder(FOLDER)
    template = dict(kube.pods(applied))["boomerang-redis"]
    shell, flags, script = kube.container(template, "redis")["command"]
    port = free_port()
    password = tmp_path / "password"
    password.write_text("drawn-at-random-0123456789")
    config = tmp_path / "redis.conf"
    config.write_text(
        kube.named(applied, "ConfigMap", "boomerang-redis")["data"]["redis.conf"] + f"port {port}\n"
    )
    program = servers.binary()
    assert program is not None
    for path, mapped in (
        ("/run/secrets/boomerang-redis/password", str(password)),
        ("/etc/redis/redis.conf", str(config)),
        ("exec redis-server", f"exec {program}"),
    ):
        assert path in script
        script = script.replace(path, mapped)
    with process([shell, flags, script], tmp_path / "redis.log") as started:
        yield port, password
        assert started.poll() is None, (tmp_path / "redis.log").read_text()
        told = Path(f"/proc/{started.pid}/cmdline")
        assert not told.exists() or password.read_text().encode() not in told.read_bytes()


def test_two_routers_with_these_settings_share_what_they_remember(
    redis_pod: tuple[int, Path], tmp_path: Path
) -> None:
    port, password = redis_pod
    config = (FOLDER / "boomerang.yaml").read_text()
    config = config.replace("boomerang-redis:6379", f"127.0.0.1:{port}")
    config = config.replace("/run/secrets/boomerang-redis/password", str(password))
    file = tmp_path / "boomerang.yaml"
    # Simulated engines at fixed addresses stand for those of a cluster.
    file.write_text(re.sub(r"^kubernetes_.*\n", "", config, flags=re.MULTILINE) + "store_timeout_s: 2\n")
    p, d, one, other = (free_port() for _ in range(4))
    engine = [*BOOMERANG, "sim", "--profile=instant", "--version=0.33.0"]
    nodes = [f"--prefill=http://127.0.0.1:{p}", f"--decode=http://127.0.0.1:{d}"]
    serve = [*BOOMERANG, "serve", f"--config={file}", *nodes, "--admin-port=0"]
    commands = {
        p: ([*engine, "--role=prefill", f"--port={p}"], "/health"),
        d: ([*engine, "--role=decode", f"--port={d}"], "/health"),
        one: ([*serve, f"--port={one}"], "/ready"),
        other: ([*serve, f"--port={other}"], "/ready"),
    }
    messages = [{"role": "user", "content": "Tell me of the sea. " * 40}]
    with ExitStack() as stack:
        for at, (command, path) in commands.items():
            log = tmp_path / f"{at}.log"
            running = stack.enter_context(process(command, log))
            wait_ready(str(at), running, log, f"http://127.0.0.1:{at}{path}")
        reasons = []
        for at in (one, other):
            body = {"model": "sim-qwen3", "messages": messages, "max_tokens": 64}
            answer = httpx.post(f"http://127.0.0.1:{at}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            reasons.append(answer.headers["x-boomerang-reason"])
            said = answer.json()["choices"][0]["message"]
            messages += [said, {"role": "user", "content": "Go on."}]
        assert reasons == ["first_turn", "extension"]
        metrics = httpx.get(f"http://127.0.0.1:{other}/metrics", timeout=10).text
        # Whatever the router does in the background, its user may do it, too.
        for refused in ('boomerang_store_changes_total{state="down"}', "boomerang_task_failures_total{"):
            assert refused not in metrics
    assert "NOPERM" not in "".join(log.read_text() for log in tmp_path.glob("*.log"))


def test_the_user_of_the_store_has_the_rights_that_the_manual_tells_of() -> None:
    told = re.search(
        r"^ACL SETUSER router on >PASSWORD (.*)$", (ROOT / "docs/redis.md").read_text(), re.MULTILINE
    )
    assert told is not None
    template = dict(kube.pods(kube.folder(FOLDER)))["boomerang-redis"]
    script = kube.container(template, "redis")["command"][-1]
    given = re.search(r"^user router on >\$password (.*)$", script, re.MULTILINE)
    assert given is not None
    assert set(given[1].split()) == {*told[1].split(), "resetchannels"}


def test_kubectl_builds_the_folders() -> None:
    """Where kubectl is at hand: the kustomizations, as it reads them."""
    try:
        subprocess.run(["kubectl", "version", "--client"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("there is no kubectl")
    for folder in FOLDERS:
        built = subprocess.run(
            ["kubectl", "kustomize", folder],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert built.returncode == 0, built.stderr
        images = re.findall(r"image: (\S+)", built.stdout)
        assert images
        assert all(re.search(r":v?\d+\.\d+", image) for image in images), images
        assert json.dumps(kube.manifests(built.stdout)).count('"namespace": "serving"') >= 2
