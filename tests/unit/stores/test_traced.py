"""What OpenTelemetry is told: which verbs, how they ended, and nothing of what is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import everthread
from everthread import ConflictError


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Spans and measurements, as an SDK gets them."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    meters = MeterProvider(metric_readers=[reader])
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", meters.get_meter)
    yield spans, reader
    provider.shutdown()
    meters.shutdown()


def verbs(spans: InMemorySpanExporter) -> set[str]:
    return {span.name for span in spans.get_finished_spans()}


def test_every_verb_has_a_span_and_no_content(exported: Any, tmp_path: Path) -> None:
    spans, reader = exported
    with everthread.open(f"sqlite:///{tmp_path}/secret-path.db", telemetry=True) as store:
        thread = store.thread("secret-name")
        thread.state["secret-key"] = "secret-value"
        thread.commit(label="secret-label", key="secret-commit")
        thread.messages.append({"content": "secret-message"})
        thread.commit()
        rival = store.thread("secret-name")
        rival.state["x"] = 1
        rival.commit()
        thread.state["x"] = 2
        with pytest.raises(ConflictError):
            thread.commit()
    assert {"everthread.find", "everthread.create", "everthread.append"} <= verbs(spans)
    ends = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    assert {end["db.system.name"] for end in ends} == {"sqlite"}
    assert "StaleWrite" in {end.get("error.type") for end in ends}
    told = (
        "".join(span.to_json() for span in spans.get_finished_spans()) + reader.get_metrics_data().to_json()
    )
    assert "secret" not in told
    assert "everthread.store.duration" in told


def test_spans_are_children_of_the_callers(exported: Any) -> None:
    spans, _ = exported
    tracer = trace.get_tracer("test")

    async def run() -> None:
        async with everthread.open_async("memory:", telemetry=True) as store:
            thread = await store.thread("bot")
            with tracer.start_as_current_span("turn") as turn:
                thread.state["x"] = 1
                await thread.commit()
            made = [s for s in spans.get_finished_spans() if s.name == "everthread.create"]
            assert [span.parent.span_id for span in made] == [turn.get_span_context().span_id]

    asyncio.run(run())


def test_without_it_nothing_is_told(exported: Any) -> None:
    spans, _ = exported
    with everthread.open("memory:") as store:
        thread = store.thread("bot")
        thread.state["x"] = 1
        thread.commit()
    assert verbs(spans) == set()


def test_without_the_package_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(everthread.MissingDependencyError, match=r"pip install '\.\[otel\]'"):
        everthread.open("memory:", telemetry=True)
