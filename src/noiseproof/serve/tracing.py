"""Spans of requests for OpenTelemetry, where its SDK is installed and `OTEL_TRACES_EXPORTER` is set; else nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Any


@cache
def _tracer() -> Any:
    if os.environ.get("OTEL_TRACES_EXPORTER", "none") == "none":
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    if not hasattr(trace.get_tracer_provider(), "add_span_processor"):
        # `opentelemetry-instrument` sets up the process that it starts, and not the workers that this one starts.
        for configurator in entry_points(group="opentelemetry_configurator"):
            configurator.load()().configure()
    return trace.get_tracer("noiseproof.serve")


@contextmanager
def span(parent: bytes | None) -> Iterator[Any]:
    """A span around a request, under the one that its header `traceparent` names; None where nothing is traced."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {"traceparent": parent.decode("latin-1")} if parent else {}
    context = TraceContextTextMapPropagator().extract(carrier)
    with tracer.start_as_current_span("request", context=context, kind=SpanKind.SERVER) as started:
        yield started


def describe(span: Any, line: Mapping[str, Any]) -> None:
    """Say on a span what the log says of the request: neither inputs nor answers nor keys."""
    if span is None:
        return
    span.update_name(f"{line['method']} {line['route']}")
    names = {"method": "http.request.method", "route": "http.route", "status": "http.response.status_code"}
    for name, value in line.items():
        if value is not None:
            span.set_attribute(names.get(name, f"noiseproof.{name}"), value)
