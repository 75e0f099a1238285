"""The contract as it is promised: the OpenAPI document and one payload of each wire type, committed."""

import difflib
import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError
from regenerate import GOLDEN, SNAPSHOT, openapi_text

from planner_client import contract
from planner_client.contract import (
    Histogram,
    IterationTimings,
    Plan,
    PlanRequest,
    Problem,
    Profile,
    ProfileMeasurement,
)
from planner_client.contract.described import Described, prose_and_attributes
from planner_client.contract.scalars import Returned, Sent

MODELS: dict[str, type[BaseModel]] = {
    "histogram": Histogram,
    "measurement": ProfileMeasurement,
    "plan": Plan,
    "problem": Problem,
    "profile": Profile,
    "request": PlanRequest,
    "timings": IterationTimings,
}
SENT = sorted(name for name, model in MODELS.items() if issubclass(model, Sent))


def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def test_the_openapi_document_is_the_committed_one() -> None:
    committed, now = SNAPSHOT.read_text(), openapi_text()
    difference = "\n".join(
        difflib.unified_diff(committed.splitlines(), now.splitlines(), "committed", "now", n=2, lineterm="")
    )
    assert committed == now, (
        f"the API has changed:\n{difference[:4000]}\nif that is meant, run: python tests/contract/regenerate.py"
    )


def test_whatever_the_document_refers_to_is_in_it() -> None:
    text = SNAPSHOT.read_text()
    document = json.loads(text)
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert "PlanRequest" in named
    assert named <= document["components"]["schemas"].keys()


def test_every_field_of_every_wire_type_is_described_in_the_document() -> None:
    schemas = json.loads(SNAPSHOT.read_text())["components"]["schemas"]
    models = [model for model in vars(contract).values() if isinstance(model, type) and issubclass(model, BaseModel)]
    published = [model.__name__ for model in models if model.__name__ in schemas]
    assert set(published) >= {"PlanRequest", "PlanOptions", "AtomicGroup", "Plan", "Replica", "Profile", "Problem"}
    bare = [
        f"{name}.{field}"
        for name in published
        for field, schema in schemas[name].get("properties", {}).items()
        if not schema.get("description")
    ]
    assert bare == []
    options = schemas["PlanOptions"]
    assert options["description"] == "What constrains a plan and the search for it."
    assert options["properties"]["max_length"]["description"] == (
        "Longest sequence to train on (tokens); longer ones are over-long."
    )


def test_every_attribute_that_a_docstring_describes_is_a_field() -> None:
    for model in vars(contract).values():
        if isinstance(model, type) and issubclass(model, BaseModel):
            prose, own = prose_and_attributes(model.__doc__ or "")
            assert prose, model
            assert set(own) <= set(model.model_fields), model
            assert issubclass(model, Described)
            assert set(model.attributes_described()) == set(model.model_fields), model


def test_there_is_a_payload_of_each_wire_type() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_payload_survives_being_read_and_written(name: str) -> None:
    content = golden(name)
    value = MODELS[name].model_validate_json(json.dumps(content))
    assert value.model_dump(mode="json") == content
    assert json.loads(value.model_dump_json()) == content


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"histogram", "timings"}))
def test_a_payload_fits_the_published_schema(name: str) -> None:
    document = json.loads(SNAPSHOT.read_text())
    schema = {"$ref": f"#/components/schemas/{MODELS[name].__name__}", "components": document["components"]}
    Draft202012Validator(schema).validate(golden(name))


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of all objects inside a JSON value."""
    if isinstance(value, dict):
        return [path, *(found for key, item in value.items() for found in places(item, (*path, key)))]
    if isinstance(value, list):
        return [found for at, item in enumerate(value) for found in places(item, (*path, at))]
    return []


def with_unknown_field(content: dict[str, Any], path: tuple[str | int, ...]) -> str:
    changed = json.loads(json.dumps(content))
    at = changed
    for step in path:
        at = at[step]
    at["of_tomorrow"] = 1
    return json.dumps(changed)


def free_keyed(path: tuple[str | int, ...]) -> bool:
    """Objects whose keys are the caller's own names, where an unknown key is no unknown field."""
    return bool(path) and path[-1] in {"lengths", "histograms"}


@pytest.mark.parametrize("name", SENT)
def test_an_unknown_field_that_is_sent_is_refused_wherever_it_stands(name: str) -> None:
    content = golden(name)
    for path in places(content):
        if free_keyed(path):
            continue
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            MODELS[name].model_validate_json(with_unknown_field(content, path))


def test_an_unknown_field_of_a_plan_is_ignored_wherever_it_stands() -> None:
    content = golden("plan")
    assert issubclass(Plan, Returned)
    for path in places(content):
        assert Plan.model_validate_json(with_unknown_field(content, path)).model_dump(mode="json") == content


def test_an_unknown_member_of_a_problem_is_kept() -> None:
    content = golden("problem")
    assert Problem.model_validate_json(with_unknown_field(content, ())).numbers["of_tomorrow"] == 1


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [found for at, item in enumerate(value) for found in leaves(item, (*path, at))]
    return [path]


ACTED_ON = {"iteration", "alignment", "num_sequences", "num_tokens"}


def is_acted_on(path: tuple[str | int, ...]) -> bool:
    """Whether ranks act on the value: strategy, placement, assignment and counts, not predictions."""
    if path[0] == "replicas":
        return not str(path[-1]).endswith("_ms")
    return path[0] == "dropped" or path[0] in ACTED_ON


@pytest.mark.parametrize("path", [path for path in leaves(golden("plan")) if is_acted_on(path)], ids=str)
def test_a_plan_changed_in_anything_ranks_act_on_fails_its_digest(path: tuple[str | int, ...]) -> None:
    changed = golden("plan")
    at: Any = changed
    for step in path[:-1]:
        at = at[step]
    old = at[path[-1]]
    at[path[-1]] = old + "x" if isinstance(old, str) else old + 1
    with pytest.raises(ValidationError, match="the plan was changed on its way"):
        Plan.model_validate_json(json.dumps(changed))


def test_a_plan_whose_micro_batches_change_places_fails_its_digest() -> None:
    changed = golden("plan")
    changed["replicas"].reverse()
    with pytest.raises(ValidationError, match="the plan was changed on its way"):
        Plan.model_validate_json(json.dumps(changed))
