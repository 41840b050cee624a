"""Spans for OpenTelemetry: one a request, under the caller's trace, with nothing of what was asked or answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from noiseproof.serve import tracing


@pytest.fixture
def spans(monkeypatch):
    """What an exporter was given; skipped where OpenTelemetry's SDK is not installed."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("test"))
    return exporter.get_finished_spans


def test_a_request_is_a_span_under_its_callers_trace(service, rows, spans):
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = service.ask(rows(1), traceparent=f"00-{trace}-b7ad6b7169203331-01", **{"X-Request-Id": "mine"})
    found = [span for span in spans() if span.name == "POST /v1/models/{name}/predictions"]
    (span,) = found
    assert f"{span.context.trace_id:032x}" == trace
    told = dict(span.attributes)
    assert told["http.response.status_code"] == 200
    assert (told["noiseproof.id"], told["noiseproof.client"]) == ("mine", "ann")
    written = json.dumps(told)
    assert service.ann not in written
    assert str(answer.json()["probabilities"][0][0]) not in written


def test_a_worker_sets_up_its_exporter_by_the_environment():
    """`opentelemetry-instrument` does so for the process that it starts, and forbids it for those that this one starts."""
    pytest.importorskip("opentelemetry.distro", reason="opentelemetry-distro is not installed")
    code = "from noiseproof.serve import tracing\nwith tracing.span(None) as span: span.set_attribute('a', 'seen')"
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert '"a": "seen"' in ran.stdout


def test_what_is_no_traceparent_begins_a_trace_of_its_own(service, rows, spans):
    assert service.ask(rows(1), traceparent="00-nonsense").status_code == 200
    assert any(span.parent is None for span in spans() if "predictions" in span.name)


def test_nothing_is_traced_where_nobody_asked_for_it(service, rows, monkeypatch):
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    tracing._tracer.cache_clear()
    with tracing.span(b"00-x") as span:
        assert span is None
    tracing.describe(None, {})
    assert service.ask(rows(1)).status_code == 200
