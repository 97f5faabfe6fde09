//! Queries over a table written by the lake's own writer.

mod cancelled;
mod foreign;
mod json;
mod orders;
mod sketches;
mod turns;
mod types;
mod values;
mod versions;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value as Json, json};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::TAGS;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_lake::LakeMetrics;
use thalweg_lake::ingest::{IngestOptions, QueueSource, TableWriter};
use thalweg_lake::tags::TagBatchWriter;
use thalweg_log::disk::RamDisk;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, PartitionId, Records, WriteBatch};
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, ValueQuality};
use thalweg_telemetry::Metrics;
use tower::ServiceExt as _;

use super::*;
use crate::http::router;

/// 2031-05-06T07:08:09Z
const START: i64 = 1_935_817_689;
const DAY: i64 = 86_400;

fn sample(tag: &str, seconds: i64, value: Value) -> Message {
    let entries = [("umh_topic", tag), ("site.name", "north"), ("tmp_note", "n")];
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    let at = Ticks((START + seconds) * 10_000_000);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: 0,
    };
    Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
}

/// The writer of the table, and the log that feeds it.
struct Writer {
    log: Arc<EmbeddedLog>,
    /// The log offset that the table has consumed.
    taken: Arc<AtomicU64>,
    table: Arc<TableWriter>,
}

const PARTITION: PartitionId = PartitionId::new(7, 0);

async fn writer(data_dir: &Path) -> Writer {
    let promotion = AttributePromotion::new(256, vec![], &["tmp_*".to_owned()]).unwrap();
    writer_of(data_dir, promotion, Duration::from_millis(5)).await
}

async fn writer_of(data_dir: &Path, promotion: AttributePromotion, flush_interval: Duration) -> Writer {
    let options = LogOptions {
        spare: 0,
        min_free_bytes: Some(0),
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(64 << 20)), 0xab, &options).unwrap());
    log.create(PARTITION, Durability::Fsync).await.unwrap();
    let taken: Arc<AtomicU64> = Arc::default();
    let told = taken.clone();
    let feed = QueueSource {
        handoffs: None,
        queue: "lake.tags".to_owned(),
        log: log.clone(),
        partitions: vec![PARTITION],
        taken: Arc::new(move |_, offset| told.store(offset, Ordering::SeqCst)),
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let options = IngestOptions {
        flush_interval,
        ..IngestOptions::default()
    };
    let lake = LakeStorage::folder(&thalweg_lake::folder(data_dir), SyncedStore::new());
    let table = TableWriter::open(
        &lake,
        &TAGS,
        feed,
        &thalweg_lake::tags::entry_decoder(),
        promotion,
        metrics,
        &options,
    )
    .await;
    Writer {
        log,
        taken,
        table: Arc::new(table.unwrap()),
    }
}

/// Returns when all messages are in the table, in one commit.
async fn append(writer: &Writer, messages: Vec<Message>) {
    let end = append_alone(writer, messages).await;
    while writer.taken.load(Ordering::SeqCst) < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the end of the log when all messages are in it.
async fn append_alone(writer: &Writer, messages: Vec<Message>) -> u64 {
    let arrival = (START + 3 * DAY) * 1_000_000_000;
    let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, arrival);
    let mut records = Records::new();
    for entry in &packed.entries {
        records.push(&RecordRef::of(1, &entry.bytes)).unwrap();
    }
    let entries = packed.entries.len() as u64;
    let appended = writer.log.append(WriteBatch::of(PARTITION, records)).await.unwrap();
    appended.offsets[0] + entries
}

/// Three days with one commit and one file each; ten tags with a hundred samples each.
async fn filled(data_dir: &Path) -> Writer {
    let writer = writer(data_dir).await;
    for day in 0..3 {
        let messages = (0..1000).map(|i| sample(&format!("t{}", i % 10), day * DAY + i, Value::I64(day * 1000 + i)));
        append(&writer, messages.collect()).await;
    }
    writer
}

fn engine(data_dir: &Path, options: QueryOptions) -> Engine {
    Engine::open(data_dir, options, QueryMetrics::unregistered()).unwrap()
}

async fn run(engine: &Engine, sql: &str) -> Vec<RecordBatch> {
    match engine.execute(sql).await {
        Ok(answer) => answer.try_collect().await.unwrap(),
        Err(error) => panic!("{sql}: {error}"),
    }
}

