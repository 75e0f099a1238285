"""The OpenAPI document: FastAPI's own, with the request bodies that the routes read themselves."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from planner_client.contract import PROBLEM_MEDIA_TYPE, PlanRequest, Problem, Profile, ProfileMeasurement

_REF = "#/components/schemas/{model}"

PLAN_BODY: dict[str, Any] = {"$ref": _REF.format(model="PlanRequest")}
PROFILE_BODY: dict[str, Any] = {
    "anyOf": [{"$ref": _REF.format(model=model)} for model in ("Profile", "ProfileMeasurement")]
}


def request_body(schema: dict[str, Any]) -> dict[str, Any]:
    """Declare a JSON request body that the route parses itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Declare problem documents for these statuses."""
    schema = {"$ref": _REF.format(model="Problem")}
    meanings = {
        404: "Not known here.",
        409: "Another profile has this name.",
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
            sent = [(model, "validation") for model in (PlanRequest, Profile, ProfileMeasurement, Problem)]
            _, definitions = models_json_schema(sent, ref_template=_REF)  # type: ignore[arg-type]
            schemas.update(definitions["$defs"])
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            app.openapi_schema = schema
        return app.openapi_schema

    return document
