"""Kubernetes manifests as values, and what has to be true of all of ours, plain or from the chart."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
PROBED = {"/live", "/ready", "/health"}


def manifests(text: str) -> list[Manifest]:
    """Every document of a file that is not empty."""
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(all_of_them: Iterable[Manifest], kind: str) -> list[Manifest]:
    return [one for one in all_of_them if one["kind"] == kind]


def named(all_of_them: Iterable[Manifest], kind: str, name: str) -> Manifest:
    (found,) = (one for one in of_kind(all_of_them, kind) if one["metadata"]["name"] == name)
    return found


def pods(all_of_them: Iterable[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Name, and template, of every Deployment."""
    for one in of_kind(all_of_them, "Deployment"):
        yield one["metadata"]["name"], one["spec"]["template"]


def containers(template: Manifest) -> list[Manifest]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def container(template: Manifest, name: str) -> Manifest:
    (found,) = (one for one in containers(template) if one["name"] == name)
    return found


def transfer_config(arguments: Iterable[str]) -> Manifest:
    """An engine's KV transfer settings."""
    (found,) = (word for word in arguments if word.startswith("--kv-transfer-config="))
    config: Manifest = json.loads(found.partition("=")[2])
    return config


def matches(selector: Manifest, labels: Manifest) -> bool:
    return selector.items() <= labels.items()


def check_selectors(all_of_them: list[Manifest]) -> None:
    """Deployments select their own pods; whatever else selects pods finds some, by ports that they have."""
    templates = dict(pods(all_of_them))
    for one in of_kind(all_of_them, "Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert matches(one["spec"]["selector"]["matchLabels"], labels)
        others = [t for name, t in templates.items() if name != one["metadata"]["name"]]
        assert not any(
            matches(one["spec"]["selector"]["matchLabels"], t["metadata"]["labels"]) for t in others
        )
    for one in of_kind(all_of_them, "Service"):
        found = [t for t in templates.values() if matches(one["spec"]["selector"], t["metadata"]["labels"])]
        assert len(found) == 1, one["metadata"]["name"]
        ports = {port["name"] for c in containers(found[0]) for port in c.get("ports", [])}
        assert {port["targetPort"] for port in one["spec"]["ports"]} <= ports
    for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        for one in of_kind(all_of_them, kind):
            selector = one["spec"][path]["matchLabels"]
            assert any(matches(selector, t["metadata"]["labels"]) for t in templates.values()), one
    for one in of_kind(all_of_them, "HorizontalPodAutoscaler"):
        assert one["spec"]["scaleTargetRef"]["name"] in templates
        assert one["spec"]["minReplicas"] >= 2
        assert "replicas" not in named(all_of_them, "Deployment", one["metadata"]["name"])["spec"]


def check_restricted(template: Manifest, of: Manifest) -> None:
    """What Kubernetes' standard "restricted" asks for, and a root file system that is not written to."""
    pod, own = template["spec"].get("securityContext", {}), of["securityContext"]
    assert {**pod, **own}["runAsNonRoot"] is True
    assert {**pod, **own}["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["readOnlyRootFilesystem"] is True
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert template["spec"]["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & template["spec"].keys()
    assert of["resources"]["requests"]
    assert "memory" in of["resources"]["limits"]


def check_ends_in_time(template: Manifest, of: Manifest, drain_s: float) -> None:
    """A pod's time to end holds the pause of preStop, the drain, and some seconds more."""
    pause_s = of["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause_s >= 5
    assert template["spec"]["terminationGracePeriodSeconds"] >= pause_s + drain_s + 10


def check_probes(of: Manifest) -> None:
    """The router is started again for its own sake alone, and gets connections when it can serve a turn."""
    ports = {port["name"]: port["containerPort"] for port in of["ports"]}
    assert of["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert of["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert ports["http"] == 8000


def check_volumes(template: Manifest) -> None:
    """Every mount has its volume, and every volume a mount."""
    volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
    mounted = {mount["name"] for of in containers(template) for mount in of.get("volumeMounts", [])}
    assert mounted == volumes


def check_no_secrets(all_of_them: Iterable[Manifest]) -> None:
    """No secret in what is applied: not as a Secret with values, not in a variable, not in a ConfigMap."""
    for one in all_of_them:
        assert one["kind"] != "Secret"
        assert "password " not in json.dumps(one.get("data", {}))
        if one["kind"] == "Deployment":
            for of in containers(one["spec"]["template"]):
                for variable in of.get("env", []):
                    secret = any(word in variable["name"] for word in ("TOKEN", "KEY", "PASSWORD"))
                    assert not (secret and "value" in variable), variable["name"]


def folder(path: Path) -> list[Manifest]:
    """All that a kustomization applies. Raises AssertionError where a file of it is not there."""
    kustomization = yaml.safe_load((path / "kustomization.yaml").read_text())
    found: list[Manifest] = []
    for name in kustomization["resources"]:
        found += manifests((path / name).read_text())
    for generated in kustomization.get("configMapGenerator", []):
        data = {name: (path / name).read_text() for name in generated["files"]}
        found.append({"kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": data})
    return found
