"""What every route asks of its caller: the one table that the guard works from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.convertors import Convertor
from starlette.routing import BaseRoute, compile_path

from planner_client.contract import Scope
from planner_service.access import Need, Reach


@dataclass(frozen=True)
class Rule:
    """What one route asks for.

    Attributes
    ----------
    scope
        The least scope that will do; None if the route is open to everybody.
    reach
        Whether it touches one job (the path's ``job``), what any token may have, or what belongs to all jobs.
    action
        What the audit record calls it; None for what is no administrator's.
    is_recorded_done
        Whether it is recorded when done, too; what only looks is recorded when refused.
    subject
        The path parameter that names what it was done to; None if the route tells by itself.
    """

    scope: Scope | None
    reach: Reach = "all"
    action: str | None = None
    is_recorded_done: bool = True
    subject: str | None = None

    def need(self, parameters: Mapping[str, Any]) -> Need | None:
        """Return what a request asks for, given its path's parameters; None if nothing."""
        if self.scope is None:
            return None
        return Need(self.scope, self.reach, str(parameters["job"]) if self.reach == "job" else None)


OPEN = Rule(None)
_ITERATION = "/v1/jobs/{job}/iterations/{iteration}"

RULES: dict[tuple[str, str], Rule] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("GET", "/docs"): OPEN,
    ("GET", "/docs/{asset}"): OPEN,
    ("GET", "/"): OPEN,
    ("GET", "/dashboard/{asset}"): OPEN,
    ("GET", "/metrics"): Rule("read"),
    ("GET", "/v1/jobs"): Rule("read", "any"),  # shows a caller its jobs only
    ("POST", "/v1/jobs"): Rule("plan", "any"),  # the name is in the body: the route calls `require_job`
    ("GET", "/v1/jobs/{job}"): Rule("read", "job"),
    ("DELETE", "/v1/jobs/{job}"): Rule("admin", "job", "delete-job", subject="job"),
    ("GET", "/v1/jobs/{job}/series"): Rule("read", "job"),
    ("GET", "/v1/jobs/{job}/learning"): Rule("read", "job"),
    ("GET", "/v1/jobs/{job}/learning/versions"): Rule("read", "job"),
    ("GET", "/v1/jobs/{job}/learning/versions/{version}"): Rule("read", "job"),
    ("POST", "/v1/jobs/{job}/learning/reset"): Rule("plan", "job"),
    ("GET", "/v1/jobs/{job}/iterations"): Rule("read", "job"),
    ("GET", _ITERATION): Rule("read", "job"),
    ("GET", _ITERATION + "/plan"): Rule("read", "job"),
    ("GET", _ITERATION + "/overview"): Rule("read", "job"),
    ("GET", _ITERATION + "/replicas"): Rule("read", "job"),
    ("GET", _ITERATION + "/candidates"): Rule("read", "job"),
    ("PUT", _ITERATION + "/histograms"): Rule("plan", "job"),
    ("PUT", _ITERATION + "/histograms/{source:path}"): Rule("plan", "job"),
    ("GET", _ITERATION + "/timings"): Rule("read", "job"),
    ("POST", _ITERATION + "/timings"): Rule("plan", "job"),
    ("GET", "/v1/nodes"): Rule("read", "any"),  # shows a caller the nodes of its jobs only
    ("PUT", "/v1/nodes/{node}"): Rule("plan", "any"),  # the job is in the body: the route looks at it
    ("POST", "/v1/plans"): Rule("plan", "any"),
    ("GET", "/v1/plans"): Rule("read"),
    ("GET", "/v1/plans/{digest}"): Rule("read"),
    ("DELETE", "/v1/plans/{digest}"): Rule("admin", "all", "delete-plan", subject="digest"),
    ("GET", "/v1/profiles"): Rule("read", "any"),
    ("GET", "/v1/profiles/{name}"): Rule("read", "any"),
    ("POST", "/v1/profiles"): Rule("plan"),
    ("DELETE", "/v1/profiles/{name}"): Rule("admin", "all", "delete-profile", subject="name"),
    ("GET", "/v1/tokens"): Rule("admin", "all", "list-tokens", is_recorded_done=False),
    ("POST", "/v1/tokens"): Rule("admin", "all", "create-token"),
    ("DELETE", "/v1/tokens/{name}"): Rule("admin", "all", "revoke-token", subject="name"),
    ("GET", "/v1/audit"): Rule("admin", "all", "read-audit", is_recorded_done=False),
}
"""Every route of the service, by method and path."""


class UnlistedRoute(Exception):  # noqa: N818 - names what the app's author ran into
    """A route that the table of needs does not have: nobody decided who may call it."""


def refuse_unlisted(routes: Iterable[BaseRoute]) -> None:
    """Check that the table has every route.

    Raises
    ------
    UnlistedRoute
        If it lacks one, or if what a route serves cannot be told.
    """
    for route in iter_route_contexts(list(routes)):
        if route.path is None or not route.methods:
            raise UnlistedRoute(f"{route.original_route!r} is no plain route; give it as routes that RULES can list")
        for method in sorted(route.methods):
            if _rule(method, route.path) is None:
                raise UnlistedRoute(f"RULES lacks {method} {route.path}; add what it asks of its caller")


@dataclass(frozen=True)
class Matched:
    """The row of the table that a request falls under, with the path's parameters as text."""

    path: str
    rule: Rule
    parameters: Mapping[str, str]


class NeedsTable:
    """Finds the row for a request, by the same patterns that the router matches paths with."""

    def __init__(self) -> None:
        paths = dict.fromkeys(path for _, path in RULES)
        self._patterns = [(path, *_compiled(path)) for path in paths]

    def match(self, method: str, path: str) -> Matched | None:
        """Return the row for a request; None if no route takes it."""
        for template, pattern, convertors in self._patterns:
            found = pattern.match(path)
            if found is None:
                continue
            rule = _rule(method, template)
            if rule is not None:
                parameters = {name: str(convertors[name].convert(text)) for name, text in found.groupdict().items()}
                return Matched(template, rule, parameters)
        return None


def _compiled(path: str) -> tuple[Any, dict[str, Convertor[Any]]]:
    pattern, _, convertors = compile_path(path)
    return pattern, convertors


def _rule(method: str, path: str) -> Rule | None:
    return RULES.get(("GET" if method == "HEAD" else method, path))


def methods_at(path: str) -> list[str]:
    """Return the methods that are offered at a path, ascending; none where there is nothing."""
    return sorted({method for method, template in RULES if compile_path(template)[0].match(path)})


def describe_needs(schema: dict[str, Any], *, refusals: Mapping[int | str, Any]) -> None:
    """Write into an OpenAPI document which scope each operation needs, and how it refuses.

    Parameters
    ----------
    schema
        The document; changed in place.
    refusals
        The answers 401 and 403.
    """
    schema.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "As `hydraulis tokens create` prints it."}
    }
    by_format = {(method, path.replace(":path}", "}")): rule for (method, path), rule in RULES.items()}
    for path, operations in schema.get("paths", {}).items():
        for method, operation in operations.items():
            rule = by_format[method.upper(), path]
            if rule.scope is None:
                continue
            operation["security"] = [{"token": []}]
            operation["responses"] |= {str(status): answer for status, answer in refusals.items()}
            needs = f"Needs a token with scope `{rule.scope}`, where the service asks for tokens."
            operation["description"] = f"{operation.get('description', '')}\n\n{needs}".strip()
