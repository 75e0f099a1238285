"""Rendered manifests are hardened, and the policy that says so notices when any of it is dropped.

1. Nothing that is rendered violates the policy.
2. Whatever field of a pod's or container's security is dropped or weakened, the policy names it.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from policy import violations
from rendered import EVERYTHING, Manifest, containers, of_kind, pods, rendered

WORKLOADS = tuple(name for name in EVERYTHING if name != "monitoring")
DROPPED_FROM_PODS = (
    "automountServiceAccountToken",
    "enableServiceLinks",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "securityContext",
    "securityContext.runAsNonRoot",
    "securityContext.runAsUser",
    "securityContext.runAsGroup",
    "securityContext.fsGroup",
    "securityContext.seccompProfile",
)
DROPPED_FROM_CONTAINERS = (
    "securityContext",
    "securityContext.allowPrivilegeEscalation",
    "securityContext.readOnlyRootFilesystem",
    "securityContext.capabilities",
    "securityContext.capabilities.drop",
    "resources",
    "resources.requests.cpu",
    "resources.requests.memory",
    "resources.limits.memory",
)
SET_IN_PODS = {
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "shareProcessNamespace": True,
    "automountServiceAccountToken": True,
    "securityContext.runAsUser": 0,
    "securityContext.seccompProfile.type": "Unconfined",
    "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
}
SET_IN_CONTAINERS = {
    "securityContext.privileged": True,
    "securityContext.allowPrivilegeEscalation": True,
    "securityContext.readOnlyRootFilesystem": False,
    "securityContext.capabilities.add": ["SYS_ADMIN"],
    "securityContext.seccompProfile": {"type": "Unconfined"},
    "image": "hydraulis-planner:latest",
    "env": [{"name": "HYDRAULIS_TOKEN", "value": "hydraulis-secret"}],
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_that_is_rendered_violates_the_policy(name: str) -> None:
    assert violations(rendered(name)) == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_policy_names_every_field_that_is_dropped_or_weakened(name: str) -> None:
    whole = rendered(name)
    num_pods = len(list(pods(whole)))
    assert num_pods > 0
    for index in range(num_pods):
        for path in DROPPED_FROM_PODS:
            changed, spec = _spec(whole, index)
            assert _drop(spec, path), f"{name}: {path} is not there to be dropped"
            assert violations(changed), f"{name}: nobody notices that {path} is gone"
        for path, value in SET_IN_PODS.items():
            changed, spec = _spec(whole, index)
            _set(spec, path, value)
            assert violations(changed), f"{name}: nobody notices {path}: {value}"
        for number in range(len(list(containers(list(pods(whole))[index])))):
            for changed, path in _changed_containers(whole, index, number):
                assert violations(changed), f"{name}: nobody notices a container whose {path} is changed"


def _spec(manifests: list[Manifest], index: int) -> tuple[list[Manifest], Manifest]:
    changed = copy.deepcopy(manifests)
    return changed, list(pods(changed))[index].template["spec"]


def _changed_containers(whole: list[Manifest], index: int, number: int) -> Iterator[tuple[list[Manifest], str]]:
    for path in DROPPED_FROM_CONTAINERS:
        changed = copy.deepcopy(whole)
        container = list(containers(list(pods(changed))[index]))[number]
        assert _drop(container, path), path
        yield changed, path
    for path, value in SET_IN_CONTAINERS.items():
        changed = copy.deepcopy(whole)
        _set(list(containers(list(pods(changed))[index]))[number], path, value)
        yield changed, path


def _drop(manifest: Manifest, path: str) -> bool:
    *parents, last = path.split(".")
    for parent in parents:
        manifest = manifest[parent]
    return manifest.pop(last, None) is not None


def _set(manifest: Manifest, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        manifest = manifest[parent]
    manifest[last] = value


@pytest.mark.parametrize("name", ["planner", "agent"])
def test_the_policy_notices_missing_probes_policies_and_what_gives_rights(name: str) -> None:
    whole = rendered(name)
    for kind in ("ServiceAccount", "NetworkPolicy"):
        assert violations([manifest for manifest in whole if manifest["kind"] != kind]), kind
    for policy in of_kind(whole, "NetworkPolicy"):
        assert violations([manifest for manifest in whole if manifest is not policy]), policy["metadata"]["name"]
    for probe in ("startupProbe", "livenessProbe"):
        changed, spec = _spec(whole, 0)
        spec["containers"][0].pop(probe)
        assert violations(changed), probe
    for kind in ("Secret", "ClusterRole", "RoleBinding"):
        assert violations([*whole, {"kind": kind, "metadata": {"name": "x"}}]), kind
    changed = copy.deepcopy(whole)
    changed[0]["spec"] = {"type": "LoadBalancer", "ports": [], "selector": {}}
    changed[0]["kind"] = "Service"
    assert violations(changed)


def test_one_planner_owns_its_file_and_several_share_a_database() -> None:
    (alone,) = of_kind(rendered("planner"), "Deployment")
    assert (alone["spec"]["replicas"], alone["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert len(of_kind(rendered("planner"), "PersistentVolumeClaim")) == 1
    several = rendered("planner-postgresql")
    (shared,) = of_kind(several, "Deployment")
    (database,) = (it for it in shared["spec"]["template"]["spec"]["containers"][0]["env"] if "DATABASE" in it["name"])
    assert database == {
        "name": "HYDRAULIS_DATABASE",
        "valueFrom": {"secretKeyRef": {"name": "hydraulis-database", "key": "url"}},
    }
    assert "replicas" not in shared["spec"], "the autoscaler says how many"
    assert of_kind(several, "PersistentVolumeClaim") == []
    (scaler,) = of_kind(several, "HorizontalPodAutoscaler")
    (budget,) = of_kind(several, "PodDisruptionBudget")
    assert scaler["spec"]["minReplicas"] >= 2
    assert scaler["spec"]["scaleTargetRef"]["name"] == shared["metadata"]["name"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= shared["spec"]["template"]["metadata"]["labels"].items()
    assert shared["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert shared["spec"]["template"]["spec"]["topologySpreadConstraints"]


def test_the_grace_period_is_longer_than_what_the_process_takes_to_drain() -> None:
    drains = {"planner": "HYDRAULIS_DRAIN_TIMEOUT_S", "planner-postgresql": "HYDRAULIS_DRAIN_TIMEOUT_S"}
    for name, variable in drains.items():
        (pod,) = pods(rendered(name))
        (container,) = pod.template["spec"]["containers"]
        (drain_s,) = (float(it["value"]) for it in container["env"] if it["name"] == variable)
        waits_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
        assert waits_s + drain_s < pod.template["spec"]["terminationGracePeriodSeconds"]


def test_peers_of_network_policies_are_pods_that_there_are() -> None:
    there = {"hydraulis": "planner", "hydraulis-agent": "agent", "hydraulis-training": "examples/indexed-job"}
    for name in there.values():
        for policy in of_kind(rendered(name), "NetworkPolicy"):
            for rule in policy["spec"].get("egress", ()):
                for peer in rule.get("to", ()):
                    namespace = peer.get("namespaceSelector", {}).get("matchLabels", {})
                    target = namespace.get("kubernetes.io/metadata.name")
                    if target in there:
                        labels = [pod.template["metadata"]["labels"] for pod in pods(rendered(there[target]))]
                        assert any(peer["podSelector"]["matchLabels"].items() <= it.items() for it in labels)


@pytest.mark.parametrize("name", ["agent", "examples/indexed-job"])
def test_who_asks_the_planner_runs_where_the_planner_lets_them_in(name: str) -> None:
    (namespace,) = of_kind(rendered(name), "Namespace")
    assert namespace["metadata"]["labels"]["hydraulis/may-plan"] == "true"
    assert "hydraulis/may-plan" in str(of_kind(rendered("planner"), "NetworkPolicy"))