async fn text(engine: &Engine, sql: &str) -> String {
    let answer = engine
        .execute(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut bytes = Vec::new();
    print::csv(answer, &mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

async fn error(engine: &Engine, sql: &str) -> QueryError {
    match engine.execute(sql).await {
        Err(error) => error,
        Ok(answer) => answer.try_collect::<Vec<_>>().await.unwrap_err(),
    }
}

async fn plan(engine: &Engine, sql: &str) -> String {
    pretty_format_batches(&run(engine, &format!("EXPLAIN {sql}")).await)
        .unwrap()
        .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_come_from_the_newest_version() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let missing = error(&engine, "SELECT * FROM tags").await;
    assert_eq!(
        (missing.code(), missing.message.as_str()),
        ("sql.plan", "there is no table tags: the lake has no tables yet")
    );
    let writer = filled(folder.path()).await;
    assert_eq!(text(&engine, "SELECT count(*) FROM tags").await, "count(*)\n3000\n");
    assert_eq!(
        text(
            &engine,
            "SELECT tag, sum(value_int) AS s, min(value) AS m FROM tags GROUP BY tag ORDER BY tag LIMIT 2"
        )
        .await,
        "tag,s,m\nt0,448500,0.0\nt1,448800,1.0\n"
    );
    append(&writer, vec![sample("new", 0, Value::text("x"))]).await;
    assert_eq!(
        text(&engine, "SELECT value_text, attr_site_name FROM tags WHERE tag = 'new'").await,
        "value_text,attr_site_name\nx,north\n"
    );
    let unknown = error(&engine, "SELECT * FROM tagz").await;
    assert_eq!(unknown.message, "there is no table tagz; the tables are: tags");
}

/// All samples are from 2031, so their times are after `now()`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn now_is_one_moment_of_the_whole_query() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = filled(folder.path()).await;
    let sql = "SELECT count(*) AS n, count(DISTINCT now()) AS moments, min(now()) = now() AS same FROM tags \
               WHERE time > now() + interval '1 hour' AND date > cast(now() AS date)";
    assert_eq!(text(&engine, sql).await, "n,moments,same\n3000,1,true\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_are_in_the_order_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let row = text(&engine, "SELECT * FROM tags WHERE tag = 't3' AND value_int = 3").await;
    let (header, row) = row.trim_end().split_once('\n').unwrap();
    assert!(
        header.starts_with("date,tag_id,time_unix_nano,time,arrival_unix_nano,time_source,"),
        "{header}"
    );
    assert!(header.ends_with(",unit,overflow,attr_site_name"), "{header}");
    assert!(
        row.starts_with("2031-05-06,") && row.contains("2031-05-06T07:08:12Z"),
        "{row}"
    );
    assert!(row.contains("\"{\"\"attr.tmp_note\"\":\"\"n\"\"}\""), "{row}");
    let described = text(&engine, "DESCRIBE tags").await;
    assert!(described.contains("time_unix_nano,Int64,NO"), "{described}");
    assert!(text(&engine, "SHOW TABLES").await.contains("thalweg,lake,tags"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_match_are_not_scanned() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let files = |plan: &str| plan.matches(".parquet").count();
    for (filter, expected) in [
        ("true", 3),
        ("date = '2031-05-07'", 1),
        ("date >= '2031-05-07'", 2),
        ("time >= '2031-05-08T00:00:00Z'", 1),
        ("time_unix_nano < 1935817690000000000", 1),
        ("value_int BETWEEN 1200 AND 1300", 1),
        ("value > 1500.0", 2),
        ("tag = 'zzz'", 0),
        ("attr_site_name = 'north'", 3),
        ("attr_site_name IN ('south', 'west')", 0),
        ("value_text = 'x'", 0),
        ("value_text IS NOT NULL", 0),
        ("unit IS NULL", 3),
    ] {
        let plan = plan(&engine, &format!("SELECT value, tag FROM tags WHERE {filter}")).await;
        assert_eq!(files(&plan), expected, "{filter}: {plan}");
    }
    let counted = plan(&engine, "SELECT count(*), max(time_unix_nano) FROM tags").await;
    assert_eq!(files(&counted), 0, "known from the log: {counted}");
    assert_eq!(
        text(
            &engine,
            "SELECT max(value_int), min(time), count(DISTINCT tag) FROM tags WHERE date > '2031-05-06'"
        )
        .await,
        "max(tags.value_int),min(tags.time),count(DISTINCT tags.tag)\n2999,2031-05-07T07:08:09Z,10\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_a_number_is_found_by_every_filter_that_it_matches() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path()).await;
    append(
        &writer,
        vec![sample("a", 0, Value::F64(1.0)), sample("a", 1, Value::F64(f64::NAN))],
    )
    .await;
    append(
        &writer,
        vec![
            sample("a", 2, Value::F64(2.0)),
            sample("a", 3, Value::F64(f64::INFINITY)),
        ],
    )
    .await;
    let engine = engine(folder.path(), QueryOptions::default());
    assert_eq!(
        text(&engine, "SELECT count(*) AS n FROM tags WHERE value > 100.0").await,
        "n\n2\n"
    );
    assert_eq!(
        text(&engine, "SELECT count(*) AS n FROM tags WHERE isnan(value)").await,
        "n\n1\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_and_buckets_have_functions() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    assert_eq!(
        text(
            &engine,
            "SELECT attr('site.name') AS site, attr('tmp_note'), attr('none') IS NULL AS x, count(*) AS n FROM tags \
             WHERE attr('tmp_note') = 'n' GROUP BY attr('site.name'), attr('tmp_note'), attr('none') ORDER BY attr('site.name')"
        )
        .await,
        "site,attr('tmp_note'),x,n\nnorth,n,true,3000\n"
    );
    assert_eq!(
        text(
            &engine,
            "SELECT time_bucket('10m', time) AS t, count(*) AS n FROM tags WHERE date = '2031-05-06' GROUP BY 1 ORDER BY t"
        )
        .await,
        "t,n\n2031-05-06T07:00:00Z,111\n2031-05-06T07:10:00Z,600\n2031-05-06T07:20:00Z,289\n"
    );
    let both = "SELECT time_bucket('1 day', time), max(value) FROM tags GROUP BY time_bucket('1 day', time) ORDER BY time_bucket('1 day', time) LIMIT 1";
    assert_eq!(
        text(&engine, both).await.lines().last(),
        Some("2031-05-06T00:00:00Z,999.0")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_have_templates_and_fingerprints() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let sql = "SELECT log_template('User 17 of \"x\"') AS t, log_fingerprint('a 1') = log_fingerprint('a 2') AS same, \
               log_fingerprint('') IS NULL AS none, log_fingerprint(tag) = log_fingerprint('x') AS other \
               FROM tags LIMIT 1";
    assert_eq!(
        text(&engine, sql).await,
        "t,same,none,other\nuser <num> of <str>,true,true,false\n"
    );
    let plan = plan(
        &engine,
        "SELECT count(*) FROM tags WHERE value_int = log_fingerprint('a 1')",
    )
    .await;
    assert!(!plan.contains("log_fingerprint"), "a constant is made once: {plan}");
    assert!(
        error(&engine, "SELECT log_template(1, 2)")
            .await
            .message
            .contains("log_template")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_but_the_lake_can_be_reached() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let secret = folder.path().join("secret.csv");
    std::fs::write(&secret, "a\n1\n").unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    for (sql, code) in [
        (format!("SELECT * FROM '{}'", secret.display()), "sql.plan"),
        (format!("SELECT * FROM read_csv('{}')", secret.display()), "sql.plan"),
        ("SELECT * FROM \"../secret\"".to_owned(), "sql.plan"),
        ("SELECT * FROM \"tags/_delta_log\"".to_owned(), "sql.plan"),
        (
            format!("CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{}'", secret.display()),
            "sql.not_allowed",
        ),
        (
            format!("COPY tags TO '{}'", folder.path().join("out.csv").display()),
            "sql.not_allowed",
        ),
        (
            "SET datafusion.execution.target_partitions = 1000".to_owned(),
            "sql.not_allowed",
        ),
        ("INSERT INTO tags (tag) VALUES ('x')".to_owned(), "sql.not_allowed"),
        ("SELECT no_such FROM tags".to_owned(), "sql.plan"),
        ("SELECT * FROM".to_owned(), "sql.parse"),
        // The cast must fail during execution: a constant that cannot be cast fails during planning.
        ("SELECT CAST(tag AS BIGINT) FROM tags".to_owned(), "sql.execute"),
    ] {
        let error = error(&engine, &sql).await;
        assert_eq!(error.code(), code, "{sql}: {error}");
    }
    assert!(!folder.path().join("out.csv").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_ends_at_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    // No pair matches, so the join emits nothing for a very long time.
    let slow = "SELECT count(*) FROM tags a, tags b, tags c WHERE a.value + b.value + c.value < -1.0";
    let hasty = engine(
        folder.path(),
        QueryOptions {
            timeout: Duration::from_millis(200),
            ..QueryOptions::default()
        },
    );
    let late = error(&hasty, slow).await;
    assert_eq!((late.code(), late.status()), ("query.timeout", 504));

    let small = engine(
        folder.path(),
        QueryOptions {
            memory_bytes: 200_000,
            spill_bytes: 1,
            ..QueryOptions::default()
        },
    );
    let sorted = "SELECT * FROM tags ORDER BY value_type, value DESC, tag";
    let hungry = error(&small, sorted).await;
    assert_eq!((hungry.code(), hungry.status()), ("query.memory", 503), "{hungry}");

    let options = QueryOptions {
        concurrency: 1,
        queue: 1,
        ..QueryOptions::default()
    };
    let metrics = QueryMetrics::unregistered();
    let narrow = Engine::open(folder.path(), options, metrics.clone()).unwrap();
    let running = narrow.execute(slow).await.unwrap();
    let waiting = tokio::spawn({
        let engine = narrow.clone();
        async move { engine.execute("SELECT 1").await.map(drop) }
    });
    while metrics.queued.get() == 0 {
        tokio::task::yield_now().await;
    }
    let busy = error(&narrow, "SELECT 1").await;
    assert_eq!((busy.code(), busy.status()), ("query.busy", 429));
    drop(running);
    waiting.await.unwrap().unwrap();
}

/// Each step reads the previous column twice.
fn doubled(steps: usize) -> String {
    let step = |n: usize| format!(", t{n} AS (SELECT a + a a FROM t{})", n - 1);
    let all: String = (1..=steps).map(step).collect();
    format!("WITH t0 AS (SELECT v a FROM (SELECT unnest(range(0, 100)) v)){all} SELECT a FROM t{steps}")
}

/// Each part of the `WITH` reads the previous one twice, so the plan doubles with each.
fn read_twice(levels: usize) -> String {
    let leaf = "SELECT a FROM (SELECT a FROM (SELECT 1 a) x WHERE a > 0 ORDER BY a LIMIT 1) y";
    let parts: Vec<String> = (1..=levels)
        .map(|n| {
            let before = n - 1;
            format!("t{n} AS (SELECT l.a FROM t{before} l JOIN t{before} r ON l.a = r.a)")
        })
        .collect();
    format!(
        "WITH t0 AS ({leaf}), {} SELECT count(*) FROM t{levels}",
        parts.join(", ")
    )
}

/// An operator with itself as its operand, at `{}`; the innermost operand is `a`.
fn nested(operator: &str, levels: usize) -> String {
    (0..levels).fold("a".to_owned(), |operand, _| operator.replace("{}", &operand))
}

/// Derived tables in each other, each with an expression over the columns `a` and `v` of the next one.
fn in_tables(expression: &str, levels: usize, end: &str) -> String {
    let tables = (0..levels).fold(
        "SELECT v a, v + 1 v FROM (SELECT unnest(range(0, 3)) v)".to_owned(),
        |table, _| format!("SELECT {expression} a, v FROM ({table}) t"),
    );
    format!("SELECT a FROM ({tables}) t {end}")
}

/// Each level contains the one below twice, so the parts of the type double.
fn structs(levels: usize) -> String {
    match levels {
        0 => "1".to_owned(),
        _ => {
            let inner = structs(levels - 1);
            format!("named_struct('a', {inner}, 'b', {inner})")
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_or_too_complex_is_told_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let numbers = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let patterns = |count: usize| {
        let calls: Vec<String> = (0..count)
            .map(|n| format!("regexp_like(v, '[ab]{n}') as c{n}"))
            .collect();
        format!("SELECT {} FROM (VALUES ('a'), ('b')) t(v)", calls.join(","))
    };
    for (fits, exceeds, code, told) in [
        (
            "SELECT length(repeat('x', 1000000)) AS n".to_owned(),
            "SELECT length(repeat('x', 2000000000)) AS n".to_owned(),
            "query.too_large",
            "repeat would make 2000000016 bytes at once, and 134217728 are allowed",
        ),
        (
            format!("SELECT {}", numbers(10_000)),
            format!("SELECT {}", numbers(10_001)),
            "query.too_complex",
            "has 10001 columns, 10000 are allowed",
        ),
        (
            format!("SELECT regexp_like('a', '{}')", "[ab]".repeat(4_096)),
            format!("SELECT regexp_like('a', '{}c')", "[ab]".repeat(4_096)),
            "query.too_complex",
            "it has 16385 bytes, 16384 are allowed",
        ),
        (
            "SELECT regexp_like('a', '[a-z]{10}')".to_owned(),
            "SELECT regexp_like('a', '(((a{100}){100}){100}){100}')".to_owned(),
            "query.too_complex",
            "it needs more than 1048576 bytes when compiled",
        ),
        (
            patterns(256),
            patterns(257),
            "query.too_complex",
            "more than 256 different ones",
        ),
        (
            format!("{} WHERE a > 5", doubled(12)),
            format!("{} WHERE a > 5", doubled(18)),
            "query.too_complex",
            "predicates would read 262144 columns once each column is replaced",
        ),
        (
            format!(
                "SELECT t.a FROM ({}) t JOIN (SELECT 1 b) u ON t.a = u.b WHERE u.b > 5",
                doubled(12)
            ),
            format!(
                "SELECT t.a FROM ({}) t JOIN (SELECT 1 b) u ON t.a = u.b WHERE u.b > 5",
                doubled(60)
            ),
            "query.too_complex",
            "predicates would read 262144 columns",
        ),
        (
            format!("SELECT {} FROM (SELECT 1 a) t", nested("({} BETWEEN 0 AND a)::INT", 10)),
            format!("SELECT {} FROM (SELECT 1 a) t", nested("({} BETWEEN 0 AND a)::INT", 11)),
            "query.too_complex",
            "an operand would be written out more than 1024 times; split it into several queries",
        ),
        (
            format!(
                "SELECT 1 FROM (SELECT 1 a) t WHERE {} = 1",
                nested("coalesce({}, 2)", 10)
            ),
            format!(
                "SELECT 1 FROM (SELECT 1 a) t WHERE {} = 1",
                nested("coalesce({}, 2)", 11)
            ),
            "query.too_complex",
            "an operand would be written out more than 1024 times",
        ),
        (
            format!("SELECT {} FROM (SELECT 1 a) t", nested("coalesce(a, {})", 40)),
            format!("SELECT {} FROM (SELECT 1 a) t", nested("coalesce({}, a)", 11)),
            "query.too_complex",
            "an operand would be written out more than 1024 times",
        ),
        (
            in_tables("(a IN (1, 2, v))::INT", 6, "WHERE a = 1"),
            in_tables("(a IN (1, 2, v))::INT", 7, "WHERE a = 1"),
            "query.too_complex",
            "an operand would be written out more than 1024 times",
        ),
        (
            read_twice(6),
            read_twice(9),
            "query.too_complex",
            "the query has more than 4096 steps, counting each use of a WITH table; split it into several queries",
        ),
        (
            format!("SELECT {} AS a", structs(8)),
            format!("SELECT {} AS a", structs(9)),
            "query.too_complex",
            "a type of more than 1000 nested parts is not possible here; nest less",
        ),
        (
            "SELECT approx_percentile_cont(a, 0.5, 10000) FROM (SELECT 1 a) t".to_owned(),
            "SELECT approx_percentile_cont(a, 0.5, 10001) FROM (SELECT 1 a) t".to_owned(),
            "query.too_complex",
            "the number of centroids must be a number up to 10000, not",
        ),
    ] {
        let answer = engine.execute(fits.as_str()).await;
        drop(answer.unwrap_or_else(|error| panic!("{error}: {fits:.100}")));
        let refused = error(&engine, &exceeds).await;
        assert_eq!((refused.code(), refused.status()), (code, 422), "{refused}");
        assert!(refused.message.contains(told), "{refused}");
    }
}

/// Planning of one that visits its operand twice does not end, and no time limit ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_nested_in_itself_is_planned_or_refused_whatever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let (mut refused, mut failed) = (0, Vec::new());
    for operator in [
        "({} BETWEEN 0 AND v)::INT",
        "({} NOT BETWEEN 0 AND 2)::INT",
        "(0 BETWEEN {} AND v)::INT",
        "({} IN (1, 2, 3))::INT",
        "({} NOT IN (1, 2, 3, 4, 5))::INT",
        "({} IN (1, v, 3))::INT",
        "(v IN ({}, 3))::INT",
        "({} IS DISTINCT FROM v)::INT",
        "(v IS NOT DISTINCT FROM {})::INT",
        "({} IS NULL)::INT",
        "({} > 1 IS TRUE)::INT",
        "({} > 1 IS NOT FALSE)::INT",
        "({} > 1 IS UNKNOWN)::INT",
        "({} = ANY(make_array(1, 2)))::INT",
        "({} <> ALL(make_array(1, 2)))::INT",
        "list_contains(make_array(1, 2), {})::INT",
        "({} > 1 AND {} < 5)::INT",
        "coalesce({}, 2)",
        "coalesce(v, {})",
        "nvl({}, 2)",
        "ifnull({}, 2)",
        "nullif({}, v)",
        "greatest({}, v)",
        "CASE {} WHEN 1 THEN v ELSE 2 END",
        "CASE WHEN {} > 1 THEN 1 ELSE v END",
        "(-{})",
        "({} % 3)",
        "power({}, 2)",
        "round({}, 2)",
        "({}::TEXT LIKE 'a%')::INT",
        "({}::TEXT SIMILAR TO 'a%')::INT",
        "({}::TEXT ~ 'a')::INT",
        "array_length(make_array({}, 1))",
        "length(concat({}::TEXT, 'a'))",
        "(SELECT {})",
        "nvl2({}, v, 2)",
    ] {
        // Two operands double the text, whatever the planner makes of it.
        let levels = if operator.matches("{}").count() > 1 { 6 } else { 40 };
        let expression = nested(operator, levels);
        for sql in [
            format!("SELECT {expression} x FROM (SELECT value_int a, value v FROM tags) t LIMIT 1"),
            format!("SELECT 1 x FROM (SELECT value_int a, value v FROM tags) t WHERE ({expression}) = 1 LIMIT 1"),
            in_tables(&operator.replace("{}", "a"), levels, "LIMIT 1"),
            in_tables(&operator.replace("{}", "a"), levels, "WHERE a = 1 LIMIT 1"),
        ] {
            match engine.execute(sql.as_str()).await {
                Ok(answer) => drop(answer),
                Err(error) if ["query.too_complex", "sql.parse"].contains(&error.code()) => {
                    refused += usize::from(error.message.contains("an operand would be written out"));
                }
                Err(error) => failed.push(format!("{error}: {sql:.200}")),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(
        refused > 20,
        "only {refused} were refused for the copies of their operand"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_chain_of_operators_does_not_overflow_the_stack() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    for chain in [
        vec!["1"; 65_000].join("+"),
        vec!["a=1"; 16_000].join(" or "),
        "not ".repeat(30_000) + "true",
    ] {
        assert_eq!(error(&engine, &format!("SELECT {chain}")).await.code(), "sql.parse");
    }
    for nested in [
        "(".repeat(60_000),
        "case when ".repeat(10_000),
        "select(".repeat(15_000),
    ] {
        assert_eq!(error(&engine, &format!("SELECT {nested}")).await.code(), "sql.parse");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_beyond_the_share_goes_to_disk_and_is_cleaned_up() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let spill = thalweg_lake::folder(folder.path()).join("_thalweg/spill");
    std::fs::create_dir_all(spill.join("4294967295/left")).unwrap();
    let engine = engine(
        folder.path(),
        QueryOptions {
            memory_bytes: 24 << 20,
            ..QueryOptions::default()
        },
    );
    let big = "SELECT a.tag, a.value, b.value, a.attr_site_name FROM tags a, tags b WHERE a.value_int < 200 ORDER BY b.value, a.value DESC";
    let rows: usize = run(&engine, big).await.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, 600_000);
    assert!(
        !spill.join("4294967295").exists(),
        "what a dead process left is removed"
    );
    assert!(!thalweg_lake::folder(folder.path()).join("_thalweg/_delta_log").exists());
}

/// Like `thalweg sql --committed` beside a running process. Here both have the same process id, as processes in two
/// containers may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_engine_over_the_same_lake_takes_nothing_away_from_a_query_that_spills() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let small = || QueryOptions {
        memory_bytes: 24 << 20,
        ..QueryOptions::default()
    };
    let big = "SELECT a.tag, a.value, b.value, a.attr_site_name FROM tags a, tags b WHERE a.value_int < 200 ORDER BY b.value, a.value DESC";
    let first = engine(folder.path(), small());
    let mut answer = first.execute(big).await.unwrap();
    // Once there is a first row, all others are sorted and spilled.
    let mut rows = answer.next().await.unwrap().unwrap().num_rows();
    let spilled = || {
        let parent = thalweg_lake::folder(folder.path()).join("_thalweg/spill");
        let folders = std::fs::read_dir(parent).unwrap().flatten();
        let folders = folders.map(|entry| entry.path()).filter(|path| path.is_dir());
        folders.collect::<std::collections::BTreeSet<_>>()
    };
    let of_the_first = spilled();
    assert_eq!(of_the_first.len(), 1);
    let second = engine(folder.path(), small());
    assert_eq!(text(&second, "SELECT 1 AS one").await, "one\n1\n");
    assert_eq!(spilled().len(), 2);
    assert!(spilled().is_superset(&of_the_first));
    drop(second);
    while let Some(batch) = answer.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 600_000);
    drop((answer, first));
}

/// A process opens its lake before the first table exists; that state must not be cached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_beyond_the_share_goes_to_disk_also_when_the_lake_comes_later() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(
        folder.path(),
        QueryOptions {
            memory_bytes: 24 << 20,
            ..QueryOptions::default()
        },
    );
    assert_eq!(text(&engine, "SELECT 1 AS one").await, "one\n1\n");
    assert!(!thalweg_lake::folder(folder.path()).exists(), "asking makes no lake");
    filled(folder.path()).await;
    let big = "SELECT a.tag, a.value, b.value, a.attr_site_name FROM tags a, tags b WHERE a.value_int < 200 ORDER BY b.value, a.value DESC";
    let rows: usize = run(&engine, big).await.iter().map(RecordBatch::num_rows).sum();
    assert_eq!(rows, 600_000);
    assert!(engine.cache_used() > 0, "footers are remembered, and counted");
}

/// How often each outcome was counted.
fn outcomes(metrics: &Metrics) -> std::collections::BTreeMap<String, u64> {
    let text = metrics.text();
    let counts = text.lines().filter_map(|line| {
        let labels = line.strip_prefix("thalweg_lake_query_seconds_count{")?;
        let (_, outcome) = labels.split_once("outcome=\"")?;
        let (outcome, count) = outcome.split_once("\"} ")?;
        Some((outcome.to_owned(), count.parse().unwrap()))
    });
    counts.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_counts_once_whichever_way_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let exported = Metrics::default();
    let metrics = QueryMetrics::register(&exported);
    let options = QueryOptions {
        timeout: Duration::from_millis(300),
        ..QueryOptions::default()
    };
    let hasty = Engine::open(folder.path(), options, metrics.clone()).unwrap();
    let patient = Engine::open(folder.path(), QueryOptions::default(), metrics).unwrap();
    run(&hasty, "SELECT 1").await;
    error(&hasty, "SELECT x").await;
    // Rows come at once and without end.
    let long = "SELECT a.value FROM tags a, tags b, tags c, tags d";
    let mut late = hasty.execute(long).await.unwrap();
    while let Some(batch) = late.next().await {
        if let Err(error) = batch {
            assert_eq!(error.code(), "query.timeout", "{error}");
        }
    }
    drop(late);
    let mut left = patient.execute(long).await.unwrap();
    left.next().await.unwrap().unwrap();
    drop(left);
    let expected = [("ok", 1), ("query.cancelled", 1), ("query.timeout", 1), ("sql.plan", 1)];
    let expected = expected.map(|(outcome, count)| (outcome.to_owned(), count)).into();
    // A cancelled query is counted when it stops, shortly after its reader has left.
    for _ in 0..1000 {
        if outcomes(&exported) == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(outcomes(&exported), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn printing_shows_every_row() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let answer = engine
        .execute("SELECT value_int FROM tags ORDER BY value_int")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    assert_eq!(print::table(answer, &mut bytes).await.unwrap(), 3000);
    let lines = String::from_utf8(bytes).unwrap();
    assert_eq!(
        lines
            .lines()
            .filter(|line| line.starts_with("| ") && !line.contains("value_int"))
            .count(),
        3000
    );
    let empty = engine.execute("SELECT value_int FROM tags WHERE false").await.unwrap();
    let mut bytes = Vec::new();
    print::table(empty, &mut bytes).await.unwrap();
    assert!(String::from_utf8(bytes).unwrap().contains("value_int"));
}

async fn ask(engine: &Engine, request: Request<Body>) -> (StatusCode, String, String) {
    let response = router(engine.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    let media_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let body = axum::body::to_bytes(response.into_body(), 256 << 20).await.unwrap();
    (status, media_type, String::from_utf8_lossy(&body).into_owned())
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).body(Body::empty()).unwrap()
}

fn post(media_type: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post("/api/sql")
        .header(header::CONTENT_TYPE, media_type)
        .body(body.into())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_answers_in_the_format_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let (status, media_type, body) = ask(
        &engine,
        get("/api/sql?q=SELECT%20max(time_unix_nano)%20AS%20t,%201%20AS%20one%20FROM%20tags"),
    )
    .await;
    assert_eq!((status, media_type.as_str()), (StatusCode::OK, "application/json"));
    let expected = json!([{"t": ((START + 2 * DAY + 999) * 1_000_000_000).to_string(), "one": 1}]);
    assert_eq!(serde_json::from_str::<Json>(&body).unwrap(), expected);

    let request = json!({"sql": "SELECT $1 AS a, count(*) AS n FROM tags WHERE tag = $1 AND value < $2", "params": ["t1", 500], "format": "csv"});
    let (status, media_type, body) = ask(&engine, post("application/json; charset=utf-8", request.to_string())).await;
    assert_eq!(
        (status, media_type.as_str(), body.as_str()),
        (StatusCode::OK, "text/csv", "a,n\nt1,50\n")
    );

    let mut accept = post("text/plain", "SELECT value_int FROM tags ORDER BY value_int LIMIT 2");
    accept
        .headers_mut()
        .insert(header::ACCEPT, "text/html, application/x-ndjson;q=0.9".parse().unwrap());
    let (_, media_type, body) = ask(&engine, accept).await;
    assert_eq!(
        (media_type.as_str(), body.as_str()),
        ("application/x-ndjson", "{\"value_int\":0}\n{\"value_int\":1}\n")
    );

    let (_, media_type, body) = ask(&engine, get("/api/sql?format=json&q=SELECT+1+AS+a+WHERE+false")).await;
    assert_eq!((media_type.as_str(), body.as_str()), ("application/json", "[]\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_errors_have_a_status_a_code_and_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    for (request, status, code) in [
        (get("/api/sql"), 400, "query.bad_request"),
        (get("/api/sql?q=SELECT+1&format=xml"), 400, "query.bad_request"),
        (get("/api/sql?q=SELEC"), 400, "sql.parse"),
        (get("/api/sql?q=SELECT+x"), 400, "sql.plan"),
        (get("/api/sql?q=DROP+TABLE+tags"), 403, "sql.not_allowed"),
        (get("/api/sql?q=SELECT+1/0"), 422, "sql.execute"),
        (post("application/json", "{"), 400, "query.bad_request"),
        (
            post("application/json", "{\"sql\":\"SELECT 1\",\"x\":1}"),
            400,
            "query.bad_request",
        ),
        (post("text/plain", vec![0xff]), 400, "query.bad_request"),
        (post("text/plain", " ".repeat(2 << 20)), 413, "query.bad_request"),
    ] {
        let uri = request.uri().to_string();
        let (found, media_type, body) = ask(&engine, request).await;
        let body: Json = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (found.as_u16(), media_type.as_str()),
            (status, "application/json"),
            "{uri} {body}"
        );
        assert_eq!(body["error"]["code"], code);
        assert!(body["error"]["message"].as_str().unwrap().len() > 5);
    }
}

/// A failure in the middle ends the body with an error, never with a proper end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_answer_never_looks_complete() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(
        folder.path(),
        QueryOptions {
            timeout: Duration::from_millis(500),
            ..QueryOptions::default()
        },
    );
    let sql = "SELECT+a.value+FROM+tags+a,tags+b,tags+c";
    let response = router(engine)
        .oneshot(get(&format!("/api/sql?format=ndjson&q={sql}")))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body().into_data_stream();
    let (mut bytes, mut failed) = (0, false);
    while let Some(chunk) = body.next().await {
        match chunk {
            Ok(chunk) => bytes += chunk.len(),
            Err(_) => failed = true,
        }
    }
    assert!(bytes > 0 && failed);
}
