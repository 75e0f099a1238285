"""The dashboard's page at ``/`` and the files that it loads, from this package alone."""

from importlib.resources import files

from fastapi import APIRouter, Response
from starlette.exceptions import HTTPException

from planner_service.api.headers import NOTHING

# Styles and scripts are files of this service; nothing stands in the page, and nothing comes from elsewhere.
DASHBOARD_POLICY = (
    f"{NOTHING}; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

_PAGE = "index.html"
_MEDIA_TYPES = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def dashboard_routes() -> APIRouter:
    """Return the routes of the dashboard; it may be had without a token, what it shows may not."""
    router = APIRouter(include_in_schema=False)
    contents = {
        entry.name: entry.read_bytes() for entry in files("planner_service.dashboard").joinpath("assets").iterdir()
    }
    page = contents.pop(_PAGE)

    @router.get("/")
    async def dashboard() -> Response:
        """Return the dashboard's page."""
        return Response(page, media_type="text/html", headers={"Content-Security-Policy": DASHBOARD_POLICY})

    @router.get("/dashboard/{asset}")
    async def dashboard_asset(asset: str) -> Response:
        """Return a file that the page loads."""
        if asset not in contents:
            raise HTTPException(404)
        return Response(contents[asset], media_type=_MEDIA_TYPES[asset.rpartition(".")[2]])

    return router
