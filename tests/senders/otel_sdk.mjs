// Sends logs, metrics and spans with the OpenTelemetry SDK for JavaScript.
//
// usage: node otel_sdk.mjs grpc|json|proto ENDPOINT
//
// ENDPOINT is a base URL, such as http://127.0.0.1:4318. Packages are found through NODE_PATH. The exit code is 0 when every
// exporter got a success response.
import {createRequire} from 'node:module';
import {join} from 'node:path';
const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), 'x.js'));
const {SpanKind, SpanStatusCode, context, diag, trace, DiagLogLevel} = require('@opentelemetry/api');
const {resourceFromAttributes} = require('@opentelemetry/resources');
const {BatchLogRecordProcessor, LoggerProvider} = require('@opentelemetry/sdk-logs');
const {MeterProvider, PeriodicExportingMetricReader} = require('@opentelemetry/sdk-metrics');
const {BasicTracerProvider, BatchSpanProcessor} = require('@opentelemetry/sdk-trace-base');

const LOGS = 100;
const [protocol, endpoint] = process.argv.slice(2);
const failures = [];
const note = (...words) => failures.push(words.join(' '));
diag.setLogger({error: note, warn: note, info() {}, debug() {}, verbose() {}}, DiagLogLevel.WARN);

const kind = {grpc: 'grpc', json: 'http', proto: 'proto'}[protocol];
const exporter = (signal, name) => {
  const {[name]: Exporter} = require(`@opentelemetry/exporter-${signal}-otlp-${kind}`);
  return new Exporter({url: kind === 'grpc' ? endpoint : `${endpoint}/v1/${signal === 'trace' ? 'traces' : signal}`});
};

const name = `node-${protocol}`;
const resource = resourceFromAttributes({'service.name': name, answer: 42, tags: ['a', 'b']});

const logs = new LoggerProvider({resource, processors: [new BatchLogRecordProcessor({exporter: exporter('logs', 'OTLPLogExporter')})]});
const logger = logs.getLogger('sender', '9');
for (let number = 0; number < LOGS; number += 1) {
  logger.emit({
    timestamp: [1_780_000_000, number],
    severityNumber: 13,
    severityText: 'WARN',
    body: number === 1 ? {n: number, deep: [1, 'two', null]} : `line ${number} of ${name}`,
    attributes: {n: number, even: number % 2 === 0, half: number / 2 + 0.25, raw: new Uint8Array([0, 255])},
  });
}

const providers = [logs];
if (kind !== 'proto') {
  const tracing = new BasicTracerProvider({resource, spanProcessors: [new BatchSpanProcessor(exporter('trace', 'OTLPTraceExporter'))]});
  const tracer = tracing.getTracer('sender', '9');
  const parent = tracer.startSpan('parent', {kind: SpanKind.SERVER, attributes: {'http.route': '/cart/{id}'}});
  parent.addEvent('cache miss', {key: 'k1'});
  const child = tracer.startSpan('child', {kind: SpanKind.CLIENT}, trace.setSpan(context.active(), parent));
  child.setStatus({code: SpanStatusCode.ERROR, message: 'no route'});
  child.end();
  parent.end();
  const reader = new PeriodicExportingMetricReader({exporter: exporter('metrics', 'OTLPMetricExporter'), exportIntervalMillis: 3_600_000});
  const metrics = new MeterProvider({resource, readers: [reader]});
  const meter = metrics.getMeter('sender', '9');
  meter.createCounter('requests', {unit: '{request}'}).add(5, {route: '/a'});
  const latency = meter.createHistogram('latency', {unit: 'ms'});
  [1, 30, 700].forEach(value => latency.record(value));
  providers.push(tracing, metrics);
}

// A shutdown sends all pending data; metrics would be sent again after a flush.
for (const provider of providers) await provider.shutdown();
if (failures.length > 0) {
  console.error(failures.join('\n'));
  process.exit(1);
}
