"""Rendered manifests have the fields that Kubernetes knows, in its last three minor versions."""

import copy

import pytest
from kubernetes_validate import utils
from rendered import EVERYTHING, Manifest, of_kind, pods, rendered
from schema import SCHEMAS, VERSIONS, faults


def test_the_versions_are_the_last_three_that_there_are_schemas_of() -> None:
    known = [version.rpartition(".")[0] for version in utils.all_versions()]
    assert tuple(dict.fromkeys(known))[-3:] == VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", EVERYTHING)
def test_every_manifest_has_fields_that_there_are(name: str, version: str) -> None:
    assert [fault for manifest in rendered(name) for fault in faults(manifest, version)] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("planner", "Deployment"),
        ("agent", "DaemonSet"),
        ("examples/indexed-job", "Job"),
        ("examples/jobset", "JobSet"),
        ("examples/pytorchjob", "PyTorchJob"),
    ],
)
def test_a_misspelt_field_of_a_pod_is_noticed_wherever_the_pod_is_described(name: str, kind: str) -> None:
    (whole,) = of_kind(rendered(name), kind)
    assert faults(whole, VERSIONS[-1]) == []
    for depth in ("pod", "container"):
        changed = copy.deepcopy(whole)
        spec = next(pods([changed])).template["spec"]
        (spec if depth == "pod" else spec["containers"][0])["securityContxt"] = {}
        assert faults(changed, VERSIONS[-1])


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_misspelt_field_of_a_custom_resource_is_noticed(kind: str) -> None:
    name = {"JobSet": "examples/jobset", "PyTorchJob": "examples/pytorchjob"}.get(kind, "monitoring")
    (whole,) = of_kind(rendered(name), kind)
    objects = list(_objects(whole["spec"]))
    assert objects
    for number in range(min(len(objects), 3)):
        changed = copy.deepcopy(whole)
        list(_objects(changed["spec"]))[number]["misspelt"] = 1
        assert faults(changed, VERSIONS[-1])


def _objects(value: Manifest) -> list[Manifest]:
    """Return a custom resource's own objects, the outermost first."""
    inner = [it for part in value.values() for it in (part if isinstance(part, list) else [part])]
    return [value, *(it for it in inner if isinstance(it, dict))]
