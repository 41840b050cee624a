"""`/`: a page for people, served from the package; it asks nothing of any other host."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

router = APIRouter(include_in_schema=False)

_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}


def _page(name: str) -> Response:
    content = (files("noiseproof.serve") / "console" / name).read_bytes()
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]])


@router.get("/")
async def index() -> Response:
    """The page."""
    return _page("index.html")


@router.get("/console.js")
async def script() -> Response:
    """What it does."""
    return _page("console.js")


@router.get("/console.css")
async def style() -> Response:
    """How it looks."""
    return _page("console.css")
