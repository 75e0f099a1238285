"""The OpenAPI document: FastAPI's own, with the request bodies that the routes read themselves."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from planner_client.contract import (
    PROBLEM_MEDIA_TYPE,
    IterationTimings,
    JobSpec,
    NodeReport,
    PlanRequest,
    Problem,
    Profile,
    ProfileMeasurement,
    SourceBatch,
    SourceBatches,
    TokenRequest,
)
from planner_service.api.needs import describe_needs

_REF = "#/components/schemas/{model}"

_SENT: tuple[type[BaseModel], ...] = (
    PlanRequest,
    Profile,
    ProfileMeasurement,
    JobSpec,
    SourceBatch,
    SourceBatches,
    IterationTimings,
    NodeReport,
    TokenRequest,
    Problem,
)
"""What request bodies may be, and the one type that no route returns by itself."""


def body_of(model: str) -> dict[str, Any]:
    """Return the schema of a request body by the name of its type."""
    return {"$ref": _REF.format(model=model)}


PROFILE_BODY: dict[str, Any] = {"anyOf": [body_of(model) for model in ("Profile", "ProfileMeasurement")]}


def request_body(schema: dict[str, Any]) -> dict[str, Any]:
    """Declare a JSON request body that the route parses itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare problem documents for these statuses."""
    schema = {"$ref": _REF.format(model="Problem")}
    meanings = {
        401: "A token is needed; send it as `Authorization: Bearer ...`.",
        403: "The token does not allow this.",
        404: "Not known here.",
        409: "It contradicts what is kept here.",
        413: "The body is over the limit.",
        422: "The request must be changed; `code` and `remedy` say how.",
        429: "Too many requests wait; `Retry-After` says when to try again.",
        500: "An unexpected error, logged under `request_id`.",
        503: "The service is starting, stopping, or cannot reach its store.",
        504: "No plan was found by the deadline.",
    }
    return {
        status: {"description": meanings[status], "content": {PROBLEM_MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def openapi_of(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """Return the function that FastAPI calls for the app's document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            sent: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in _SENT]
            _, definitions = models_json_schema(sent, ref_template=_REF)
            schemas.update(definitions["$defs"])
            _drop_unused_refusals(schema)
            describe_needs(schema, refusals=problems(401, 403))
            app.openapi_schema = schema
        return app.openapi_schema

    return document


def _drop_unused_refusals(schema: dict[str, Any]) -> None:
    """Drop FastAPI's own answer to bad parameters: a route with parameters that can be bad declares a problem."""
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    own = {"application/json": {"schema": {"$ref": _REF.format(model="HTTPValidationError")}}}
    for operations in schema["paths"].values():
        for operation in operations.values():
            if operation["responses"].get("422", {}).get("content") == own:
                del operation["responses"]["422"]
