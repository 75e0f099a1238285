"""Pages of the site that are made from other files: README, changelog and the reference of the REST interface."""

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from rest_reference import rest_reference

ROOT = Path(__file__).parent.parent.parent
OPENAPI = ROOT / "tests" / "contract" / "openapi.json"

BESIDE_DOCS = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
"""Files beside docs/ that are pages, too, and what they are called there."""

_OUTWARD = re.compile(r"\]\((?:\.\./)*(README|CHANGELOG)\.md(?!#)")
_INTO_DOCS = re.compile(r"\]\(docs/")
_ELSEWHERE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?!README|CHANGELOG)[^)]*\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - whoever reads this file need not have it

    pages = {page: _INTO_DOCS.sub("](", (ROOT / name).read_text("utf-8")) for name, page in BESIDE_DOCS.items()}
    pages["reference/rest.md"] = rest_reference(json.loads(OPENAPI.read_text("utf-8")))
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - the names of the hook
    """Lead links that leave docs/ to the pages made here; those to code become plain text."""
    up = "../" * page.file.src_uri.count("/")
    markdown = _OUTWARD.sub(lambda link: f"]({up}{link[1].lower()}.md", markdown)
    return _leading_out(markdown, up)


def _leading_out(markdown: str, up: str) -> str:
    depth = up.count("../")

    def replace(link: re.Match[str]) -> str:
        climbs = link[0].split("](")[1].count("../")
        return link[1] if climbs > depth else link[0]

    return _ELSEWHERE.sub(replace, markdown)
