//! Tests older versions of tables, and what queries report about times, orders and skipped files.

use super::*;

async fn post(engine: &Engine, body: Json) -> (StatusCode, String) {
    let request = Request::post("/api/sql")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = router(engine.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_is_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    // The first commit creates the table; each later one adds a day.
    for (version, rows) in [(0, 0), (1, 1000), (3, 3000)] {
        let sql = format!("SELECT count(*) AS n FROM at_version('tags', {version})");
        assert_eq!(text(&engine, &sql).await, format!("n\n{rows}\n"));
    }
    let joined = "SELECT count(*) AS n, max(b.value_int) AS m FROM at_version('tags', 1) a \
                  JOIN AT_VERSION('tags', 1 + 1) b ON a.tag = b.tag AND a.value_int = b.value_int";
    assert_eq!(text(&engine, joined).await, "n,m\n1000,999\n");
    let within = "WITH old AS (SELECT attr('site.name') AS site FROM at_version('tags', 1) WHERE at_version.tag = 't1') \
                  SELECT site, count(*) AS n FROM old GROUP BY 1";
    assert_eq!(text(&engine, within).await, "site,n\nnorth,100\n");
    for now in [
        "now()",
        "now() + INTERVAL '1 hour'",
        "'2100-01-01T00:00:00Z'",
        "date '2100-01-01'",
    ] {
        let sql = format!("SELECT count(*) AS n FROM at_time('tags', {now})");
        assert_eq!(text(&engine, &sql).await, "n\n3000\n", "{now}");
    }
    let (status, answer) = post(
        &engine,
        json!({"sql": "select count(*) as n from at_version('tags', $1) where value_int < $2", "params": [2, 1500], "format": "csv"}),
    )
    .await;
    assert_eq!((status, answer.as_str()), (StatusCode::OK, "n\n1500\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_version_is_an_error_that_says_which_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    for (call, expected) in [
        (
            "at_version('tags', 9)",
            "the table tags has no version 9; it has 0 to 3",
        ),
        ("at_version('tagz', 1)", "there is no table tagz; the tables are: tags"),
        (
            "at_version('tags')",
            "at_version takes the name of a table and a version: at_version('tags', 12)",
        ),
        (
            "at_version('tags', 'x')",
            "at_version: 'x' is not a version; expected a number",
        ),
        ("at_time('tags', 12)", "at_time: 12 is not a time"),
        (
            "at_time('tags', '1999-01-01T00:00:00Z')",
            "the table tags had no version at that time",
        ),
    ] {
        let error = error(&engine, &format!("SELECT * FROM {call}")).await;
        let expected = expected.replace("at_version('tags', 12)", "at_version('logs', 12)");
        assert_eq!((error.code(), error.status()), ("sql.plan", 400), "{error}");
        assert!(error.message.starts_with(&expected), "{error}");
    }
    // The files of a day in an old version are deleted.
    let day = folder.path().join("lake/tags/date=2031-05-06");
    std::fs::remove_dir_all(&day).unwrap();
    let gone = error(&engine, "SELECT * FROM at_version('tags', 1)").await;
    assert!(
        gone.message.contains("1 of its files left the table and are deleted"),
        "{gone}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_about_tables_and_plans_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    assert!(
        text(&engine, "SHOW COLUMNS FROM tags")
            .await
            .contains(",time_unix_nano,")
    );
    assert!(text(&engine, "SHOW ALL").await.contains("datafusion."));
    assert!(text(&engine, "DESCRIBE tags").await.contains("attr_site_name"));
    assert!(text(&engine, "EXPLAIN SELECT 1").await.contains("physical_plan"));
    let analyzed = text(
        &engine,
        "EXPLAIN ANALYZE SELECT count(value) FROM tags WHERE value_int > 2500",
    )
    .await;
    assert!(analyzed.contains("output_rows=499"), "{analyzed}");
    let today = text(&engine, "SELECT now() > '2026-01-01T00:00:00Z' AS later").await;
    assert_eq!(today, "later\ntrue\n");
    let buckets = "SELECT time_bucket('1 day', time) AS day, count(*) AS n FROM tags GROUP BY 1 ORDER BY 1 LIMIT 1";
    assert_eq!(text(&engine, buckets).await, "day,n\n2031-05-06T00:00:00Z,1000\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_have_the_types_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let of = |sql: &str, params: Json| json!({"sql": sql, "params": params, "format": "ndjson"});
    for (sql, params, expected) in [
        (
            "select $1 as a, $2 as b, $3 as c",
            json!([1, "x", true]),
            r#"{"a":1,"b":"x","c":true}"#,
        ),
        ("select $a as a", json!({"a": 1.5}), r#"{"a":1.5}"#),
        ("select cast($1 as bigint) as a", json!([null]), r#"{"a":null}"#),
        ("select $1 as a", json!([i64::MAX]), r#"{"a":"9223372036854775807"}"#),
        (
            "select count(*) as n from tags where tag = $1 and time >= $2",
            json!(["t1", "2031-05-08T00:00:00Z"]),
            r#"{"n":100}"#,
        ),
    ] {
        let (status, answer) = post(&engine, of(sql, params)).await;
        assert_eq!((status, answer.trim_end()), (StatusCode::OK, expected), "{sql}");
    }
    for (sql, params) in [
        ("select $2", json!([1])),
        ("select $1", json!(null)),
        ("select $1", json!([[1]])),
    ] {
        let (status, answer) = post(&engine, of(sql, params)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{sql}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_read_is_counted_by_why() {
    let folder = tempfile::tempdir().unwrap();
    let _writer = filled(folder.path()).await;
    let exported = Metrics::default();
    let metrics = QueryMetrics::register(&exported);
    let engine = Engine::open(folder.path(), QueryOptions::default(), metrics).unwrap();
    let files = |stage| exported.total_with("thalweg_lake_query_files_total", &[stage]);
    let pruned = |stage| exported.total_with("thalweg_lake_query_pruned_total", &[stage]);
    run(
        &engine,
        "SELECT sum(value) FROM tags WHERE time >= '2031-05-07T00:00:00Z' AND value_int > 2500",
    )
    .await;
    // Scanned rows are counted when the query ends, after its reader has received all.
    for _ in 0..1000 {
        if exported.total_with("thalweg_lake_query_rows_total", &["raw"]) > 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((files("listed"), files("pruned"), files("read")), (3.0, 2.0, 1.0));
    assert_eq!(
        (pruned("date"), pruned("statistics")),
        (1.0, 1.0),
        "one day before, one of smaller values"
    );
    assert_eq!(exported.total_with("thalweg_lake_query_rows_total", &["raw"]), 499.0);
    assert_eq!(pruned("filter"), 501.0, "rows whose other columns were not decoded");
    assert!(exported.total_with("thalweg_lake_query_scanned_bytes_total", &["sql"]) > 0.0);
}
