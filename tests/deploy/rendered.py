"""Manifests as `kubectl kustomize` renders them, and where pods are described in them."""

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
FOLDERS = (
    "planner",
    "planner-postgresql",
    "monitoring",
    "agent",
    "examples/indexed-job",
    "examples/jobset",
    "examples/pytorchjob",
)
"""What can be applied by itself."""

WITH_TLS = ("planner with TLS", "planner-postgresql with TLS")
EVERYTHING = (*FOLDERS, *WITH_TLS)

Manifest = dict[str, Any]


class Pod(NamedTuple):
    """A pod template: whose it is, the template itself, and the namespace it runs in."""

    owner: str
    template: Manifest
    namespace: str


def kustomize(folder: Path) -> list[Manifest]:
    kubectl = shutil.which("kubectl") or shutil.which("kubectl", path=Path(sys.executable).parent)
    assert kubectl is not None, "kubectl is missing: install kubectl 1.27 or later, or run `make kubectl`"
    built = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert built.returncode == 0, built.stderr
    return [manifest for manifest in yaml.load_all(built.stdout, yaml.CSafeLoader) if manifest]


@functools.cache
def _rendered_text(name: str) -> str:
    folder, _, with_tls = name.partition(" with ")
    if not with_tls:
        return json.dumps(kustomize(KUBERNETES / folder))
    # Kustomize takes relative paths alone, so the composition has to lie beside what it is made of.
    composed = Path(tempfile.mkdtemp(prefix=".composed-", dir=KUBERNETES))
    try:
        text = {"namespace": "hydraulis", "resources": [f"../{folder}"], "components": ["../planner-tls"]}
        (composed / "kustomization.yaml").write_text(json.dumps(text))
        return json.dumps(kustomize(composed))
    finally:
        shutil.rmtree(composed)


def rendered(name: str) -> list[Manifest]:
    """Return the manifests of one of EVERYTHING, to be changed at will."""
    manifests: list[Manifest] = json.loads(_rendered_text(name))
    return manifests


def pods(manifests: list[Manifest]) -> Iterator[Pod]:
    """Yield every pod template of some manifests, those in custom resources, too."""
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        namespace = manifest["metadata"].get("namespace", "default")
        if kind in ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job"):
            yield Pod(f"{kind}/{name}", manifest["spec"]["template"], namespace)
        elif kind == "CronJob":
            yield Pod(f"{kind}/{name}", manifest["spec"]["jobTemplate"]["spec"]["template"], namespace)
        elif kind == "Pod":
            yield Pod(f"{kind}/{name}", manifest, namespace)
        elif kind == "JobSet":
            for part in manifest["spec"]["replicatedJobs"]:
                yield Pod(f"{kind}/{name}/{part['name']}", part["template"]["spec"]["template"], namespace)
        elif kind == "PyTorchJob":
            for role, part in manifest["spec"]["pytorchReplicaSpecs"].items():
                yield Pod(f"{kind}/{name}/{role}", part["template"], namespace)


def containers(pod: Pod) -> Iterator[Manifest]:
    """Yield a pod's containers, those that run first among them."""
    yield from pod.template["spec"].get("initContainers", ())
    yield from pod.template["spec"]["containers"]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]
