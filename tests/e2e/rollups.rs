//! Metric rollup windows, as SQL and other engines see them.

use serde_json::{Value, json};
use thalweg_tests::eventually;

use crate::otlp::{attributes, end, is_stored, now, start, text};
use crate::otlp_senders::ask_with;

const S: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * S;
/// Windows are made as soon as their time has passed, and again as soon as there are late points.
const AT_ONCE: &str = "lake:
  flush: {interval: 100ms}
  rollup:
    lateness: {10s: 0s, 1m: 0s, 5m: 0s, 20m: 0s, 1h: 0s}
    late_interval: 100ms
";

/// A request with a gauge and a counter at some times.
fn points(gauge: &[(u64, f64)], counter: &[(u64, f64)]) -> Value {
    let points = |points: &[(u64, f64)]| -> Value {
        let point = |(time, value): &(u64, f64)| {
            json!({"timeUnixNano": time.to_string(), "asDouble": value,
                "attributes": attributes(&[("mount", text("/data"))])})
        };
        points.iter().map(point).collect()
    };
    let resource = json!({"attributes": attributes(&[("service.name", text("press"))])});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [
        {"name": "load", "unit": "1", "gauge": {"dataPoints": points(gauge)}},
        {"name": "strokes", "sum": {"aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points(counter)}},
    ]}]}]})
}

#[test]
fn metrics_have_windows_that_are_made_again_when_points_are_late() {
    let (mut thalweg, otlp) = start(AT_ONCE);
    let begin = (now() / HOUR - 2) * HOUR;
    let at = |second: u64| begin + second * S;
    let gauge = [(at(1), 1.0), (at(4), 3.0), (at(12), 5.0)];
    let counter = [(at(1), 10.0), (at(14), 30.0), (at(64), 5.0)];
    is_stored(&otlp.post("/v1/metrics", &points(&gauge, &counter)));
    // Event time advances.
    is_stored(&otlp.post("/v1/metrics", &points(&[(at(3700), 0.0)], &[])));
    let windows = |name: &str| {
        let sql = format!(
            "select resolution_s as s, (time_unix_nano - {begin}) / {S} as at, count, sum, min, max, first, last, increase, resets, \
             attr_mount, resource_service_name, round(sketch_quantile(sketch, 0.5), 1) as median from metrics_rollup \
             where metric_name = '{name}' and time_unix_nano < {} order by 1, 2",
            at(3600)
        );
        thalweg.sql(&sql)
    };
    let row = |s: u64, at: u64, of: [f64; 6], median: f64| {
        let [count, sum, min, max, first, last] = of;
        json!({"s": s, "at": at, "count": count as u64, "sum": sum, "min": min, "max": max, "first": first, "last": last,
            "increase": null, "resets": null, "attr_mount": "/data", "resource_service_name": "press", "median": median})
    };
    let load = eventually(|| {
        let rows = windows("load")?;
        anyhow::ensure!(rows.len() == 6, "{rows:?}");
        Ok(rows)
    })
    .unwrap();
    let all = [3.0, 9.0, 1.0, 5.0, 1.0, 5.0];
    assert_eq!(load[0], row(10, 0, [2.0, 4.0, 1.0, 3.0, 1.0, 3.0], 1.0));
    assert_eq!(load[1], row(10, 10, [1.0, 5.0, 5.0, 5.0, 5.0, 5.0], 5.0));
    for (window, s) in load[2..].iter().zip([60, 300, 1200, 3600]) {
        assert_eq!(*window, row(s, 0, all, 3.0));
    }
    let strokes = windows("strokes").unwrap();
    let of = |rows: &[Value], s: u64| -> Vec<(u64, f64, u64)> {
        let rows = rows.iter().filter(|row| row["s"] == s);
        rows.map(|row| {
            (
                row["at"].as_u64().unwrap(),
                row["increase"].as_f64().unwrap(),
                row["resets"].as_u64().unwrap(),
            )
        })
        .collect()
    };
    assert_eq!(of(&strokes, 10), [(0, 0.0, 0), (10, 20.0, 0), (60, 5.0, 1)]);
    assert_eq!(of(&strokes, 60), [(0, 20.0, 0), (60, 5.0, 1)]);
    assert_eq!(of(&strokes, 3600), [(0, 25.0, 1)]);

    // One more of each, an hour late: the late counter point counts between the two others.
    is_stored(&otlp.post("/v1/metrics", &points(&[(at(5), 7.0)], &[(at(11), 28.0)])));
    let hour = eventually(|| {
        let rows = windows("load")?;
        anyhow::ensure!(rows.len() == 6 && rows[5]["count"] == 4, "{rows:?}");
        Ok(rows[5].clone())
    })
    .unwrap();
    assert_eq!(hour, row(3600, 0, [4.0, 16.0, 1.0, 7.0, 1.0, 5.0], 3.0));
    let strokes = eventually(|| {
        let rows = windows("strokes")?;
        anyhow::ensure!(rows.iter().all(|row| row["s"] != 3600 || row["count"] == 4), "{rows:?}");
        Ok(rows)
    })
    .unwrap();
    assert_eq!(of(&strokes, 10), [(0, 0.0, 0), (10, 20.0, 0), (60, 5.0, 1)]);
    assert_eq!(of(&strokes, 3600), [(0, 25.0, 1)]);
    // A filter on revisions does not return an older window.
    let old = thalweg
        .sql(
            "select count(*) as n from metrics_rollup where metric_name = 'load' and resolution_s = 3600 and count = 3",
        )
        .unwrap();
    assert_eq!(old[0]["n"], 0);

    let table = thalweg.data_dir().join("lake/metrics_rollup");
    end(&mut thalweg);
    let sql = "select count(*) as revisions, cast(arg_max(\"count\", revision) as int) as newest, \
               cast(arg_max(\"sum\", revision) as double) as sum from t \
               where metric_name = 'load' and resolution_s = 3600 and time_unix_nano = ";
    for engine in ["duckdb", "deltalake"] {
        let answer = ask_with(engine, &table, &format!("{sql}{begin}"));
        assert_eq!(answer, json!([{"revisions": 2, "newest": 4, "sum": 16.0}]), "{engine}");
    }
}
