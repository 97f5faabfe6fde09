//! The lake under kill -9 at any moment (during a flush, a commit, a merge, a rollup, a vacuum), while the wall clock is set,
//! clients disconnect in the middle of requests and queries, and rebuildable files are damaged: every acknowledged record is in
//! its table once, and other engines can read the tables at any moment.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::api::Api;
use thalweg_tests::thalweg::set_wall_clock;
use thalweg_tests::{Thalweg, eventually};

use crate::otlp::{attributes, counts, end, is_stored, logs_of, now, start, text};
use crate::otlp_senders::ask_with;
use crate::trouble::{WallClock, damage, leave, request};

const S: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * S;
const DAY: u64 = 24 * HOUR;
/// All automatic jobs of a table run all the time.
const BUSY: &str = "lake:
  flush: {interval: 20ms}
  compaction: {seal_after: 0s}
  vacuum: {retain: 1m}
  rollup:
    lateness: {10s: 0s, 1m: 0s, 5m: 0s, 20m: 0s, 1h: 0s}
    late_interval: 100ms
";
/// Number of series of the points.
const SERIES: u64 = 3;

/// First number of a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Acknowledged data: logs and points are numbered, each kind from 0.
#[derive(Default)]
struct Sent {
    logs: u64,
    points: u64,
    /// Requests whose clients disconnected: each is a separate trace with this many spans.
    left: u64,
}

const SPANS: u64 = 5;

fn sum_below(end: u64) -> u64 {
    end * end.saturating_sub(1) / 2
}

/// An export request of gauge points, whose values are their numbers.
fn points(time: u64, numbers: std::ops::Range<u64>) -> Value {
    let point = |n: u64| {
        json!({"timeUnixNano": (time + n * 1000).to_string(), "asDouble": n as f64,
            "attributes": attributes(&[("pump", text(&format!("p{}", n % SERIES)))])})
    };
    let points: Vec<Value> = numbers.map(point).collect();
    gauge("flow", &points)
}

fn gauge(name: &str, points: &[Value]) -> Value {
    let resource = json!({"attributes": attributes(&[("service.name", text("works"))])});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [
        {"name": name, "gauge": {"dataPoints": points}},
    ]}]}]})
}

/// A query that takes a moment.
const QUERY: &str = "select count(*), sum(l.attr_n * m.value) from logs l, metrics m where l.attr_n % 7 = m.value % 7";

impl Sent {
    /// Clients that do not wait for their response.
    fn leave(&mut self, thalweg: &Thalweg, otlp: &Api, random: &mut Random) {
        let query = request("POST", "/api/sql?format=json", QUERY);
        leave(&thalweg.address().unwrap(), &query, usize::MAX);
        let trace = self.left;
        self.left += 1;
        let span = |n: u64| json!({"traceId": format!("{:032x}", trace + 1), "spanId": format!("{:016x}", trace * SPANS + n + 1), "name": "left"});
        let spans: Vec<Value> = (0..SPANS).map(span).collect();
        let body = json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
        let whole = request("POST", "/v1/traces", &body.to_string());
        leave(otlp.address(), &whole, whole.len() - 9 * random.below(2) as usize);
    }

    /// Requests without a response are stored as a whole and once, or not at all.
    fn left_are_whole(&self, thalweg: &Thalweg) -> u64 {
        let sql = "select trace_id, count(*) as spans, count(distinct span_id) as ids from traces group by 1";
        let traces = thalweg.sql(sql).unwrap_or_default();
        for trace in &traces {
            assert_eq!(
                (&trace["spans"], &trace["ids"]),
                (&json!(SPANS), &json!(SPANS)),
                "{trace}"
            );
        }
        traces.len() as u64
    }

    /// Some requests, of today and the days before: past days are merged, and their windows made, at once.
    fn more(&mut self, thalweg: &Thalweg, otlp: &Api, random: &mut Random) {
        for _ in 0..5 + random.below(30) {
            if random.below(6) == 0 {
                self.leave(thalweg, otlp, random);
            }
            let count = 1 + random.below(60);
            let time = now() - DAY * random.below(3) - S * random.below(7200);
            if random.below(3) == 0 {
                is_stored(&otlp.post("/v1/metrics", &points(time, self.points..self.points + count)));
                self.points += count;
            } else {
                is_stored(&otlp.post("/v1/logs", &logs_of(time, self.logs..self.logs + count)));
                self.logs += count;
            }
            std::thread::sleep(Duration::from_millis(random.below(25)));
        }
    }

    /// Checks that all of them are stored, once.
    fn are_there(&self, thalweg: &Thalweg) -> anyhow::Result<()> {
        let (rows, numbers, sum) = counts(thalweg)?;
        ensure!(rows >= self.logs, "{rows} of {} logs", self.logs);
        assert_eq!((rows, numbers, sum), (self.logs, self.logs, sum_below(self.logs)));
        let of = "count(*) as rows, count(distinct value) as numbers, cast(coalesce(sum(value), 0) as bigint) as sum";
        let found = thalweg.sql(&format!("select {of} from metrics where metric_name = 'flow'"))?;
        let rows = found[0]["rows"].as_u64().unwrap_or_default();
        ensure!(rows >= self.points, "{rows} of {} points", self.points);
        assert_eq!(found, [self.all_points()]);
        Ok(())
    }

    fn all_points(&self) -> Value {
        json!({"rows": self.points, "numbers": self.points, "sum": sum_below(self.points)})
    }

