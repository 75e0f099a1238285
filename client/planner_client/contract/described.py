"""Docstrings as the descriptions of the published schema, so that what a field is, is said once."""

import inspect
import re
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

_ATTRIBUTES = re.compile(r"^Attributes\n-{3,}\n", re.MULTILINE)


def prose_and_attributes(docstring: str) -> tuple[str, dict[str, str]]:
    """Read a class's numpydoc docstring.

    Parameters
    ----------
    docstring
        With or without an ``Attributes`` section, which is its last one. There names stand at the margin, several with
        commas between, and what they are stands indented below.

    Returns
    -------
    tuple[str, dict[str, str]]
        What comes before the section, and the text of each attribute in one line.
    """
    prose, *section = _ATTRIBUTES.split(inspect.cleandoc(docstring), maxsplit=1)
    described: dict[str, str] = {}
    names: list[str] = []
    for line in section[0].splitlines() if section else ():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(",")]
            continue
        for name in names:
            described[name] = f"{described.get(name, '')} {line.strip()}".strip()
    return prose.strip(), described


class Described(BaseModel):
    """Base of every wire type: its docstring, with the ``Attributes`` section, describes it in the published schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Put the docstring's sentences where a schema has descriptions."""
        schema = handler(core_schema)
        own: dict[str, Any] = handler.resolve_ref_schema(schema)
        prose, _ = prose_and_attributes(cls.__doc__ or "")
        described = cls.attributes_described()
        if prose:
            own["description"] = prose
        for name, field in own.get("properties", {}).items():
            if name in described:
                field["description"] = described[name]
        return schema

    @classmethod
    def attributes_described(cls) -> dict[str, str]:
        """Attributes' texts, those of the types it is built on included, so that these are said once."""
        described: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            described.update(prose_and_attributes(base.__doc__ or "")[1])
        return described
