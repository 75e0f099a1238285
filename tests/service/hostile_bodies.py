"""Bodies that no client should send: valid ones with one thing wrong, and whole ones that are nothing but trouble."""

import copy
import gzip
import itertools
import json
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema

Json = Any
Steps = tuple[str | int, ...]

MARK = "hostile"
"""Long texts repeat it, so that logs and answers can be searched for them."""

NUMBERS = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "1.0", "-1", "0", "2147483648"),
    *("9007199254740993", "18446744073709551616", "1E+999999999", "01", "+1", ".5", "1.", "0x10", "--1", "1e", "1_0"),
    *("9" * 4300, "9" * 5000, "1" + "0" * 100_000, "0." + "3" * 100_000, "1" * 200 + ".5e-300", "5e-324", "1e308"),
)
STRINGS = (
    *('""', '"\\u0000"', '"\\ud800"', '"\\udc00\\ud800"', '"\\x"', '"\t"', '"\\u202e\\u2028"', '"-"', '"null"', '"1"'),
    *('"../../../etc/passwd"', '"\'; DROP TABLE jobs; --"', '"${jndi:ldap://x}"', '"%s%n{0}"', "'a'", '"a', '"\\'),
    *(
        '"a\\n{\\"event\\": \\"forged\\"}"',
        '"' + MARK * 20_000 + '"',
        '"' + "\\u00e9" * 20_000 + '"',
        '"' + "a" * 129 + '"',
    ),
)
OTHERS = (
    *("true", "false", "null", "[]", "{}", "[[]]", "[{}]", '{"":0}', "nul", "True", "undefined", "", "//", "/**/1"),
    *("[" * 50 + "]" * 50, "[" * 190 + "]" * 190, "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 300),
    *("[" + "null," * 2000 + "null]", "[" + "0," * 5000 + "0]", "[" + "[]," * 2000 + "{}]", "[1,]", "{,}", '{"a":1,}'),
    *('{"' + MARK * 20_000 + '": 1}', "{" + ",".join(f'"k{n}": {n}' for n in range(1500)) + "}"),
)
NUDGED_NUMBERS = (0, 1, 2, 7, 128, 1000, 131_072, 2**31 - 1, 2**53, 1e-9, 1e-20, 0.5, 1e6, 1e15, 1e300, -1e-300)
NUDGED_TEXTS = (
    *("a", "node-0", "b:0", "llama-7b-a800-80g", "A800 80GB", "drop", "forbid", "padded", "refuse", "published"),
    *("next-fit", "karmarkar-karp-work", "off", "plan", "fallback", "1e3", "16", "a" * 128, "é\u2028" * 300),
)
MAX_REPEATED_BYTES = 200_000
ENCODINGS = ("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "utf-7")


@dataclass(frozen=True)
class HostileBody:
    """One body, what is wrong with it, and the headers that come with it."""

    what: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BodyRoute:
    """An operation that takes a body, as the OpenAPI document describes it."""

    method: str
    path: str
    schema: Json
    statuses: frozenset[int]

    def address(self, parameters: dict[str, str]) -> str:
        """Fill in the path's parameters; those that are not given become ``x``."""
        filled = self.path
        for part in self.path.split("{")[1:]:
            name = part.partition("}")[0]
            filled = filled.replace("{" + name + "}", parameters.get(name, "x"))
        return filled


def routes_with_bodies(document: Json) -> list[BodyRoute]:
    """Return every operation of an OpenAPI document that takes a body."""
    return [
        BodyRoute(
            method.upper(),
            path,
            {**operation["requestBody"]["content"]["application/json"]["schema"], "components": document["components"]},
            frozenset(int(status) for status in operation["responses"]),
        )
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation
    ]


def valid_bodies(route: BodyRoute, candidates: list[Json]) -> list[Json]:
    """Return those candidates that suit a route, and examples of what its schema describes."""
    validator = jsonschema.Draft202012Validator(route.schema)
    fitting = [candidate for candidate in candidates if validator.is_valid(candidate)]
    return fitting + [_example(route.schema, route.schema["components"]["schemas"], turn) for turn in range(3)]


def mutated(valid: Json, draw: random.Random) -> HostileBody:
    """Return a valid body with one to three things wrong."""
    if draw.random() < 0.2:
        return _broken_text(json.dumps(valid).encode(), draw)
    if draw.random() < 0.03:
        return _encoded(json.dumps(valid), draw)
    body, holes = copy.deepcopy(valid), _Holes()
    what = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        body, said = _changed(body, holes, draw)
        what.append(said)
    headers = {"Content-Type": draw.choice(("text/plain", "application/xml", "\xff", "a" * 5000))}
    return HostileBody(", ".join(what), holes.fill(json.dumps(body)), headers if draw.random() < 0.05 else {})


def giant_bodies(limit_bytes: int) -> Iterator[HostileBody]:
    """Return bodies that fill the limit, or that are as intricate as a parser puts up with."""
    most = limit_bytes - 200
    names = itertools.cycle(("lengths", "histograms", "sources", "atomic_groups"))
    fields = itertools.cycle(("lengths", "sources", "layouts", "replicas", "strategies", "jobs", MARK))
    for unit in ("[]", "{}", "0", "1.5", '"-"', "null", '{"a":1}', '["a"]', "[[[[[[]]]]]]", '{"lengths":[]}', "-1e-9"):
        for num in (60_000, 190_000, 1_900_000, most // (len(unit) + 1)):
            listed = ",".join([unit] * num)
            name = next(fields)
            yield HostileBody(f"{name} of {num} times {unit}", f'{{"{name}": [{listed}]}}'.encode()[:most])
        yield HostileBody(f"190000 times {unit}", f"[{','.join([unit] * 190_000)}]".encode())
    for num in (70_000, 199_000, 2_000_000):
        for value in ("1", "[]", "[0]", "{}"):
            entries = "{" + ",".join(f'"{n:x}":{value}' for n in range(num)) + "}"
            yield HostileBody(f"{num} fields of {value}", entries.encode())
            name = next(names)
            yield HostileBody(f"{name} of {num} fields of {value}", f'{{"{name}": {entries}}}'.encode()[:most])
    yield HostileBody("the same field again and again", b"{" + b'"name":"a",' * 390_000 + b'"name":"a"}')
    yield HostileBody("a text that fills the limit", b'{"name": "' + MARK.encode() * (most // len(MARK)) + b'"}')
    yield HostileBody("a field's name that fills the limit", b'{"' + MARK.encode() * (most // len(MARK)) + b'": 1}')
    yield HostileBody("escapes", b'{"name": "' + b"\\u00e9" * (most // 6) + b'"}')
    yield HostileBody("digits", b'{"num_gpus": ' + b"9" * most + b"}")
    yield HostileBody("spaces", b" " * most)
    yield HostileBody("zero bytes", b"\0" * most)
    yield HostileBody("bytes that are no UTF-8", b'{"name": "' + b"\xff" * most + b'"}')
    yield HostileBody("brackets", b"[" * most)
    yield HostileBody("objects in objects", b'{"a":' * (most // 5))
    yield HostileBody("commas in a text", b'{"name": "' + b"," * most + b'"}')
    yield HostileBody("a gzip bomb", gzip.compress(b"[" * most), {"Content-Encoding": "gzip"})
    yield HostileBody("one byte over the limit", b" " * (limit_bytes + 1))


class _Holes:
    """Places in a JSON value that text of any kind is put into once it is written."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []

    def add(self, text: str | bytes) -> str:
        self._texts.append(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        return f"@hole {len(self._texts) - 1}@"

    def fill(self, written: str) -> bytes:
        content = written.encode()
        for number in reversed(range(len(self._texts))):
            content = content.replace(f'"@hole {number}@"'.encode(), self._texts[number])
        return content


def _places(value: Json, path: Steps = ()) -> Iterator[Steps]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in children:
        yield from _places(child, (*path, step))


def _at(value: Json, path: Steps) -> Json:
    for step in path:
        value = value[step]
    return value


def _put(value: Json, path: Steps, new: Json) -> Json:
    if not path:
        return new
    _at(value, path[:-1])[path[-1]] = new
    return value


def _changed(  # noqa: PLR0911 - a list of cases
    body: Json, holes: _Holes, draw: random.Random
) -> tuple[Json, str]:
    path = draw.choice(list(_places(body)))
    old = _at(body, path)
    where = ".".join(map(str, path)) or "the body"
    change = draw.choice(
        (
            "nudge",
            "nudge",
            "nudge",
            "nudge",
            "nudge",
            "delete",
            "number",
            "string",
            "other",
            "delete",
            "unknown",
            "double",
            "wrap",
            "repeat",
            "swap",
            "bytes",
        )
    )
    match change:
        case "nudge" if not isinstance(old, dict | list):
            return _put(body, path, _nudged(old, path, draw)), f"{where} changed a little"
        case "delete" if path:
            parent = _at(body, path[:-1])
            del parent[path[-1]]
            return body, f"{where} left out"
        case "unknown" if isinstance(old, dict):
            old[draw.choice((MARK * 1000, "", "__proto__", "name ", "\u0000", "É"))] = holes.add(draw.choice(OTHERS))
            return body, f"unknown field in {where}"
        case "double" if isinstance(old, dict) and old:
            name = draw.choice(list(old))
            again = holes.add(draw.choice((*NUMBERS, *STRINGS, *OTHERS)))
            twice = json.dumps(old)[:-1] + f', {json.dumps(name)}: "{again}"}}'
            return _put(body, path, holes.add(twice)), f"{where}.{name} twice"
        case "wrap":
            return _put(body, path, draw.choice(([old], {"value": old}, [[old]], str(old)))), f"{where} wrapped"
        case "repeat":
            most = max(1, MAX_REPEATED_BYTES // max(1, len(holes.fill(json.dumps(old)))))
            return _put(body, path, [old] * min(most, draw.choice((2, 300, 3000)))), f"{where} repeated"
        case "swap":
            other = copy.deepcopy(_at(body, draw.choice(list(_places(body)))))
            return _put(body, path, other), f"{where} replaced by another part"
        case "bytes":
            raw = draw.choice((b"\xff", b'"\xc3\x28"', b'"\xed\xa0\x80"', b"\0", b'"\xf8\x88\x80\x80\x80"', b'"\x80"'))
            return _put(body, path, holes.add(raw)), f"{where} is {raw!r}"
    texts = {"number": NUMBERS, "string": STRINGS}.get(change, OTHERS)
    text = draw.choice(texts)
    return _put(body, path, holes.add(text)), f"{where} is {text[:40]}"


def _nudged(old: Json, path: Steps, draw: random.Random) -> Json:
    """Return another value that a field may well take."""
    if isinstance(old, bool):
        return not old
    if old is None:
        return draw.choice((*NUDGED_NUMBERS, *NUDGED_TEXTS))
    if isinstance(old, str):
        return draw.choice(NUDGED_TEXTS)
    if path[-1:] == ("deadline_ms",):
        return draw.randrange(1, 100)
    return draw.choice((*NUDGED_NUMBERS, old + 1, old * 2, old / 2, -old))


def _broken_text(text: bytes, draw: random.Random) -> HostileBody:
    at = draw.randrange(len(text))
    match draw.randrange(6):
        case 0:
            return HostileBody(f"cut after {at}", text[:at])
        case 1:
            return HostileBody(f"random byte at {at}", text[:at] + draw.randbytes(1) + text[at + 1 :])
        case 2:
            return HostileBody(
                f"random bytes put in at {at}", text[:at] + draw.randbytes(draw.randrange(1, 9)) + text[at:]
            )
        case 3:
            return HostileBody(f"a piece left out at {at}", text[:at] + text[at + draw.randrange(1, 30) :])
        case 4:
            return HostileBody("more behind it", text + draw.choice((text, b"x", b"\0", b",", b"]", b"\xff")))
        case _:
            return HostileBody("only random bytes", draw.randbytes(draw.randrange(2000)))


def _encoded(text: str, draw: random.Random) -> HostileBody:
    encoding = draw.choice((*ENCODINGS, "gzip", "deflate"))
    if encoding == "gzip":
        return HostileBody("packed", gzip.compress(text.encode()), {"Content-Encoding": "gzip"})
    if encoding == "deflate":
        return HostileBody("packed", zlib.compress(text.encode()), {"Content-Encoding": "deflate"})
    return HostileBody(
        f"in {encoding}", text.encode(encoding), {"Content-Type": f"application/json; charset={encoding}"}
    )


def _example(schema: Json, definitions: Json, turn: int) -> Json:  # noqa: PLR0911 - a list of cases
    """Return something that a schema describes, roughly: another branch of each union for each turn."""
    if "$ref" in schema:
        return _example(definitions[schema["$ref"].rpartition("/")[2]], definitions, turn)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _example(schema[choice][turn % len(schema[choice])], definitions, turn)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[-1])
    match schema.get("type"):
        case "object":
            named = {name: _example(it, definitions, turn) for name, it in schema.get("properties", {}).items()}
            of_any_name = schema.get("patternProperties", {})
            return named or {str(8 + n): _example(it, definitions, turn) for n, it in enumerate(of_any_name.values())}
        case "array":
            return [_example(schema.get("items", {}), definitions, turn)] * max(schema.get("minItems", 1), 1)
        case "integer" | "number":
            return max(schema.get("minimum", 0), 1)
        case "string":
            return "a" * max(schema.get("minLength", 1), 1)
        case "boolean":
            return turn % 2 == 0
    return None