    /// Complete windows of each resolution contain all points, including late ones and those from before a crash.
    fn are_in_windows(&self, thalweg: &Thalweg, otlp: &Api) {
        let hour = now() / HOUR * HOUR;
        let time = |column: &str| format!("metric_name = 'flow' and cast({column} as bigint) < {hour}");
        let of = "cast(coalesce(sum(value), 0) as bigint) as sum, cast(max(value) as bigint) as max from metrics where";
        let sql = format!("select count(*) as points, {of} {}", time("time_unix_nano"));
        let all = thalweg.sql(&sql).unwrap();
        assert!(all[0]["points"].as_u64().unwrap() > self.points / 2, "{all:?}");
        let mut expected = Vec::new();
        for seconds in [10, 60, 300, 1200, 3600] {
            let mut of_resolution = all[0].clone();
            of_resolution["s"] = json!(seconds);
            expected.push(of_resolution);
        }
        // Nothing is late any more once windows up to this hour are complete for all.
        is_stored(&otlp.post(
            "/v1/metrics",
            &gauge("clock", &[json!({"timeUnixNano": now().to_string(), "asDouble": 1.0})]),
        ));
        let of = "sum(count) as points, cast(sum(sum) as bigint) as sum, cast(max(max) as bigint) as max";
        let of = format!(
            "select resolution_s as s, {of} from metrics_rollup where {} group by 1 order by 1",
            time("time_unix_nano")
        );
        eventually(|| {
            let found = thalweg.sql(&of)?;
            ensure!(found == expected, "{found:?} and not {expected:?}");
            Ok(())
        })
        .unwrap();
    }

    fn others_find_them(&self, lake: &Path) {
        for engine in ["duckdb", "deltalake"] {
            let sql = "select count(*)::bigint as rows, count(distinct attr_n) as numbers, sum(attr_n::bigint)::bigint as sum from t";
            let logs = json!([{"rows": self.logs, "numbers": self.logs, "sum": sum_below(self.logs)}]);
            assert_eq!(ask_with(engine, &lake.join("logs"), sql), logs, "{engine}");
            let sql = "select count(*)::bigint as rows, count(distinct value) as numbers, sum(value)::bigint as sum from t \
                       where metric_name = 'flow'";
            assert_eq!(
                ask_with(engine, &lake.join("metrics"), sql),
                json!([self.all_points()]),
                "{engine}"
            );
        }
    }
}

/// Whatever was interrupted, other engines can read the tables, without duplicates.
fn others_read(lake: &Path) {
    let twice = [
        ("logs", "select count(*) - count(distinct attr_n) as twice from t"),
        (
            "metrics",
            "select count(*) - count(distinct value) as twice from t where metric_name = 'flow'",
        ),
    ];
    for (table, sql) in twice {
        assert_eq!(
            ask_with("duckdb", &lake.join(table), sql),
            json!([{"twice": 0}]),
            "{table}"
        );
    }
    ask_with(
        "duckdb",
        &lake.join("metrics_rollup"),
        "select count(*) as windows from t",
    );
}

/// Number of the table's existing commits of this kind.
fn commits(table: &Path, operation: &str) -> usize {
    let entries = std::fs::read_dir(table.join("_delta_log")).unwrap().flatten();
    let commits = entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    commits.filter(|commit| commit.contains(operation)).count()
}

/// Reproducible by `THALWEG_KILL_ROUNDS` and `THALWEG_KILL_SEED`.
#[test]
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
fn rows_are_there_once_whenever_flushes_merges_and_rollups_are_killed() {
    let of_environment = |name: &str, default: u64| {
        let given = std::env::var(name).ok();
        given.map_or(default, |text| text.parse().unwrap())
    };
    let (rounds, seed) = (
        of_environment("THALWEG_KILL_ROUNDS", 8),
        of_environment("THALWEG_KILL_SEED", 7),
    );
    let (mut thalweg, otlp) = start(BUSY);
    let lake = thalweg.data_dir().join("lake");
    let (mut random, mut sent) = (Random(seed), Sent::default());
    let (mut clock, folder) = (WallClock::default(), thalweg.folder.path().to_owned());
    set_wall_clock(&folder, 0).unwrap();
    for round in 0..rounds {
        // The first process has no settable clock.
        if round > 0 && random.below(3) == 0 {
            clock.set(&folder, &thalweg.process, random.below(64));
        }
        sent.more(&thalweg, &otlp, &mut random);
        std::thread::sleep(Duration::from_millis(random.below(400)));
        thalweg.process.kill().unwrap();
        if random.below(3) == 0 {
            clock.set_back(&folder, random.below(64));
        }
        if random.below(3) == 0 {
            damage(&thalweg.data_dir(), random.below(1 << 20));
        }
        if round % 4 == 3 {
            others_read(&lake);
        }
        thalweg.restart().unwrap();
        thalweg.wait_ready().unwrap();
    }
    eventually(|| sent.are_there(&thalweg)).unwrap();
    let stored = sent.left_are_whole(&thalweg);
    // Windows are complete by the clock.
    clock.set(&folder, &thalweg.process, 0);
    sent.are_in_windows(&thalweg, &otlp);
    end(&mut thalweg);
    sent.others_find_them(&lake);
    let merges = commits(&lake.join("logs"), "OPTIMIZE");
    let rollups = commits(&lake.join("metrics_rollup"), "WRITE");
    assert!(
        merges > 0 && rollups > 0,
        "{merges} merges, {rollups} commits of windows"
    );
    println!(
        "{rounds} rounds of kill -9, seed {seed}: {} logs and {} points stored, none lost, none twice; \
         {merges} merges of logs, {rollups} commits of windows; {} clients left, of whom {stored} had all stored and the others nothing",
        sent.logs, sent.points, sent.left
    );
}
