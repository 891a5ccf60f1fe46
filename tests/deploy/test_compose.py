"""The Compose file: what it names is there, and each program takes what it is given."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import kube
from tests.deploy.accepted import settings_of
from tests.deploy.dockerfile import stages
from tests.ledger import servers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/compose"
SECRET = re.compile(r"password|secret|token|key", re.IGNORECASE)


def _document() -> Any:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


@pytest.fixture
def services() -> dict[str, Any]:
    """The services, each by its name."""
    found: dict[str, Any] = _document()["services"]
    return found


def test_every_service_is_watched_pinned_and_confined(services: dict[str, Any]) -> None:
    assert set(services) == {"prefill", "decode", "redis", "router", "prometheus", "grafana"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+", service["image"]), name
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not {"privileged", "network_mode", "pid", "env_file"} & service.keys()
        # The router's health check is in its image.
        assert ("healthcheck" in service) == (name != "router")
    (health,) = (s for s in stages(ROOT / "Dockerfile")[-1] if s.instruction == "HEALTHCHECK")
    assert "/live" in health.text
    assert services["router"]["read_only"] is True


def test_ports_are_open_to_this_machine_alone(services: dict[str, Any]) -> None:
    published = {name: port for name, service in services.items() for port in service.get("ports", [])}
    assert set(published) == {"router", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for port in published.values())


def test_files_networks_and_volumes_are_there(services: dict[str, Any]) -> None:
    document = _document()
    for service in services.values():
        networks = service["networks"]
        assert set(networks) <= set(document["networks"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (FOLDER / source).is_dir(), volume
        assert set(service.get("depends_on", {})) <= set(services)
        build = service.get("build")
        if isinstance(build, str):
            assert (FOLDER / build / "Dockerfile").is_file()
        elif build:
            assert (FOLDER / build["context"] / build["dockerfile"]).is_file()


def test_the_router_takes_its_command(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    router = services["router"]
    settings = settings_of(monkeypatch, router["command"])
    hosts = {re.sub(r"^\w+://|:\d+$", "", at) for at in (*settings.prefill, *settings.decode, settings.store)}
    assert hosts == {"prefill", "decode", "redis"}
    for host in hosts:
        assert set(services[host]["networks"]) & set(router["networks"])
    assert settings.warnings() == ()
    assert int(router["stop_grace_period"].removesuffix("s")) > settings.drain_s
    for name in ("prefill", "decode"):
        config = kube.transfer_config(services[name]["command"])
        assert config["kv_connector_extra_config"] == {
            "bidirectional_kv_xfer": True,
            "decoder_kv_blocks_ttl": settings.decode_ttl_s,
            "kv_lease_duration": settings.prefill_lease_s,
            "kv_recompute_threshold": settings.reuse_threshold_tokens,
        }


def test_nodes_have_a_gpu_and_an_address_of_their_own(services: dict[str, Any]) -> None:
    nodes = [services["prefill"], services["decode"]]
    gpus = [n["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for n in nodes]
    addresses = [n["networks"]["engines"]["ipv4_address"] for n in nodes]
    assert len({str(ids) for ids in gpus}) == len(set(addresses)) == 2
    assert [n["environment"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] for n in nodes] == addresses


def test_redis_takes_its_command(services: dict[str, Any], tmp_path: Path) -> None:
    servers.needed()
    program, *options = services["redis"]["command"]
    assert program == "redis-server"
    server = servers.Server(tmp_path, options=options)
    server.start()  # raises where it does not answer
    server.kill()
    assert _document()["networks"]["store"] == {"internal": True}
    assert [name for name, service in services.items() if "store" in service["networks"]] == [
        "redis",
        "router",
    ]


def test_there_is_no_secret_in_it(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable) and "DISABLE" not in variable:
                assert re.fullmatch(r"\$\{\w+:-\}", value), f"{name}: {variable}"
        assert not [word for word in service.get("command", []) if "requirepass" in word]


def test_prometheus_reads_what_is_mounted(services: dict[str, Any]) -> None:
    prometheus = services["prometheus"]
    mounts = dict(volume.split(":")[:2] for volume in prometheus["volumes"])
    (config,) = (w.partition("=")[2] for w in prometheus["command"] if w.startswith("--config.file="))
    (source,) = (source for source, target in mounts.items() if config.startswith(f"{target}/"))
    file = FOLDER / source / Path(config).name
    scraped = yaml.safe_load(file.read_text())["scrape_configs"]
    listed = [static for job in scraped for static in job["static_configs"]]
    hosts = {target.split(":")[0] for static in listed for target in static["targets"]}
    assert hosts <= set(services)
    for host in hosts:
        assert set(services[host]["networks"]) & set(prometheus["networks"])
    promtool = shutil.which("promtool")
    if promtool:
        checked = subprocess.run(
            [promtool, "check", "config", file], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_grafana_is_provisioned_with_what_is_mounted(services: dict[str, Any]) -> None:
    grafana = services["grafana"]
    mounts = {target: FOLDER / source for source, target, _ in (v.split(":") for v in grafana["volumes"])}
    provisioning = mounts["/etc/grafana/provisioning"]
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert set(services["prometheus"]["networks"]) & set(grafana["networks"])
    (provider,) = yaml.safe_load((provisioning / "dashboards/boomerang.yaml").read_text())["providers"]
    folder = mounts[provider["options"]["path"]]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).is_file()
