//! Values that the library's planner and functions would get wrong without a word: integers out of range, zeros with a sign,
//! NaN, attributes that are texts, columns of one name.

use super::*;

/// Doubles in three tags, integers in two, texts in one.
async fn odd_values(data_dir: &Path) -> Writer {
    let writer = writer(data_dir).await;
    let doubles = [
        0.0,
        -0.0,
        f64::NAN,
        1.5,
        -2.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        7.0,
        0.25,
    ];
    let doubles = doubles.iter().enumerate();
    let doubles = doubles.map(|(i, value)| sample(&format!("d{}", i % 3), i as i64, Value::F64(*value)));
    let integers = [i64::MAX, 1, i64::MIN, -1, 5].iter().enumerate();
    let integers = integers.map(|(i, value)| sample(&format!("i{}", i % 2), i as i64, Value::I64(*value)));
    append(&writer, doubles.chain(integers).collect()).await;
    append(&writer, vec![sample("x", 100, Value::text("x"))]).await;
    writer
}

pub(super) async fn json_rows(engine: &Engine, sql: &str) -> Json {
    let answer = engine
        .execute(sql)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut bytes = Vec::new();
    print::json(answer, &mut bytes).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// The values of a query with one column.
pub(super) async fn column(engine: &Engine, sql: &str) -> Vec<Json> {
    let rows = json_rows(engine, sql).await;
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row.as_object().unwrap().values().next().unwrap().clone())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integers_out_of_range_are_errors_and_never_other_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    for value in [
        "sum(value_int)",
        "sum(distinct value_int)",
        "sum(value_int) filter (where value_int <> 1)",
        "max(value_int + 1)",
        "max(1 + value_int)",
        "max(value_int * 2)",
        "max(-2 - value_int)",
        "sum(value_int * 3)",
        "9223372036854775807 + max(1)",
    ] {
        let sql = format!("SELECT {value} FROM tags WHERE value_int > 0");
        let refused = error(&engine, &sql).await;
        assert!(
            refused.code() == "sql.execute" && refused.message.contains("out of the range of Int64; convert"),
            "{sql}: {refused}"
        );
        let grouped = error(
            &engine,
            &format!("SELECT unit, {value} FROM tags WHERE value_int > 0 GROUP BY unit"),
        )
        .await;
        assert!(
            grouped.message.contains("out of the range of Int64"),
            "{value}: {grouped}"
        );
    }
    for sql in [
        "SELECT sum(value_int) OVER (ORDER BY time_unix_nano ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM tags WHERE value_int > 0",
        "SELECT sum(value_int) OVER () FROM tags WHERE value_int > 0",
        "SELECT -value_int FROM tags WHERE value_int < 0",
        "SELECT abs(value_int) FROM tags WHERE value_int < 0",
        "SELECT value_int - 1 FROM tags WHERE value_int < 0",
        "SELECT 9223372036854775807 + 1",
        "SELECT cast(127 AS tinyint) + cast(1 AS tinyint)",
        "SELECT cast(32767 AS smallint) * cast(2 AS smallint)",
        "SELECT cast(2147483647 AS int) + cast(1 AS int)",
        "SELECT cast(255 AS tinyint unsigned) + cast(1 AS tinyint unsigned)",
        "SELECT cast(0 AS bigint unsigned) - cast(1 AS bigint unsigned)",
        "SELECT sum(cast(18446744073709551615 AS bigint unsigned)) FROM tags",
        "SELECT sum(cast('99999999999999999999999999999999999999' AS decimal(38, 0))) FROM tags",
        "SELECT unit, sum(cast('99999999999999999999999999999999999999' AS decimal(38, 0))) FROM tags GROUP BY unit",
        "SELECT avg(cast('99999999999999999999999999999999999999' AS decimal(38, 0))) FROM tags",
        "SELECT unit, avg(cast('99999999999999999999999999999999999999' AS decimal(38, 0))) FROM tags GROUP BY unit",
        "SELECT sum(interval '2000000000 months') FROM tags",
        "SELECT unit, sum(interval '2000000000 days') FROM tags GROUP BY unit",
        "SELECT sum(v) OVER (ORDER BY k) FROM (VALUES (1, interval '2000000000 months'), (2, interval '200000000 months')) AS t(k, v)",
        "SELECT -v FROM (VALUES (interval '-2147483648 months')) AS t(v)",
        "SELECT sum(DISTINCT v) OVER () FROM (VALUES (interval '2000000000 months'), (interval '2000000001 months')) AS t(v)",
        "SELECT sum(DISTINCT v) FROM (VALUES (1, interval '2000000000 days'), (1, interval '2000000001 days')) AS t(g, v) GROUP BY g",
        "SELECT cast('99999999999999999999999999999999999999' AS decimal(38, 0)) + 1",
        "SELECT -1 - v FROM (VALUES (cast('99999999999999999999999999999999999999' AS decimal(38, 0)))) AS t(v)",
        "SELECT v * 10 FROM (VALUES (cast('99999999999999999999999999999999999999' AS decimal(38, 0)))) AS t(v)",
        "SELECT v / cast(0.001 AS decimal(10, 3)) FROM (VALUES (cast('99999999999999999999999999999999999999' AS decimal(38, 0)))) AS t(v)",
        "SELECT arrow_cast('999999999', 'Decimal32(9, 0)') + arrow_cast('1', 'Decimal32(9, 0)')",
        "SELECT arrow_cast('999999999999999999', 'Decimal64(18, 0)') + arrow_cast('1', 'Decimal64(18, 0)')",
        "SELECT 1 << 64",
        "SELECT 1 << 63",
        "SELECT 1 << -1",
        "SELECT 1 >> -1",
        "SELECT value_int << 1 FROM tags WHERE value_int > 5",
        "SELECT sum(1 << v) FROM (VALUES (62), (64)) AS t(v)",
        "SELECT cast(1 AS bigint unsigned) << 64",
        "SELECT cast(1 AS tinyint) << cast(7 AS tinyint)",
        "SELECT to_timestamp(1e18)",
        "SELECT to_timestamp(v) FROM (VALUES (1.5), (-1e300)) AS t(v)",
        "SELECT to_timestamp(cast('NaN' AS double))",
    ] {
        let refused = error(&engine, sql).await;
        assert_eq!(refused.code(), "sql.execute", "{sql}: {refused}");
    }
    // The order of the rows and of the steps does not matter, only the result.
    let total = "SELECT sum(value_int) AS s FROM tags";
    assert_eq!(text(&engine, total).await, "s\n4\n");
    assert_eq!(text(&engine, &format!("{total} WHERE tag = 'none'")).await, "s\n\"\"\n");
    assert_eq!(
        text(
            &engine,
            "SELECT tag, sum(value_int) AS s FROM tags WHERE value_int IS NOT NULL GROUP BY tag ORDER BY tag"
        )
        .await,
        "tag,s\ni0,4\ni1,0\n"
    );
    let sliding = "SELECT sum(value_int) OVER (ORDER BY value_int ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s FROM tags \
                   WHERE value_int BETWEEN -1 AND 5 ORDER BY value_int";
    assert_eq!(text(&engine, sliding).await, "s\n-1\n0\n6\n");
    let distinct = "SELECT sum(DISTINCT v) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s \
                    FROM (VALUES (1, 5), (2, 5), (3, 7)) AS t(k, v) ORDER BY k";
    assert_eq!(text(&engine, distinct).await, "s\n5\n5\n12\n");
    for (sql, expected) in [
        // Longer than a duration in between, and as an average.
        (
            "SELECT arrow_cast(avg(v), 'Int64') AS v FROM (SELECT arrow_cast(value_int, 'Duration(Second)') AS v FROM tags \
             WHERE value_int > 5 OR value_int = 1)",
            "4611686018427387904",
        ),
        (
            "SELECT avg(cast(v AS decimal(10, 2))) AS v FROM (VALUES (1.00), (2.00), (2.01)) AS t(v)",
            "1.670000",
        ),
        (
            "SELECT avg(DISTINCT cast(v AS decimal(10, 2))) AS v FROM (VALUES (1), (1), (2)) AS t(v)",
            "1.500000",
        ),
        (
            "SELECT sum(DISTINCT cast(v AS decimal(10, 2))) AS v FROM (VALUES (1), (1), (2)) AS t(v)",
            "3.00",
        ),
        ("SELECT (1 << 62) + (-8 >> 1) + (-8 << 1) AS v", "4611686018427387884"),
        ("SELECT (1 >> 64) + (-1 >> 64) + (0 << 99) AS v", "-1"),
        ("SELECT cast(1 AS bigint unsigned) << 63 AS v", "9223372036854775808"),
        (
            "SELECT sum(k << 1) AS v FROM (VALUES (1), (NULL), (3)) AS t(k) WHERE k > 0",
            "8",
        ),
        (
            "SELECT sum(k >> n) AS v FROM (VALUES (16, 1), (16, 2), (NULL, 3), (16, 70)) AS t(k, n)",
            "12",
        ),
        (
            "SELECT avg(arrow_cast(v, 'Decimal256(40, 2)')) AS v FROM (VALUES ('1'), ('4'), ('4')) AS t(v)",
            "3.000000",
        ),
        (
            "SELECT avg(DISTINCT arrow_cast(v, 'Decimal256(40, 2)')) AS v FROM (VALUES ('1'), ('4'), ('4')) AS t(v)",
            "2.500000",
        ),
        (
            "SELECT sum(DISTINCT arrow_cast(v, 'Decimal256(40, 2)')) AS v FROM (VALUES ('1'), ('4'), ('4')) AS t(v)",
            "5.00",
        ),
        (
            "SELECT min(v) AS v FROM (SELECT sum(DISTINCT v) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) = interval '2 days' AS v \
             FROM (VALUES (1, interval '2 days'), (2, interval '2 days')) AS t(k, v))",
            "true",
        ),
        ("SELECT round(1.5, 400) + trunc(1.25, 400) AS v", "2.75"),
        (
            "SELECT round(v, 20) = v AND trunc(v, 20) = v AS v FROM (VALUES (1e300)) AS t(v)",
            "true",
        ),
        ("SELECT round(1.5, -400) + trunc(1.5, -400) AS v", "0.0"),
        ("SELECT round(cast(1.5 AS float), 39) AS v", "1.5"),
        ("SELECT round(cast('Infinity' AS double), 2) AS v", "inf"),
        (
            "SELECT sum(round(v, n)) AS v FROM (VALUES (1.25, 2), (1.5, 400), (NULL, 2), (15.0, -1)) AS t(v, n)",
            "22.75",
        ),
        ("SELECT to_timestamp(1.5) AS v", "1970-01-01T00:00:01.500"),
        (
            "SELECT sum(v) = interval '2 months 1 day' AS v FROM (VALUES (interval '1 day'), (interval '2 months')) AS t(v)",
            "true",
        ),
    ] {
        assert_eq!(text(&engine, sql).await, format!("v\n{expected}\n"), "{sql}");
    }
    let nines = "9".repeat(76);
    let long = format!(
        "SELECT arrow_cast(v, 'Decimal256(76, 0)') AS v FROM (VALUES ('{nines}'), ('{}8')) AS t(v)",
        &nines[1..]
    );
    for value in [
        "sum(v)",
        "sum(DISTINCT v)",
        "sum(DISTINCT v) OVER ()",
        "avg(v)",
        "avg(DISTINCT v)",
        "max(v + 1)",
    ] {
        let refused = error(&engine, &format!("SELECT {value} FROM ({long}) AS t")).await;
        assert!(
            refused.message.contains("out of the range of Decimal256"),
            "{value}: {refused}"
        );
    }
    // Enough to come round to a small number.
    let many = format!("SELECT v FROM ({long}) AS t, (VALUES (1), (2), (3), (4), (5), (6)) AS u(w)");
    for sql in [
        format!("SELECT sum(v) FROM ({many})"),
        format!("SELECT avg(v) FROM ({many})"),
        format!("SELECT avg(v) FROM ({many}) GROUP BY v > 0"),
    ] {
        let refused = error(&engine, &sql).await;
        assert!(refused.message.contains("out of the range"), "{sql}: {refused}");
    }
    // What the message says.
    assert_eq!(
        text(
            &engine,
            "SELECT sum(cast(value_int AS decimal(38, 0))) AS s FROM tags WHERE value_int > 0"
        )
        .await,
        "s\n9223372036854775813\n"
    );
    assert_eq!(
        text(
            &engine,
            "SELECT cast(value_int AS decimal(38, 0)) + 1 AS s FROM tags WHERE value_int > 5"
        )
        .await,
        "s\n9223372036854775808\n"
    );
    // Columns are named as before.
    assert!(
        text(&engine, "SELECT value_int + 1, -value_int FROM tags LIMIT 0")
            .await
            .starts_with("tags.value_int + Int64(1),(- tags.value_int)")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_the_optimizer_merges_keep_their_nulls_and_columns() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let values = "FROM (VALUES (1), (NULL), (5)) AS t(v)";
    let columns = "FROM (VALUES (1, 1, 1), (2, 3, 4)) AS t(a, b, c)";
    for (condition, from, expected) in [
        ("NOT (v IN (1, 2) AND v IN (3, 4))", values, 2),
        ("NOT ((v = 1 OR v = 2) AND (3 = v OR v = 4))", values, 2),
        ("NOT (v IN (1, 2) AND v NOT IN (1, 2))", values, 2),
        (
            "NOT ((w = 1 OR w = 2) AND w IN (3, 4))",
            "FROM (VALUES (cast(1 AS int)), (NULL), (5)) AS t(w)",
            2,
        ),
        ("(v NOT IN (1, 2) OR v NOT IN (3, 4))", values, 2),
        ("(v IN (1, 2, 3, 4, 6) AND v IN (7, 8, 9, 10)) IS NULL", values, 1),
        ("(v NOT IN (1, 2) OR v NOT IN (3, 4)) IS NULL", values, 1),
        (
            "CASE WHEN v IN (1, 2) AND v IN (3, 4) THEN false ELSE (v IN (1) AND v IN (2)) IS NULL END",
            values,
            1,
        ),
        ("v IN (1, 2) AND v IN (2, 1, 3)", values, 1),
        ("NOT (array_has([1, 2], v) AND v NOT IN (1, 2))", values, 2),
        ("NOT (array_has([1, 2], v) AND array_has([3, 4], v))", values, 2),
        ("a IN (b, 7) AND a IN (c, 8)", columns, 1),
        ("a IN (b, 7) AND a NOT IN (c, 7)", columns, 0),
        ("a NOT IN (b, 7) OR a NOT IN (c, 8)", columns, 1),
        ("a IN (b, NULL) AND a IN (c, NULL)", columns, 1),
        ("NOT (a IN (b, 7) AND a IN (c, 8))", columns, 1),
    ] {
        let sql = format!("SELECT count(*) {from} WHERE {condition}");
        assert_eq!(column(&engine, &sql).await, [expected], "{sql}");
    }
    let selected = format!("SELECT v IN (1, 2) AND v IN (3, 4) {values} WHERE v IS NULL");
    assert_eq!(column(&engine, &selected).await, [Json::Null]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lead_and_lag_find_values_beyond_nulls() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    let of = async |call: &str, rest: &str| {
        let sql = format!(
            "SELECT {call} OVER (ORDER BY k) AS v FROM (VALUES (1, 10), (2, NULL), (3, NULL), (4, 40), (5, NULL), (6, 60), \
             (7, 70)) AS t(k, v) ORDER BY k {rest}"
        );
        text(&engine, &sql)
            .await
            .replace("\"\"", "-")
            .split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(of("lead(v, 1) IGNORE NULLS", "").await, "40 40 40 60 60 70 -");
    assert_eq!(of("lead(v, 2) IGNORE NULLS", "").await, "60 60 60 70 70 - -");
    assert_eq!(of("lead(v, 2 IGNORE NULLS)", "").await, "60 60 60 70 70 - -");
    assert_eq!(of("lead(v, 2, 0) IGNORE NULLS", "").await, "60 60 60 70 70 0 0");
    assert_eq!(of("lag(v, 2) IGNORE NULLS", "").await, "- - - - 10 10 40");
    assert_eq!(of("lag(v, -2) IGNORE NULLS", "").await, "60 60 60 70 70 - -");
    // A LIMIT cuts no rows that are looked for.
    assert_eq!(of("lead(v, 2) IGNORE NULLS", "LIMIT 2").await, "60 60");
    assert_eq!(of("lead(v, 3)", "LIMIT 1").await, "40");
    assert_eq!(of("lag(v, -3)", "LIMIT 1").await, "40");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zeros_are_equal_and_nan_is_above_all_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    // The panic of an aggregation for the first values.
    let first = "SELECT DISTINCT value AS v FROM tags WHERE value IS NOT NULL ORDER BY value DESC LIMIT 2";
    assert_eq!(text(&engine, first).await, "v\nNaN\ninf\n");
    let last = "SELECT DISTINCT value AS v FROM tags WHERE value < 2 ORDER BY value DESC LIMIT 4";
    assert_eq!(text(&engine, last).await, "v\n1.5\n1.0\n0.25\n0.0\n");
    let groups = "SELECT tag, max(value) AS m FROM tags WHERE value_int IS NULL AND value IS NOT NULL GROUP BY tag ORDER BY m DESC LIMIT 1";
    assert_eq!(text(&engine, groups).await, "tag,m\nd2,NaN\n");
    for (sql, expected) in [
        ("SELECT count(DISTINCT value) FROM tags WHERE value = 0", json!(1)),
        (
            "SELECT count(DISTINCT value) OVER () FROM tags WHERE value = 0 LIMIT 1",
            json!(1),
        ),
        (
            "SELECT avg(DISTINCT v) FROM (VALUES (0.0), (-0.0), (3.0)) AS t(v)",
            json!(1.5),
        ),
        ("SELECT count(*) FROM tags WHERE value IN (-0.0, 7.5)", json!(2)),
        ("SELECT count(*) FROM tags WHERE value NOT IN (0.0, 7.5)", json!(12)),
        (
            "SELECT count(*) FROM tags WHERE nullif(value, 0.0) IS NULL AND value IS NOT NULL",
            json!(2),
        ),
        (
            "SELECT max(n) FROM (SELECT count(*) OVER (PARTITION BY value) AS n FROM tags WHERE value = 0)",
            json!(2),
        ),
        (
            "SELECT max(n) FROM (SELECT rank() OVER (ORDER BY value) AS n FROM tags WHERE value = 0)",
            json!(1),
        ),
        (
            "SELECT count(*) FROM tags a JOIN tags b ON a.value = b.value AND a.source = b.source WHERE a.value = 0",
            json!(4),
        ),
        ("SELECT array_has([0.0, 1.5], -0.0)", json!(true)),
        ("SELECT count(*) FROM tags WHERE array_has([0.0], value)", json!(2)),
        ("SELECT count(*) FROM tags WHERE array_has([value], 0.0)", json!(2)),
        ("SELECT array_position([1.5, 0.0], -0.0)", json!(2)),
        ("SELECT array_length(array_distinct([0.0, -0.0, 1.5]))", json!(2)),
        ("SELECT array_length(array_remove_all([0.0, -0.0, 1.5], 0.0))", json!(1)),
        ("SELECT array_has_any([0.0], [-0.0])", json!(true)),
        ("SELECT array_has_all([[0.0]], [[-0.0]])", json!(true)),
        (
            "SELECT count(DISTINCT [v]) FROM (VALUES (0.0), (-0.0)) AS t(v)",
            json!(1),
        ),
        ("SELECT max(value) FROM tags", json!("NaN")),
        ("SELECT min(value) FROM tags", json!("-Infinity")),
        (
            "SELECT count(*) FROM tags x WHERE EXISTS (SELECT 1 FROM (VALUES (-0.0), (1.5)) AS y(v) WHERE y.v = x.value)",
            json!(3),
        ),
        (
            "SELECT count(*) FROM tags x WHERE NOT EXISTS (SELECT 1 FROM (VALUES (0.0), (1.5)) AS y(v) WHERE y.v = x.value) AND value = 0",
            json!(0),
        ),
        (
            "SELECT count(*) FROM (SELECT -0.0 AS v, 1 AS w INTERSECT SELECT 0.0, 1)",
            json!(1),
        ),
        (
            "SELECT count(*) FROM (SELECT -0.0 AS v, 1 AS w EXCEPT SELECT 0.0, 1)",
            json!(0),
        ),
        // The sign of a computed NaN.
        ("SELECT count(*) FROM tags WHERE (value - value) > 5", json!(3)),
        (
            "SELECT count(DISTINCT value - value) FROM tags WHERE value IS NOT NULL",
            json!(2),
        ),
        ("SELECT max(value - value) FROM tags", json!("NaN")),
        (
            "SELECT count(*) FROM (SELECT DISTINCT value - value FROM tags WHERE value > 6 OR value < -2)",
            json!(2),
        ),
        // By group, where the library starts with finite numbers.
        (
            "SELECT min(value) FROM tags WHERE value = cast('Infinity' AS double) GROUP BY tag",
            json!("Infinity"),
        ),
        (
            "SELECT max(value) FROM tags WHERE value = cast('-Infinity' AS double) GROUP BY tag",
            json!("-Infinity"),
        ),
        (
            "SELECT max(value) FROM tags WHERE value_int IS NULL GROUP BY unit",
            json!("NaN"),
        ),
        ("SELECT min(value) FROM tags WHERE tag = 'd2' GROUP BY tag", json!(0.25)),
        (
            "SELECT max(cast(value AS float)) FROM tags WHERE tag = 'd1' GROUP BY tag",
            json!(7.0),
        ),
    ] {
        assert_eq!(column(&engine, sql).await.first(), Some(&expected), "{sql}");
    }
    // Keys of a sort after the doubles.
    let sorted = "SELECT k FROM (VALUES (0.0, 1), (-0.0, 2), (0.0, 3)) AS t(v, k) ORDER BY v, k";
    assert_eq!(column(&engine, sorted).await, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn percentiles_are_interpolated_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    let values =
        "FROM (VALUES ('a', 1000000.0), ('a', 2000000.0), ('a', 4000000.0), ('b', 8.0), ('b', NULL)) AS t(g, v)";
    let percentile = |p: &str, order: &str| format!("percentile_cont({p}) WITHIN GROUP (ORDER BY v {order})");
    let only = |p: &str, order: &str| format!("SELECT {} {values} WHERE g = 'a'", percentile(p, order));
    assert_eq!(column(&engine, &only("0.123456789", "")).await, [1_246_913.578]);
    assert_eq!(column(&engine, &only("0.123456789", "DESC")).await, [3_506_172.844]);
    assert_eq!(column(&engine, &only("0", "")).await, [1_000_000.0]);
    assert_eq!(column(&engine, &only("1", "")).await, [4_000_000.0]);
    let grouped = format!("SELECT {} {values} GROUP BY g ORDER BY g", percentile("0.75", ""));
    assert_eq!(column(&engine, &grouped).await, [3_000_000.0, 8.0]);
    let sliding = "SELECT percentile_cont(v, 0.5) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS p, \
                   percentile_cont(v, 1.0) OVER (ORDER BY k) AS q FROM (VALUES (1, 5.0), (2, -0.0), (3, 7.0), (4, NULL), (5, 1.0)) AS t(k, v) ORDER BY k";
    assert_eq!(
        text(&engine, sliding).await,
        "p,q\n2.5,5.0\n5.0,5.0\n3.5,7.0\n4.0,7.0\n1.0,7.0\n"
    );
    let distinct = "SELECT percentile_cont(DISTINCT v, 0.5) FROM (VALUES (1), (1), (1), (4)) AS t(v)";
    assert_eq!(column(&engine, distinct).await, [2.5]);
    let wrong = error(&engine, &only("1.5", "")).await;
    assert!(wrong.message.contains("is not from 0 to 1"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patterns_of_the_standard_are_understood() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    for (condition, expected) in [
        ("tag SIMILAR TO '%x%'", 1),
        ("tag SIMILAR TO '(d|i)_'", 14),
        ("tag NOT SIMILAR TO 'd_'", 6),
        ("tag SIMILAR TO 'd'", 0),
        ("tag SIMILAR TO 'd#_' ESCAPE '#'", 0),
        ("tag SIMILAR TO NULL", 0),
        // These bind closer than AND.
        ("tag = 'x' IS DISTINCT FROM true AND false", 0),
        ("value_type IS NOT DISTINCT FROM 'string' AND tag IS NOT NULL", 1),
    ] {
        let sql = format!("SELECT count(*) FROM tags WHERE {condition}");
        assert_eq!(column(&engine, &sql).await, [expected], "{condition}");
    }
    let refused = error(&engine, "SELECT count(*) FROM tags WHERE tag SIMILAR TO '[a'").await;
    assert!(refused.message.contains("has a [ without its ]"), "{refused}");
    let refused = error(&engine, "SELECT count(*) FROM tags WHERE tag SIMILAR TO source").await;
    assert!(refused.message.contains("a text in quotes"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_one_name_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = odd_values(folder.path()).await;
    let both = "FROM tags a JOIN tags b ON a.tag = b.tag AND a.value_text = b.value_text";
    for (select, expected) in [
        ("a.tag, b.tag", json!([{"tag": "x", "tag_1": "x"}])),
        (
            "a.tag, b.tag, b.value_text AS tag_1",
            json!([{"tag": "x", "tag_2": "x", "tag_1": "x"}]),
        ),
        ("count(*), count(*)", json!([{"count(*)": 1, "count(*)_1": 1}])),
        ("a.tag, cast(a.tag AS varchar)", json!([{"tag": "x", "tag_1": "x"}])),
        ("1 AS n, 2 AS n", json!([{"n": 1, "n_1": 2}])),
    ] {
        assert_eq!(
            json_rows(&engine, &format!("SELECT {select} {both}")).await,
            expected,
            "{select}"
        );
    }
    let key =
        "SELECT value_int, cast(value_int AS varchar) FROM tags WHERE value_int > 0 GROUP BY 1, 2 ORDER BY 2 LIMIT 2";
    assert_eq!(
        json_rows(&engine, key).await,
        json!([{"value_int": 1, "value_int_1": "1"}, {"value_int": 5, "value_int_1": "5"}])
    );
    for (sql, expected) in [
        (
            "SELECT cast(value_int AS double) FROM tags WHERE value_int IS NOT NULL ORDER BY cast(value_int AS varchar) LIMIT 2",
            json!([-1.0, -9_223_372_036_854_775_808.0]),
        ),
        (
            "SELECT cast(value_int AS varchar) FROM tags WHERE value_int IS NOT NULL ORDER BY value_int / 2 LIMIT 1",
            json!(["-9223372036854775808"]),
        ),
        (
            "SELECT DISTINCT cast(value_int AS varchar) FROM tags WHERE value_int > 0 ORDER BY cast(value_int AS varchar) LIMIT 2",
            json!(["1", "5"]),
        ),
        (
            "SELECT value_int::varchar FROM tags WHERE value_int > 0 GROUP BY value_int, value_int::varchar ORDER BY value_int LIMIT 2",
            json!(["1", "5"]),
        ),
    ] {
        assert_eq!(Json::from(column(&engine, sql).await), expected, "{sql}");
    }
    let twice = json_rows(&engine, "SELECT *, tag FROM tags WHERE tag = 'x'").await;
    assert_eq!((&twice[0]["tag"], &twice[0]["tag_1"]), (&json!("x"), &json!("x")));
    let all = json_rows(&engine, &format!("SELECT a.*, b.* {both}")).await;
    let row = all[0].as_object().unwrap();
    assert_eq!((&row["value_text"], &row["value_text_1"]), (&json!("x"), &json!("x")));
    let answer = engine.execute(&format!("SELECT a.*, b.* {both}")).await.unwrap();
    assert_eq!(row.len(), answer.schema.fields().len(), "no key is there twice");
    assert!(
        !format!("{:?}", answer.schema).contains("View"),
        "answers have no views"
    );
    let nested = "SELECT l.time, t.time FROM tags l JOIN tags t ON l.tag = t.tag AND l.value_int = t.value_int ORDER BY time_1 LIMIT 1";
    assert_eq!(
        json_rows(&engine, nested).await,
        json!([{"time": "2031-05-06T07:08:09Z", "time_1": "2031-05-06T07:08:09Z"}])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_stay_on_their_side_of_a_join() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let writer = filled(folder.path()).await;
    append(&writer, vec![sample("only", 9, Value::text("x"))]).await;
    let right = "SELECT y.value_text, count(*) AS n FROM tags x RIGHT JOIN tags y ON x.tag = y.tag AND x.value_int = y.value_int + 5000 \
                 WHERE x.value_text IS NULL GROUP BY 1 ORDER BY 1";
    assert_eq!(text(&engine, right).await, "value_text,n\nx,1\n,3000\n");
    let left = "SELECT y.tag, count(*) AS n FROM tags y LEFT JOIN tags x ON x.tag = y.tag AND x.value_int = y.value_int \
                WHERE x.tag IS NULL GROUP BY 1";
    assert_eq!(text(&engine, left).await, "tag,n\nonly,1\n");
    for _ in 0..20 {
        // The scans ask the operators for their filters at any moment.
        let sorted = "SELECT tag FROM tags ORDER BY CASE WHEN tag LIKE 't%' THEN value_int ELSE tag_id END DESC NULLS LAST, value_int LIMIT 1";
        text(&engine, sorted).await;
        let extremes = "SELECT max(tag) AS t, max(value_int * -1) AS m FROM tags";
        assert_eq!(text(&engine, extremes).await, "t,m\nt9,0\n");
    }
}

/// A sample with an attribute.
fn with_duration(seconds: i64, duration: Option<&str>) -> Message {
    let entries = [("umh_topic", "t"), ("dur", duration.unwrap_or_default())];
    let entries = entries.into_iter().take(1 + usize::from(duration.is_some()));
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    let at = Ticks((START + seconds) * 10_000_000);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: 0,
    };
    Message::new(
        Payload::Value(Value::I64(seconds)),
        Metadata::stamped(Arc::new(map), stamps),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_are_numbers_where_numbers_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let writer = writer(folder.path()).await;
    let durations = [Some("9"), Some("100"), Some("-1"), Some("odd"), Some("1.5"), None];
    let samples = durations.iter().enumerate();
    append(
        &writer,
        samples
            .map(|(i, duration)| with_duration(i as i64, *duration))
            .collect(),
    )
    .await;
    for (of, expected) in [
        ("count(*) filter (where attr_dur > 2)", json!(2)),
        ("count(*) filter (where 2 < attr_dur)", json!(2)),
        ("count(*) filter (where attr('dur') <= 1.5)", json!(2)),
        ("count(*) filter (where attr_dur = 9)", json!(1)),
        ("count(*) filter (where attr_dur <> 9)", json!(3)),
        ("count(*) filter (where attr_dur between -1 and 9)", json!(3)),
        ("count(*) filter (where attr_dur in (9, 100))", json!(2)),
        ("count(*) filter (where attr_dur = '9')", json!(1)),
        ("count(*) filter (where attr_dur * 2 > 100)", json!(1)),
        ("count(*) filter (where -attr_dur = 1)", json!(1)),
        ("sum(attr_dur)", json!(109.5)),
        ("avg(attr('dur'))", json!(27.375)),
        ("median(attr_dur)", json!(5.25)),
        ("percentile_cont(1) within group (order by attr_dur)", json!(100.0)),
        ("max(try_cast(attr_dur as double))", json!(100.0)),
        ("count(*) filter (where 5 between attr_dur and 9)", json!(2)),
        ("count(*) filter (where 100 in (attr_dur, 7))", json!(1)),
        ("count(*) filter (where attr_dur in (9, null))", json!(1)),
        (
            "count(*) filter (where case attr_dur when 9 then true when 100 then true else false end)",
            json!(2),
        ),
        // Numbers are ordered by their value and before other texts.
        ("max(attr_dur)", json!("odd")),
        ("min(attr_dur)", json!("-1")),
        ("max(attr_dur) filter (where attr_dur <> 'odd')", json!("100")),
        ("max(distinct attr('dur')) filter (where attr_dur < 50)", json!("9")),
    ] {
        assert_eq!(
            column(&engine, &format!("SELECT {of} FROM tags")).await,
            [expected],
            "{of}"
        );
    }
    for (condition, expected) in [
        ("attr_dur IN (SELECT n FROM (VALUES (9), (100), (5)) AS v(n))", 2),
        ("value_int IN (SELECT attr_dur FROM tags)", 0),
        ("value_int + 8 IN (SELECT attr('dur') FROM tags)", 1),
        ("value_int + 8 NOT IN (SELECT attr_dur FROM tags WHERE attr_dur > 0)", 5),
    ] {
        let sql = format!("SELECT count(*) FROM tags WHERE {condition}");
        assert_eq!(column(&engine, &sql).await, [expected], "{condition}");
    }
    let windows = "SELECT max(attr_dur) OVER (ORDER BY value_int ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS m, \
                   min(attr_dur) OVER (PARTITION BY unit) AS n FROM tags WHERE attr_dur <> 'odd' ORDER BY value_int";
    assert_eq!(text(&engine, windows).await, "m,n\n9,-1\n100,-1\n100,-1\n1.5,-1\n");
    let grouped = "SELECT value_int > 2 AS g, max(attr_dur), min(attr('dur')) AS m FROM tags GROUP BY 1 ORDER BY 1";
    assert_eq!(
        text(&engine, grouped).await,
        "g,max(tags.attr_dur),m\nfalse,100,-1\ntrue,odd,1.5\n"
    );
    let joined = "SELECT a.attr('dur'), b.attr('dur') FROM tags a JOIN tags b ON a.attr('dur') = b.attr('dur') WHERE a.value_int = b.value_int ORDER BY a.value_int LIMIT 1";
    assert_eq!(
        json_rows(&engine, joined).await,
        json!([{"attr('dur')": "9", "attr('dur')_1": "9"}])
    );
    // The only table with attributes need not be named.
    let beside = "SELECT count(*) FROM tags JOIN (VALUES (9), (100)) AS v(n) ON attr('dur') = v.n";
    assert_eq!(column(&engine, beside).await, [2]);
}
