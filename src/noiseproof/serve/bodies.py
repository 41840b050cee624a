"""Bodies: read within limits of size and time, before anything is parsed."""

from __future__ import annotations

import asyncio

from fastapi import Request

from noiseproof.serve.problems import Problem


async def read_body(request: Request, *, limit: int, seconds: float) -> bytes:
    """A JSON request's bytes; refused as soon as they are known to be too many, too slow or of another type."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("unsupported-media-type", "Send the inputs as application/json.")
    too_large = Problem("too-large", f"A request may have {limit} bytes; send fewer inputs at once.")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal():
        raise Problem("bad-request", "The Content-Length is not a number.")
    if int(declared) > limit:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        detail = f"The body did not arrive within {seconds:g} seconds; nothing was answered and nothing spent."
        raise Problem("too-slow", detail) from None
    return b"".join(parts)
