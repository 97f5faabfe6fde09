//! Orders and filters that the library's planner would refuse, or answer from another column.

use super::values::{column, json_rows};
use super::*;

/// Integers in several files, so that sorted parts are merged.
async fn integers(data_dir: &Path) -> Writer {
    let writer = writer(data_dir).await;
    for file in 0..3 {
        let samples = (0..7).map(|i| {
            let value = (file * 7 + i) * 5 % 23 - 9;
            sample(
                &format!("t{}", "x".repeat(i as usize % 4)),
                file * 7 + i,
                Value::I64(value),
            )
        });
        append(&writer, samples.collect()).await;
    }
    writer
}

/// The library does not know the range of each of these, or of a part of it.
const KEYS: [&str; 18] = [
    "abs(value_int % 7)",
    "abs(value_int + 1)",
    "abs(-value_int)",
    "length(tag) > 2",
    "NOT (length(tag) > 2)",
    "length(tag) > 2 AND value_int > 3",
    "value_int > 3 OR abs(value_int) > 5",
    "value_int % 7 > 3",
    "-abs(cast(value_int AS double))",
    "-round(cast(value_int AS double) / 3)",
    "sqrt(abs(value_int % 5))",
    "exp(round(cast(value_int AS double) / 4))",
    "coalesce(value_int, 5) > 3",
    "CASE WHEN abs(value_int) > 5 THEN 1 ELSE 0 END",
    "lower(tag) > 'tx'",
    "date_trunc('day', time) > timestamp '2026-01-01'",
    "(value_int & 3) >= 2",
    "(abs(value_int) > 5) = (length(tag) > 2)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_sorted_by_whatever_can_be_computed() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = integers(folder.path()).await;
    for key in KEYS {
        let columns = format!("(SELECT value_int AS v, tag AS g, {key} AS k FROM tags)");
        for way in ["ASC", "DESC NULLS LAST"] {
            let expected = column(&engine, &format!("SELECT v FROM {columns} ORDER BY k {way}, v")).await;
            assert_eq!(expected.len(), 21);
            let by = format!("ORDER BY {key} {way}, value_int");
            let sorted = column(&engine, &format!("SELECT value_int FROM tags {by}")).await;
            assert_eq!(sorted, expected, "{by}");
            let first = column(&engine, &format!("SELECT value_int FROM tags {by} LIMIT 4")).await;
            assert_eq!(first, expected[..4], "{by} LIMIT 4");
            let listed = format!("SELECT string_agg(cast(value_int AS varchar), ' ' {by}) AS v FROM tags");
            let joined: Vec<String> = expected.iter().map(ToString::to_string).collect();
            assert_eq!(
                column(&engine, &listed).await,
                [joined.join(" ").replace('"', "")],
                "{listed}"
            );
            let by_group =
                format!("SELECT sum(s) FROM (SELECT first_value(value_int {by}) AS s FROM tags GROUP BY tag, {key})");
            let expected = format!(
                "SELECT sum(s) FROM (SELECT first_value(v ORDER BY k {way}, v) AS s FROM {columns} GROUP BY g, k)"
            );
            assert_eq!(
                column(&engine, &by_group).await,
                column(&engine, &expected).await,
                "{by_group}"
            );
        }
        for (windows, expected) in [
            (
                format!("row_number() OVER (PARTITION BY {key} ORDER BY value_int)"),
                "row_number() OVER (PARTITION BY k ORDER BY v)",
            ),
            (
                format!("sum(value_int) OVER (ORDER BY {key}, value_int ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)"),
                "sum(v) OVER (ORDER BY k, v ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
            ),
            (
                format!("rank() OVER (PARTITION BY length(tag) > 2 ORDER BY {key} DESC)"),
                "rank() OVER (PARTITION BY l ORDER BY k DESC)",
            ),
        ] {
            let own = json_rows(
                &engine,
                &format!("SELECT value_int AS v, {windows} AS w FROM tags ORDER BY v"),
            )
            .await;
            let expected = format!(
                "SELECT v, {expected} AS w FROM (SELECT value_int AS v, length(tag) > 2 AS l, {key} AS k FROM tags) ORDER BY v"
            );
            assert_eq!(own, json_rows(&engine, &expected).await, "{windows}");
        }
    }
    // The library puts an expression in the place of an equal column.
    for (key, filter) in [
        ("value <= 1.5", "array_has([-0.0], value)"),
        ("value_int > tag_id", "value_int = abs(tag_id % 3)"),
    ] {
        let sql = format!(
            "SELECT count(*) FROM (SELECT rank() OVER (PARTITION BY {key} ORDER BY tag) FROM tags WHERE {filter} ORDER BY {key}, tag LIMIT 9)"
        );
        assert_eq!(column(&engine, &sql).await.len(), 1, "{sql}");
    }
    // The names of columns, and all of them.
    let names = "SELECT *, rank() OVER (ORDER BY abs(n) > 1) FROM (VALUES ('a', 1), ('bc', 2)) AS t(g, n) ORDER BY abs(n) > 1 DESC";
    assert_eq!(
        text(&engine, names).await,
        "g,n,rank() ORDER BY [abs(t.n) > Int64(1) ASC NULLS LAST] RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW\nbc,2,2\na,1,1\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cases_that_are_never_null_by_their_conditions_are_grouped() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let from = "FROM (VALUES (5, 1), (NULL, 2), (0, 7)) AS t(k, n)";
    for (case, expected) in [
        ("CASE WHEN k >= n THEN k ELSE 14 END", [5, 14, 14]),
        ("CASE WHEN n < k THEN k + 1 ELSE 14 END", [6, 14, 14]),
        ("CASE WHEN k NOT IN (-1, NULL) THEN k ELSE n END", [1, 2, 7]),
        (
            "CASE WHEN k >= n AND k > 1 THEN k WHEN k IN (n, 0) THEN k ELSE 3 END",
            [0, 3, 5],
        ),
    ] {
        let mut expected = expected.to_vec();
        let all = format!("SELECT {case} AS v {from} ORDER BY v");
        assert_eq!(column(&engine, &all).await, expected, "{all}");
        expected.dedup();
        for sql in [
            format!("SELECT DISTINCT {case} AS v {from} ORDER BY v"),
            format!("SELECT {case} AS v {from} GROUP BY {case}, n > 99 ORDER BY v"),
        ] {
            assert_eq!(column(&engine, &sql).await, expected, "{sql}");
        }
        let sum = format!("SELECT sum(DISTINCT {case}) AS v {from}");
        assert_eq!(column(&engine, &sum).await, [expected.iter().sum::<i32>()], "{sum}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_above_joins_read_the_columns_that_they_name() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let from = "FROM (VALUES (1, 10, 0.5, 1), (2, 20, 7.0, 2), (3, NULL, NULL, 3), (NULL, 40, 2.0, 4)) AS x(id, i, d, k) \
                RIGHT JOIN (VALUES (1, 100.5), (2, 200.5), (3, 300.5), (4, NULL), (5, 500.5)) AS y(k, d) ON x.k = y.k";
    for (selected, filter, expected) in [
        // These were values of x.d.
        ("x.id + x.i, y.d", "x.d + 0.5 <> 1.5", "11,100.5\n22,200.5\n,\n"),
        // This was an internal error.
        ("x.i + x.id, y.d", "x.d + 0.5 <> 1.5", "11,100.5\n22,200.5\n,\n"),
        ("x.id + x.i, x.d", "y.d + 0.5 > 200", "22,7.0\n,\n,\n"),
        ("y.k + 1, y.d", "x.k + 1 > 2", "3,200.5\n4,300.5\n5,\n"),
        ("x.k + y.k", "coalesce(x.d, y.d) > 1", "4\n6\n8\n\n"),
    ] {
        let sql = format!("SELECT {selected} {from} WHERE {filter} ORDER BY y.k");
        let answer = text(&engine, &sql).await;
        let (_, rows) = answer.split_once('\n').unwrap();
        assert_eq!(rows.replace("\"\"", ""), expected, "{sql}");
    }
}
