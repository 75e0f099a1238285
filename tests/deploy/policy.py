"""What every rendered manifest must hold, as a pure function that names each thing that is wrong."""

from collections.abc import Iterator
from typing import Any

from rendered import Manifest, Pod, containers, of_kind, pods

PREPARES_SOCKET = ("DaemonSet/hydraulis-agent", "socket-directory")
"""The one container that runs as root: it gives the directory of the socket away, and can do nothing else."""

HOST_PATHS = {"DaemonSet/hydraulis-agent": {"/run/hydraulis"}}
SECRET_WORDS = ("password", "secret", "token", "key")


def violations(manifests: list[Manifest]) -> list[str]:
    """Return what is wrong with manifests that are applied together, one line each."""
    found = [
        line for pod in pods(manifests) for line in (*_of_pod(pod), *_of_containers(pod), *_of_account(pod, manifests))
    ]
    return [*found, *_of_networks(manifests), *_of_secrets(manifests), *_of_rights(manifests), *_of_services(manifests)]


def _asks(found: Any, where: str, *, expected: Any) -> Iterator[str]:
    if found != expected:
        yield f"{where} is {found!r}, must be {expected!r}"


def _of_pod(pod: Pod) -> Iterator[str]:
    spec = pod.template["spec"]
    context = spec.get("securityContext", {})
    yield from _asks(
        spec.get("automountServiceAccountToken"), f"{pod.owner}: automountServiceAccountToken", expected=False
    )
    yield from _asks(spec.get("enableServiceLinks"), f"{pod.owner}: enableServiceLinks", expected=False)
    yield from _asks(context.get("runAsNonRoot"), f"{pod.owner}: runAsNonRoot", expected=True)
    yield from _asks(context.get("seccompProfile"), f"{pod.owner}: seccompProfile", expected={"type": "RuntimeDefault"})
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        if not context.get(field):
            yield f"{pod.owner}: {field} is {context.get(field)!r}, must be a user other than root"
    for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(field):
            yield f"{pod.owner}: {field} is set"
    if not spec.get("terminationGracePeriodSeconds"):
        yield f"{pod.owner}: terminationGracePeriodSeconds is not said"
    for volume in spec.get("volumes", ()):
        path = volume.get("hostPath", {}).get("path")
        if path is not None and path not in HOST_PATHS.get(pod.owner, ()):
            yield f"{pod.owner}: path {path} of the node is mounted"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"{pod.owner}: volume {volume['name']} has no sizeLimit"


def _of_containers(pod: Pod) -> Iterator[str]:
    for container in containers(pod):
        where = f"{pod.owner}: container {container['name']}"
        context = container.get("securityContext", {})
        prepares = (pod.owner, container["name"]) == PREPARES_SOCKET
        capabilities = {"drop": ["ALL"], "add": ["CHOWN"]} if prepares else {"drop": ["ALL"]}
        yield from _asks(context.get("allowPrivilegeEscalation"), f"{where}: allowPrivilegeEscalation", expected=False)
        yield from _asks(context.get("readOnlyRootFilesystem"), f"{where}: readOnlyRootFilesystem", expected=True)
        yield from _asks(context.get("capabilities"), f"{where}: capabilities", expected=capabilities)
        if not prepares and not (context.get("runAsNonRoot", True) and context.get("runAsUser", 1)):
            yield f"{where}: runs as root"
        if context.get("privileged") or "seccompProfile" in context:
            yield f"{where}: is privileged, or has a seccomp profile of its own"
        if ":" not in container["image"] or container["image"].endswith(":latest"):
            yield f"{where}: image {container['image']} has no version"
        yield from _of_resources(container, where)
    for container in pod.template["spec"]["containers"]:
        if pod.owner.startswith(("Deployment", "DaemonSet")):
            for probe in ("startupProbe", "livenessProbe"):
                if probe not in container:
                    yield f"{pod.owner}: container {container['name']}: {probe} is missing"
            if "ports" in container and "readinessProbe" not in container:
                yield f"{pod.owner}: container {container['name']}: readinessProbe is missing"


def _of_resources(container: Manifest, where: str) -> Iterator[str]:
    resources = container.get("resources", {})
    for kind, name in (("requests", "cpu"), ("requests", "memory"), ("limits", "memory")):
        if name not in resources.get(kind, {}):
            yield f"{where}: resources.{kind}.{name} is missing"


def _of_account(pod: Pod, manifests: list[Manifest]) -> Iterator[str]:
    name = pod.template["spec"].get("serviceAccountName")
    accounts = [it for it in of_kind(manifests, "ServiceAccount") if it["metadata"]["name"] == name]
    if not accounts:
        yield f"{pod.owner}: has no service account of its own"
    for account in accounts:
        yield from _asks(
            account.get("automountServiceAccountToken"), f"ServiceAccount/{name}: its token", expected=False
        )


def _of_networks(manifests: list[Manifest]) -> Iterator[str]:
    policies = of_kind(manifests, "NetworkPolicy")
    for pod in pods(manifests):
        inside = [it["spec"] for it in policies if it["metadata"]["namespace"] == pod.namespace]
        denies = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        if denies not in inside:
            yield f"namespace {pod.namespace}: no policy denies what is not allowed"
        labels = pod.template["metadata"]["labels"]
        chosen = [it for it in inside if it["podSelector"] and _is_chosen(it["podSelector"], labels)]
        if not chosen:
            yield f"{pod.owner}: no network policy is about it"
        for spec in chosen:
            for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
                if not rule.get("from") and not rule.get("to"):
                    yield f"{pod.owner}: a network policy names no peers"


def _is_chosen(selector: Manifest, labels: Manifest) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items()


def _of_secrets(manifests: list[Manifest]) -> Iterator[str]:
    for secret in of_kind(manifests, "Secret"):
        yield f"Secret/{secret['metadata']['name']}: secrets are made where the cluster is, not here"
    for pod in pods(manifests):
        for container in containers(pod):
            for variable in container.get("env", ()):
                is_secret = any(word in variable["name"].lower() for word in SECRET_WORDS)
                value = variable.get("value", "")
                if (is_secret and value and not value.startswith("/")) or "@" in value:
                    yield f"{pod.owner}: {variable['name']} is told in the clear"


def _of_rights(manifests: list[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        if manifest["kind"] in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
            yield f"{manifest['kind']}/{manifest['metadata']['name']}: nothing here needs rights in the cluster"


def _of_services(manifests: list[Manifest]) -> Iterator[str]:
    for service in of_kind(manifests, "Service"):
        if service["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"Service/{service['metadata']['name']}: is reached from outside the cluster"
        for port in service["spec"]["ports"]:
            named = {it["name"] for pod in pods(manifests) for it in _ports_of(service, pod)}
            if isinstance(port.get("targetPort"), str) and port["targetPort"] not in named:
                yield f"Service/{service['metadata']['name']}: no pod has a port {port['targetPort']}"


def _ports_of(service: Manifest, pod: Pod) -> Iterator[Manifest]:
    if service["spec"]["selector"].items() <= pod.template["metadata"]["labels"].items():
        for container in containers(pod):
            yield from container.get("ports", ())
