//! Random requests that use anything OTLP allows, from a seed.

use super::style::Dice;
use crate::proto::*;

fn many<T>(d: &mut Dice, up_to: usize, make: impl Fn(&mut Dice) -> T) -> Vec<T> {
    (0..d.below(up_to + 1)).map(|_| make(d)).collect()
}

fn maybe<T>(d: &mut Dice, make: impl Fn(&mut Dice) -> T) -> Option<T> {
    (!d.is(4)).then(|| make(d))
}

fn text(d: &mut Dice) -> String {
    const PARTS: [&str; 12] = [
        "",
        "a",
        "service.name",
        "\"",
        "\\",
        "\n",
        "\u{1}\u{1f}",
        "é",
        "日本語",
        "🦀",
        "/x/y",
        "GET 200 in 3 ms",
    ];
    match d.below(20) {
        // Near lengths at which the encoded length grows by a byte.
        0 => "x".repeat(120 + d.below(12)),
        1 => "y\"".repeat(8187 + d.below(8)),
        _ => many(d, 3, |d| PARTS[d.below(12)]).concat(),
    }
}

fn long(d: &mut Dice) -> u64 {
    match d.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1_700_000_000_000_000_000,
        3 => d.any(),
        _ => d.any() >> d.below(64),
    }
}

fn double(d: &mut Dice) -> f64 {
    match d.below(8) {
        0 => 0.0,
        1 => f64::INFINITY,
        2 => f64::NEG_INFINITY,
        3 => -0.5,
        4 => f64::MAX,
        5 => f64::MIN_POSITIVE / 8.0,
        _ => Some(f64::from_bits(d.any()))
            .filter(|number| !number.is_nan())
            .unwrap_or(1e300),
    }
}

fn bytes(d: &mut Dice, len: usize) -> Vec<u8> {
    (0..len).map(|_| d.any() as u8).collect()
}

fn id(d: &mut Dice, len: usize) -> Vec<u8> {
    match d.below(8) {
        0 => Vec::new(),
        1 => bytes(d, 3),
        _ => bytes(d, len),
    }
}

fn attributes(d: &mut Dice) -> Vec<Pair> {
    many(d, 4, |d| pair(d, 0))
}

fn pair(d: &mut Dice, depth: usize) -> Pair {
    Pair {
        key: text(d),
        value: maybe(d, |d| any(d, depth)),
    }
}

fn any(d: &mut Dice, depth: usize) -> Any {
    let value = match d.below(if depth > 12 { 7 } else { 11 }) {
        0 => return Any { value: None },
        1 => Value::Bool(d.is(2)),
        2 => Value::Int(long(d) as i64),
        3 => Value::Double(double(d)),
        4 => {
            let len = d.below(9);
            Value::Bytes(bytes(d, len))
        }
        5 | 6 => Value::Text(text(d)),
        7 | 8 => Value::List(List {
            values: many(d, 3, |d| any(d, depth + 1)),
        }),
        _ => Value::Map(Map {
            values: many(d, 3, |d| pair(d, depth + 1)),
        }),
    };
    Any { value: Some(value) }
}

fn resource(d: &mut Dice) -> Resource {
    Resource {
        attributes: attributes(d),
        dropped: long(d) as u32,
    }
}

fn scope(d: &mut Dice) -> Scope {
    Scope {
        name: text(d),
        version: text(d),
        attributes: attributes(d),
        dropped: long(d) as u32,
    }
}

pub fn logs(d: &mut Dice) -> Logs {
    let groups = many(d, 3, |d| ResourceLogs {
        resource: maybe(d, resource),
        scopes: many(d, 2, |d| ScopeLogs {
            scope: maybe(d, scope),
            records: many(d, 4, log),
            schema_url: text(d),
        }),
        schema_url: text(d),
    });
    Logs { groups }
}

pub fn metrics(d: &mut Dice) -> Metrics {
    let groups = many(d, 3, |d| ResourceMetrics {
        resource: maybe(d, resource),
        scopes: many(d, 2, |d| ScopeMetrics {
            scope: maybe(d, scope),
            records: many(d, 4, metric),
            schema_url: text(d),
        }),
        schema_url: text(d),
    });
    Metrics { groups }
}

pub fn traces(d: &mut Dice) -> Traces {
    let groups = many(d, 3, |d| ResourceSpans {
        resource: maybe(d, resource),
        scopes: many(d, 2, |d| ScopeSpans {
            scope: maybe(d, scope),
            records: many(d, 4, span),
            schema_url: text(d),
        }),
        schema_url: text(d),
    });
    Traces { groups }
}

