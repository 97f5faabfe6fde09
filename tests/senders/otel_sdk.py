"""Sends logs, metrics and spans with the OpenTelemetry SDK.

usage: otel_sdk.py grpc|http ENDPOINT [COMPRESSION]

ENDPOINT is a base URL, such as http://127.0.0.1:4318. The exit code is 0 when every exporter got a success response.
"""

import logging
import sys

from opentelemetry import context, trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

LOGS = 250


def exporters(protocol, endpoint, compression):
    if protocol == "grpc":
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        kind = {"gzip": grpc.Compression.Gzip, None: grpc.Compression.NoCompression}[compression]
        options = {"endpoint": endpoint, "insecure": True, "compression": kind}
        return OTLPLogExporter(**options), OTLPMetricExporter(**options), OTLPSpanExporter(**options)
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    kind = {"gzip": Compression.Gzip, None: Compression.NoCompression}[compression]
    return (
        OTLPLogExporter(endpoint=f"{endpoint}/v1/logs", compression=kind),
        OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", compression=kind),
        OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", compression=kind),
    )


class Failures(logging.Handler):
    """Exporters report errors only to their logger."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.seen = []

    def emit(self, record):
        self.seen.append(record.getMessage())


def main(protocol, endpoint, compression):
    failures = Failures()
    logging.getLogger("opentelemetry").addHandler(failures)
    name = f"python-{protocol}"
    resource = Resource.create({"service.name": name, "service.version": "1.2.3", "answer": 42, "ratio": 0.5, "tags": ["a", "b"]})
    log_exporter, metric_exporter, span_exporter = exporters(protocol, endpoint, compression)

    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(span_exporter))
    tracer = tracing.get_tracer("sender", "9", schema_url="https://opentelemetry.io/schemas/1.30.0")
    with tracer.start_as_current_span("parent", kind=SpanKind.SERVER, attributes={"http.route": "/cart/{id}", "n": 7}) as parent:
        parent.add_event("cache miss", {"key": "k1"})
        link = Link(parent.get_span_context(), {"why": "retry"})
        with tracer.start_as_current_span("child", kind=SpanKind.CLIENT, links=[link]) as child:
            child.set_status(Status(StatusCode.ERROR, "no route"))
        inside = trace.set_span_in_context(parent)

    logs = LoggerProvider(resource=resource)
    logs.add_log_record_processor(BatchLogRecordProcessor(log_exporter))
    logger = logs.get_logger("sender", "9")
    for number in range(LOGS):
        logger.emit(
            LogRecord(
                timestamp=1_780_000_000_000_000_000 + number if number % 2 else None,
                observed_timestamp=1_780_000_000_000_000_500 + number,
                context=inside if number == 0 else context.Context(),
                severity_number=SeverityNumber.WARN,
                severity_text="WARN",
                body={"n": number, "deep": {"list": [1, "two", None]}} if number == 1 else f"line {number} of {name}",
                attributes={"n": number, "even": number % 2 == 0, "half": number / 2, "raw": b"\x00\xff", "list": [1, 2]},
                event_name="tick" if number == 2 else None,
            )
        )

    views = [View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())]
    reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=3_600_000)
    metrics = MeterProvider(resource=resource, metric_readers=[reader], views=views)
    meter = metrics.get_meter("sender", "9")
    meter.create_counter("requests", unit="{request}", description="all of them").add(5, {"route": "/a"})
    meter.create_up_down_counter("open").add(-2)
    meter.create_gauge("temperature", unit="Cel").set(21.5, {"room": "north"})
    latency = meter.create_histogram("latency", unit="ms")
    sizes = meter.create_histogram("sizes", unit="By")
    for value in (1, 30, 700):
        latency.record(value)
        sizes.record(value)

    for provider in (tracing, logs):
        if not provider.force_flush(20_000):
            sys.exit("what was sent was not taken in time")
    # Metrics are sent once: a flush and a shutdown each send all of them.
    for provider in (tracing, logs, metrics):
        provider.shutdown()
    if failures.seen:
        sys.exit("\n".join(failures.seen))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
