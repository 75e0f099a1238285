"""The viewer of the interface's description at ``/docs``: Swagger UI from an installed package alone."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from planner_service.api.headers import NOTHING

ASSETS_PACKAGE = "fastapi_offline"
"""Only its files are used; its code is not imported."""

# Swagger UI sets styles on elements and draws with images written as data; scripts are files of this service alone.
VIEWER_POLICY = (
    f"{NOTHING}; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'"
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hydraulis Planner</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="viewer"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

_START = """"use strict";
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#viewer",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
});
"""

_FILES = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}


def viewer_routes() -> APIRouter:
    """Return the routes of the viewer.

    Raises
    ------
    FileNotFoundError
        If the package that has the viewer's files is not installed.
    """
    directory = _directory()
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        """Return the viewer's page."""
        return Response(_PAGE, media_type="text/html", headers={"Content-Security-Policy": VIEWER_POLICY})

    @router.get("/docs/{asset}")
    def docs_asset(asset: str) -> Response:
        """Return a file that the page loads; they are few, and named here."""
        if asset == "start.js":
            return Response(_START, media_type="text/javascript")
        if asset not in _FILES:
            raise HTTPException(404)
        return Response(_content(directory / asset), media_type=_FILES[asset])

    return router


def _directory() -> Path:
    spec = find_spec(ASSETS_PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or [])
    for place in places:
        directory = Path(place) / "static"
        if all((directory / name).is_file() for name in _FILES):
            return directory
    raise FileNotFoundError(
        f"package {ASSETS_PACKAGE} lacks {', '.join(_FILES)}; install 'hydraulis-planner[service]' again"
    )


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()
