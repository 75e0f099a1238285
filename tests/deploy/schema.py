"""Whether manifests have the fields that Kubernetes and the operators know, and no other.

Kubernetes' own kinds are checked against its published schemas. Custom resources are checked against small schemas with
the field names of the published definitions, and what is a pod or a job inside them against Kubernetes' own.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
from rendered import Manifest

SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "schemas").glob("*.json")}
VERSIONS = ("1.35", "1.36", "1.37")


def faults(manifest: Manifest, version: str) -> list[str]:
    """Return what is wrong with a manifest for one version of Kubernetes."""
    found = []
    schema = SCHEMAS.get(manifest["kind"])
    if schema is not None:
        validator = jsonschema.Draft202012Validator(schema)
        found += [
            f"{manifest['kind']}: {fault.json_path}: {fault.message}" for fault in validator.iter_errors(manifest)
        ]
        if found:
            return found
    found = []
    for inner in [manifest] if schema is None else _inside(manifest):
        try:
            kubernetes_validate.validate(inner, version, strict=True)
        except kubernetes_validate.ValidationError as fault:
            found.append(f"{manifest['kind']}: {fault.json_path}: {fault.message}")
    return found


def _inside(custom: Manifest) -> Iterator[Manifest]:
    """Yield the kinds of Kubernetes' own that a custom resource holds."""
    spec, metadata = custom["spec"], {"name": "inside"}
    if custom["kind"] == "JobSet":
        for part in spec["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": part["template"]["spec"]}
    if custom["kind"] == "PyTorchJob":
        for part in spec["pytorchReplicaSpecs"].values():
            yield {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": part["template"]}
