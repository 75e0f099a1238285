"""The reference of the REST interface, as Markdown, from its OpenAPI document: pure."""

from collections.abc import Iterator, Mapping
from typing import Any

_REFERENCE = "#/components/schemas/"


def rest_reference(openapi: Mapping[str, Any]) -> str:
    """Describe every operation, then every type that they speak of.

    Parameters
    ----------
    openapi
        The document, parsed.

    Returns
    -------
    str
        A page of Markdown.
    """
    lines = [
        "# REST reference",
        "",
        f"Version {openapi['info']['version']}. Requests refuse fields that they do not know; answers may grow. Errors "
        "are problem documents (RFC 9457) with a stable `code`. A service shows the same at `/docs`, to be tried.",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, operations in openapi["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            by_tag.setdefault(tag, []).extend(_operation(method, path, operation))
    for tag, described in by_tag.items():
        lines += ["", f"## {tag.capitalize()}", *described]
    lines += ["", "## Types"]
    for name, schema in sorted(openapi["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", *_schema(schema)]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from ("", f"### {operation['summary']}", "", f"`{method.upper()} {path}`", "")
    if text := operation.get("description"):
        yield from (text, "")
    if parameters := operation.get("parameters"):
        yield from ("| parameter | in | type | meaning |", "| --- | --- | --- | --- |")
        for parameter in parameters:
            needed = "" if parameter.get("required") else ", optional"
            meaning = _one_line(parameter.get("description", ""))
            yield f"| `{parameter['name']}` | {parameter['in']}{needed} | {_type(parameter['schema'])} | {meaning} |"
        yield ""
    if body := operation.get("requestBody"):
        yield from (f"Body: {_contents(body)}", "")
    yield from ("| status | answer |", "| --- | --- |")
    for status, answer in operation["responses"].items():
        yield f"| {status} | {_one_line(answer.get('description', ''))}: {_contents(answer) or 'no body'} |"


def _contents(body: Mapping[str, Any]) -> str:
    return " or ".join(_type(content.get("schema", {})) for content in body.get("content", {}).values())


def _schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield from (_one_line(text), "")
    if values := schema.get("enum"):
        yield "One of " + ", ".join(f"`{value}`" for value in values) + "."
        return
    fields = schema.get("properties")
    if not fields:
        yield _type(schema)
        return
    required = set(schema.get("required", ()))
    yield from ("| field | type | meaning |", "| --- | --- | --- |")
    for name, field in fields.items():
        default = "" if name in required else f", default `{field['default']}`" if "default" in field else ", optional"
        yield f"| `{name}` | {_type(field)}{default} | {_one_line(field.get('description', ''))} |"


def _type(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.removeprefix(_REFERENCE)
        return f"[{name}](#{name.lower()})"
    if options := [option for union in ("anyOf", "oneOf", "allOf") for option in schema.get(union, ())]:
        return " or ".join(dict.fromkeys(map(_type, options)))
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " or ".join(f"`{value}`" for value in values)
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    said = {"minimum": "at least", "exclusiveMinimum": "over", "maximum": "at most", "exclusiveMaximum": "under"}
    found = [f"{word} {schema[name]}" for name, word in said.items() if name in schema]
    return f" ({', '.join(found)})" if found else ""


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
