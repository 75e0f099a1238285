"""Traces of what the service does, for OpenTelemetry; nothing of it happens unless the operator asks for it."""

from planner_service.tracing.export import Tracing, TracingUnusable, requests_traced, tracing_from
from planner_service.tracing.spans import begin, note, span, trace_ids

__all__ = ["Tracing", "TracingUnusable", "begin", "note", "requests_traced", "span", "trace_ids", "tracing_from"]