fn log(d: &mut Dice) -> Log {
    Log {
        time: long(d),
        severity_number: d.below(26) as i32 - 1,
        severity_text: text(d),
        body: maybe(d, |d| any(d, 0)),
        attributes: attributes(d),
        dropped: long(d) as u32,
        flags: long(d) as u32,
        trace_id: id(d, 16),
        span_id: id(d, 8),
        observed_time: long(d),
        event_name: text(d),
    }
}

fn span(d: &mut Dice) -> Span {
    Span {
        trace_id: id(d, 16),
        span_id: id(d, 8),
        trace_state: text(d),
        parent_span_id: id(d, 8),
        name: text(d),
        kind: d.below(8) as i32 - 1,
        start: long(d),
        end: long(d),
        attributes: attributes(d),
        dropped_attributes: long(d) as u32,
        events: many(d, 2, |d| Event {
            time: long(d),
            name: text(d),
            attributes: attributes(d),
            dropped: long(d) as u32,
        }),
        dropped_events: long(d) as u32,
        links: many(d, 2, |d| Link {
            trace_id: id(d, 16),
            span_id: id(d, 8),
            trace_state: text(d),
            attributes: attributes(d),
            dropped: long(d) as u32,
            flags: long(d) as u32,
        }),
        dropped_links: long(d) as u32,
        status: maybe(d, |d| Status {
            message: text(d),
            code: d.below(4) as i32,
        }),
        flags: long(d) as u32,
    }
}

fn metric(d: &mut Dice) -> Metric {
    let temporality = d.below(4) as i32;
    let data = match d.below(6) {
        0 => None,
        1 => Some(Data::Gauge(Gauge {
            points: many(d, 3, number_point),
        })),
        2 => Some(Data::Sum(Sum {
            points: many(d, 3, number_point),
            temporality,
            is_monotonic: d.is(2),
        })),
        3 => Some(Data::Histogram(Histogram {
            points: many(d, 3, histogram_point),
            temporality,
        })),
        4 => Some(Data::Exponential(Exponential {
            points: many(d, 3, exponential_point),
            temporality,
        })),
        _ => Some(Data::Summary(Summary {
            points: many(d, 3, summary_point),
        })),
    };
    Metric {
        name: text(d),
        description: text(d),
        unit: text(d),
        data,
        metadata: attributes(d),
    }
}

fn number_point(d: &mut Dice) -> NumberPoint {
    NumberPoint {
        attributes: attributes(d),
        start: long(d),
        time: long(d),
        value: maybe(d, |d| match d.is(2) {
            true => NumberValue::Double(double(d)),
            false => NumberValue::Int(long(d) as i64),
        }),
        exemplars: many(d, 2, exemplar),
        flags: long(d) as u32,
    }
}

fn histogram_point(d: &mut Dice) -> HistogramPoint {
    HistogramPoint {
        attributes: attributes(d),
        start: long(d),
        time: long(d),
        count: long(d),
        sum: maybe(d, double),
        buckets: many(d, 20, long),
        bounds: many(d, 20, double),
        exemplars: many(d, 2, exemplar),
        flags: long(d) as u32,
        min: maybe(d, double),
        max: maybe(d, double),
    }
}

fn exponential_point(d: &mut Dice) -> ExponentialPoint {
    let buckets = |d: &mut Dice| Buckets {
        offset: long(d) as i32,
        counts: many(d, 20, long),
    };
    ExponentialPoint {
        attributes: attributes(d),
        start: long(d),
        time: long(d),
        count: long(d),
        sum: maybe(d, double),
        scale: long(d) as i32,
        zero_count: long(d),
        positive: maybe(d, buckets),
        negative: maybe(d, buckets),
        flags: long(d) as u32,
        exemplars: many(d, 2, exemplar),
        min: maybe(d, double),
        max: maybe(d, double),
        zero_threshold: double(d),
    }
}

fn summary_point(d: &mut Dice) -> SummaryPoint {
    SummaryPoint {
        attributes: attributes(d),
        start: long(d),
        time: long(d),
        count: long(d),
        sum: double(d),
        quantiles: many(d, 3, |d| Quantile {
            quantile: double(d),
            value: double(d),
        }),
        flags: long(d) as u32,
    }
}

fn exemplar(d: &mut Dice) -> Exemplar {
    Exemplar {
        attributes: attributes(d),
        time: long(d),
        value: maybe(d, |d| match d.is(2) {
            true => ExemplarValue::Double(double(d)),
            false => ExemplarValue::Int(long(d) as i64),
        }),
        span_id: id(d, 8),
        trace_id: id(d, 16),
    }
}
