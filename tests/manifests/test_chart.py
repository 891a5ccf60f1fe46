"""The chart: what it renders, what Kubernetes and the router make of that, and which values it refuses."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.settings import Settings
from tests.deploy import kube
from tests.deploy.accepted import settings_of, with_secrets
from tests.manifests.conftest import ROOT, Tool

CHART = ROOT / "deploy/helm/boomerang"
VERSIONS = ("1.30", "1.33", "1.37")
IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
FOUND = {
    "kubernetes_prefill": "kubernetes.io/service-name=vllm-prefill",
    "kubernetes_decode": "kubernetes.io/service-name=vllm-decode",
}
LISTED = {"prefill": ["http://10.0.0.1:8100"], "decode": ["http://10.0.1.1:8200@0", "http://10.0.1.1:8200@1"]}
VALUES: dict[str, dict[str, Any]] = {
    "least": {"config": FOUND},
    "alone": {
        "config": LISTED,
        "redis": {"enabled": False},
        "autoscaling": {"enabled": False},
        "replicas": 1,
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False},
    },
    "own_store": {
        "config": {
            **LISTED,
            "store": "rediss://router@cache.example:6380",
            "drain_s": 299.5,
            "workers": 2,
            "admin_port": "none",
        },
        "redis": {"enabled": False},
        "secrets": {
            "storePassword": {"name": "cache", "key": "pass"},
            "storeCa": {"name": "cache", "key": "ca.crt"},
            "engineApiKey": {"name": "engines", "key": "key"},
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 6380}]}]},
    },
    "everything": {
        "image": {"repository": "registry.example/boomerang", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "config": {
            **FOUND,
            "kubernetes_namespace": "engines",
            "admin_host": "0.0.0.0",  # noqa: S104 - guarded by a token
            "admin_port": 9001,
            "max_branches": 1_000_000,
            "max_ledger_bytes": 536_870_912,
            "max_body_bytes": "32MiB",
            "store_timeout_s": 0.00001,
            "prefill_timeout_s": "none",
            "pin_budget": 0.25,
            "answer_tokens": False,
        },
        "secrets": {"adminToken": {"name": "admin", "key": "token"}},
        "redis": {"passwordSecret": {"name": "shared", "key": "redis"}, "maxmemory": "1gb"},
        "service": {"type": "LoadBalancer", "port": 8080, "annotations": {"a": "b"}},
        "ingress": {"enabled": True, "className": "nginx", "host": "llm.example", "tlsSecretName": "tls"},
        "serviceAccount": {"name": "router", "annotations": {"a": "b"}},
        "networkPolicy": {"from": [{"namespaceSelector": {}}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "inference"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraEnv": [{"name": "OTEL_RESOURCE_ATTRIBUTES", "value": "deployment.environment=prod"}],
    },
}


def rendered(tool: Tool, name: str) -> tuple[str, list[kube.Manifest]]:
    """What the chart makes of a set of values, as text and as manifests."""
    answer = tool.ask("render", CHART, given=json.dumps(VALUES[name]))
    assert "refused" not in answer, answer
    return answer["manifests"], kube.manifests(answer["manifests"])


def test_the_linter_finds_nothing_that_matters(tool: Tool) -> None:
    told = tool.ask("lint", CHART)
    assert told["total_charts_linted"] == 1
    assert told["errors"] == []
    assert [message["error"] for message in told["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("name", VALUES)
def test_every_manifest_is_what_kubernetes_takes(name: str, tool: Tool) -> None:
    text, _ = rendered(tool, name)
    for version in VERSIONS:
        assert tool.faults(version, text) == ""


def test_the_schemas_do_find_faults(tool: Tool) -> None:
    text, _ = rendered(tool, "least")
    assert tool.faults("1.33", text.replace("runAsNonRoot: true", "runAsNonRoots: true", 1))
    assert tool.faults("1.33", text.replace("maxUnavailable: 0", "maxUnavailable: []", 1))


@pytest.mark.parametrize("name", VALUES)
def test_what_belongs_together_fits(name: str, tool: Tool) -> None:
    _, manifests = rendered(tool, name)
    kube.check_selectors(manifests)
    for _, template in kube.pods(manifests):
        kube.check_volumes(template)
    template = dict(kube.pods(manifests))["pool-boomerang"]
    router = kube.container(template, "router")
    kube.check_restricted(template, router)
    kube.check_probes(router)
    kube.check_no_secrets(one for one in manifests if one["kind"] != "Secret")
    assert not [
        one for one in manifests if one["metadata"].get("namespace") not in (None, "serving", "engines")
    ]


@pytest.mark.parametrize("name", VALUES)
def test_the_router_takes_its_settings(
    name: str, tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, manifests = rendered(tool, name)
    settings, template = _settings(manifests, monkeypatch, tmp_path)
    for key, value in VALUES[name]["config"].items():
        taken = getattr(settings, key)
        taken = list(taken) if isinstance(taken, tuple) else taken
        assert taken == {"none": None, "32MiB": 32 << 20}.get(str(value), value), key
    kube.check_ends_in_time(template, kube.container(template, "router"), settings.drain_s)
    paths = {
        str(path)
        for path in (settings.store_password_file, settings.store_ca_file, settings.engine_api_key_file)
        if path
    }
    assert len(paths) == {"least": 1, "alone": 0, "own_store": 3, "everything": 1}[name]
    assert bool(settings.admin_secret()) == (name == "everything")


def test_secrets_are_where_the_settings_look_for_them(tool: Tool) -> None:
    for name in VALUES:
        _, manifests = rendered(tool, name)
        template = dict(kube.pods(manifests))["pool-boomerang"]
        config = kube.named(manifests, "ConfigMap", "pool-boomerang")["data"]["boomerang.yaml"]
        wanted = set(re.findall(r"/run/secrets/boomerang/([\w./-]+)", config))
        sources = [
            item["path"]
            for volume in template["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            for item in source["secret"]["items"]
        ]
        assert set(sources) == wanted
        assert len(sources) == len(wanted)


def test_discovery_gets_an_account_that_may_look_where_the_engines_are(tool: Tool) -> None:
    _, manifests = rendered(tool, "everything")
    (role,) = kube.of_kind(manifests, "Role")
    (binding,) = kube.of_kind(manifests, "RoleBinding")
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "engines"
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "router", "namespace": "serving"}]
    for name, asks in (("everything", True), ("alone", False)):
        _, manifests = rendered(tool, name)
        spec = dict(kube.pods(manifests))["pool-boomerang"]["spec"]
        assert spec["automountServiceAccountToken"] is asks
        assert bool(kube.of_kind(manifests, "Role")) is asks


def test_a_password_is_drawn_and_never_the_same(tool: Tool) -> None:
    drawn = []
    for _ in range(2):
        _, manifests = rendered(tool, "least")
        (secret,) = kube.of_kind(manifests, "Secret")
        drawn.append(base64.b64decode(secret["data"]["password"]).decode())
    assert drawn[0] != drawn[1]
    assert all(re.fullmatch(r"[A-Za-z0-9]{40}", password) for password in drawn)
    _, manifests = rendered(tool, "everything")
    assert kube.of_kind(manifests, "Secret") == []


def test_redis_is_started_as_the_plain_manifest_starts_it(tool: Tool) -> None:
    _, manifests = rendered(tool, "least")
    plain = kube.folder(ROOT / "deploy/kubernetes")
    own = dict(kube.pods(manifests))["pool-boomerang-redis"]
    there = dict(kube.pods(plain))["boomerang-redis"]
    for key in ("command", "image", "readinessProbe", "resources", "securityContext", "volumeMounts"):
        assert kube.container(own, "redis")[key] == kube.container(there, "redis")[key]
    config = kube.named(manifests, "ConfigMap", "pool-boomerang-redis")["data"]["redis.conf"]
    told = kube.named(plain, "ConfigMap", "boomerang-redis")["data"]["redis.conf"]
    assert config == re.sub(r"^#.*\n", "", told, flags=re.MULTILINE)


def test_changed_settings_roll_the_router_out(tool: Tool) -> None:
    sums = []
    for drain_s in (10, 20):
        answer = tool.ask("render", CHART, given=json.dumps({"config": {**FOUND, "drain_s": drain_s}}))
        template = dict(kube.pods(kube.manifests(answer["manifests"])))["pool-boomerang"]
        sums.append(template["metadata"]["annotations"]["checksum/settings"])
    assert sums[0] != sums[1]


def test_rules_and_dashboard_are_those_of_the_repository(tool: Tool) -> None:
    _, manifests = rendered(tool, "everything")
    (rule,) = kube.of_kind(manifests, "PrometheusRule")
    files = [ROOT / "deploy/prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
    assert rule["spec"]["groups"] == [
        group for file in files for group in yaml.safe_load(file.read_text())["groups"]
    ]
    dashboard = kube.named(manifests, "ConfigMap", "pool-boomerang-dashboard")["data"]["boomerang.json"]
    there = ROOT / "deploy/grafana/dashboards/boomerang.json"
    assert json.loads(dashboard) == json.loads(there.read_text())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "where are the engines"),
    ({"config": {"kubernetes_prefill": "a=b"}}, "where are the engines"),
    ({"config": {**FOUND, "drian_s": 1}}, "drian_s"),
    ({"config": {**FOUND, "drain_s": "long"}}, "drain_s"),
    ({"config": {**FOUND, "pin_budget": 1.5}}, "pin_budget"),
    ({"config": {**FOUND, "verify": "maybe"}}, "verify"),
    ({"config": {**FOUND, "admin_token": "secret"}}, "admin_token"),
    ({"config": {**FOUND, "admin_host": "0.0.0.0"}}, "adminToken"),  # noqa: S104 - what is refused
    ({"config": {**FOUND, "workers": 2}}, "admin_port"),
    ({"config": {**FOUND, "store": "redis://cache"}}, "redis.enabled"),
    ({"config": FOUND, "redis": {"enabled": False}}, "share"),
    ({"config": FOUND, "secrets": {"storePassword": {"name": "x"}}}, "storePassword"),
    ({"config": FOUND, "replica": 2}, "replica"),
    ({"config": FOUND, "replicas": 0}, "replicas"),
    ({"config": FOUND, "autoscaling": {"minReplicas": 9}}, "minReplicas"),
    ({"config": FOUND, "service": {"type": "Cluster"}}, "type"),
    ({"config": FOUND, "image": {"digest": "latest"}}, "digest"),
    ({"config": FOUND, "ingress": {"enabled": True}}, "ingress.host"),
    ({"config": FOUND, "redis": {"maxmemory": "lots"}}, "maxmemory"),
]


@pytest.mark.parametrize(("values", "why"), REFUSED, ids=lambda case: case if isinstance(case, str) else "")
def test_wrong_values_are_refused(values: dict[str, Any], why: str, tool: Tool) -> None:
    answer = tool.ask("render", CHART, given=json.dumps(values))
    assert why in answer.get("refused", ""), answer


def _settings(
    manifests: list[kube.Manifest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[Settings, kube.Manifest]:
    template = dict(kube.pods(manifests))["pool-boomerang"]
    config = kube.named(manifests, "ConfigMap", "pool-boomerang")["data"]["boomerang.yaml"]
    file = with_secrets(config, tmp_path)
    arguments = [
        word.replace("/etc/boomerang/boomerang.yaml", str(file))
        for word in kube.container(template, "router")["args"]
    ]
    return settings_of(monkeypatch, arguments, IN_A_POD), template
