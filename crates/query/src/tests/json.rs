//! JSON in texts, lists and maps: functions, operators, their order among other operators, and texts that are no JSON.

use super::values::{column, json_rows};
use super::*;

/// One text for each row, of which some are no JSON.
async fn bodies(data_dir: &Path) -> Writer {
    let writer = writer(data_dir).await;
    let bodies = [
        r#"{"user": "ann", "n": 9, "ok": true, "tags": ["a", "b"], "deep": {"x": [1, {"y": "z"}]}, "none": null}"#,
        r#"{"user": "bob", "n": 100, "ok": false, "tags": [], "big": 9223372036854775807}"#,
        r#"{"user": "ann", "n": "odd", "tags": ["b", 1.5]}"#,
        r#"{"user": "cut", "n": 5"#,
        "plain text",
        r#"[10, 20, 30]"#,
    ];
    let samples = bodies.iter().enumerate();
    let samples = samples.map(|(i, body)| sample(&format!("t{i}"), i as i64, Value::text(*body)));
    append(&writer, samples.collect()).await;
    writer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_read_values_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = bodies(folder.path()).await;
    let none = Json::Null;
    for (call, expected) in [
        (
            "json_get(value_text, 'user')",
            json!(["\"ann\"", "\"bob\"", "\"ann\"", null, null, null]),
        ),
        (
            "json_get(value_text, 'none')",
            json!(["null", null, null, null, null, null]),
        ),
        (
            "json_as_text(value_text, 'none')",
            json!([null, null, null, null, null, null]),
        ),
        (
            "json_as_text(value_text, 'n')",
            json!(["9", "100", "odd", null, null, null]),
        ),
        (
            "json_get_str(value_text, 'n')",
            json!([null, null, "odd", null, null, null]),
        ),
        ("json_get_int(value_text, 'n')", json!([9, 100, null, null, null, null])),
        (
            "json_get_int(value_text, 'big')",
            json!([null, "9223372036854775807", null, null, null, null]),
        ),
        (
            "json_get_float(value_text, 'tags', 1)",
            json!([null, null, 1.5, null, null, null]),
        ),
        (
            "json_get_bool(value_text, 'ok')",
            json!([true, false, null, null, null, null]),
        ),
        (
            "json_get_array(value_text, 'tags')",
            json!([["\"a\"", "\"b\""], [], ["\"b\"", "1.5"], null, null, null]),
        ),
        (
            "json_get_json(value_text, 'deep', 'x', 1)",
            json!(["{\"y\": \"z\"}", null, null, null, null, null]),
        ),
        (
            "json_get_str(value_text, 'deep', 'x', -1, 'y')",
            json!(["z", null, null, null, null, null]),
        ),
        (
            "json_get_int(value_text, -2)",
            json!([null, null, null, null, null, 20]),
        ),
        ("json_length(value_text)", json!([6, 5, 3, null, null, 3])),
        ("json_length(value_text, 'tags')", json!([2, 0, 2, null, null, null])),
        (
            "json_object_keys(value_text, 'deep')",
            json!([["x"], null, null, null, null, null]),
        ),
        (
            "json_contains(value_text, 'tags', 0)",
            json!([true, false, true, null, null, false]),
        ),
        (
            "json_has_key(value_text, 'ok')",
            json!([true, true, false, null, null, false]),
        ),
        // A path for each row.
        (
            "json_get_int(value_text, tag_id - tag_id)",
            json!([null, null, null, null, null, 10]),
        ),
        (
            "json_as_text(value_text, right(tag, 1))",
            json!([null, null, null, null, null, null]),
        ),
        (
            "json_as_text('[5, 6, 7, 8, 9, 10]', right(tag, 1))",
            json!(["5", "6", "7", "8", "9", "10"]),
        ),
        (
            "json_as_text(value_text, case when tag < 't2' then 'user' else 'n' end)",
            json!(["ann", "bob", "odd", null, null, null]),
        ),
        (
            "json_get(value_text, null)",
            json!([null, null, null, null, null, null]),
        ),
    ] {
        let sql = format!("SELECT {call} AS v FROM tags ORDER BY tag");
        assert_eq!(Json::from(column(&engine, &sql).await), expected, "{call}");
    }
    for (constant, expected) in [
        ("json_get_int('{\"a\": [1, 2]}', 'a', 1)", json!(2)),
        ("json_get(null, 'a')", none.clone()),
        ("to_json(cast(null as int[]))", none),
        ("to_json([1, null, 2])", json!("[1,null,2]")),
        ("to_json({'a': 'x\"'})", json!("{\"a\":\"x\\\"\"}")),
        ("to_json('x')", json!("\"x\"")),
        ("json_length([1, 2, 3])", json!(3)),
        ("json_get_int({'a': {'b': 7}}, 'a', 'b')", json!(7)),
        ("'{\"a\": {\"b\": [5]}}' #> '{a,b,0}'", json!("5")),
        ("'{\"a\": {\"b\": [\"c\"]}}' #>> ['a', 'b', '0']", json!("c")),
    ] {
        assert_eq!(
            column(&engine, &format!("SELECT {constant}")).await,
            [expected],
            "{constant}"
        );
    }
    for (sql, part) in [
        ("SELECT json_get(5, 'a')", "no text with JSON"),
        ("SELECT json_get('{}', 1.5)", "texts and whole numbers"),
        ("SELECT json_contains('{}')", "takes the name"),
        ("SELECT json_get()", "takes a text with JSON"),
        ("SELECT '{}' #> 'a'", "write a path as"),
    ] {
        let refused = error(&engine, sql).await;
        assert!(refused.message.contains(part), "{sql}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_of_json_stand_where_values_may() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let _writer = bodies(folder.path()).await;
    for (condition, expected) in [
        ("value_text ->> 'user' = 'ann'", 2),
        ("'ann' = value_text ->> 'user'", 2),
        ("value_text ->> 'user' = 'ann' AND value_text -> 'n' > 2", 1),
        ("value_text -> 'n' > 2", 2),
        ("value_text -> 'n' BETWEEN 9 AND 50", 1),
        ("value_text -> 'n' IN (9, 100)", 2),
        ("value_text ->> 'user' LIKE 'a%'", 2),
        ("value_text ->> 'user' IS NULL", 3),
        ("value_text -> 'deep' -> 'x' -> 1 ->> 'y' = 'z'", 1),
        ("value_text ->> 'user' || '!' = 'ann!'", 2),
        ("value_text #>> '{deep,x,1,y}' = 'z'", 1),
        ("value_text ? 'ok'", 2),
        ("NOT value_text ? 'ok'", 2),
        ("value_text -> 'tags' ? 'b'", 2),
        ("value_text -> 0 = 10", 1),
        ("value_text -> -1 = 30", 1),
        ("(value_text ->> 'n') * 2 = 18", 1),
        ("overflow -> 'attr.tmp_note' = 'n'", 6),
        ("overflow ->> 'attr.none' IS NULL", 6),
        ("overflow ? 'attr.tmp_note'", 6),
        ("[5, 6] -> 1 = 6 AND [5, 6] -> -2 = 5", 6),
        ("[5, 6] ->> 1 = '6'", 6),
        ("['a', 'b'] ? 'b'", 6),
        ("{'a': 1} -> 'a' = 1", 6),
        ("{'a': [1]} ->> 'a' = '[1]'", 6),
    ] {
        let sql = format!("SELECT count(*) FROM tags WHERE {condition}");
        assert_eq!(column(&engine, &sql).await, [expected], "{condition}");
    }
    let users = "SELECT value_text ->> 'user', count(*), sum(value_text ->> 'n') AS sum, max(tag) AS max FROM tags WHERE value_text ? 'user' \
                 GROUP BY value_text ->> 'user' ORDER BY value_text ->> 'user'";
    assert_eq!(
        json_rows(&engine, users).await,
        json!([
            {"value_text ->> 'user'": "ann", "count(*)": 2, "sum": 9.0, "max": "t2"},
            {"value_text ->> 'user'": "bob", "count(*)": 1, "sum": 100.0, "max": "t1"},
        ])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_of_any_depth_and_length_is_read_in_time_and_operators_do_not_multiply() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(folder.path(), QueryOptions::default());
    let writer = writer(folder.path()).await;
    let depth = 20_000;
    let deep = format!("{}7{}", "{\"a\":[".repeat(depth), "]}".repeat(depth));
    append(&writer, vec![sample("deep", 1, Value::text(deep.as_str()))]).await;
    assert_eq!(column(&engine, "SELECT json_length(value_text) FROM tags").await, [1]);
    assert_eq!(
        column(
            &engine,
            "SELECT json_length(value_text, 'a', 0, 'a', -1, 'a') FROM tags"
        )
        .await,
        [1]
    );
    let inner = "SELECT length(value_text -> 'a') FROM tags";
    assert_eq!(column(&engine, inner).await, [deep.len() - 6]);
    let steps = vec!["'a'"; 65].join(", ");
    let refused = error(&engine, &format!("SELECT json_get(value_text, {steps}) FROM tags")).await;
    assert!(refused.message.contains("at most 64 steps"), "{refused}");
    // Each operator is planned once, however many there are and wherever they stand.
    let chain = |operators: usize| format!("value_text{}", " -> 'a' -> 0".repeat(operators / 2));
    for sql in [
        format!("SELECT {} AS v FROM tags", chain(200)),
        format!("SELECT count(*) FROM tags WHERE {} ->> 'a' = 'x'", chain(200)),
        format!("SELECT sum({}) FROM tags", chain(100)),
    ] {
        assert!(engine.execute(&sql).await.is_ok(), "{sql:.100}");
    }
    assert_eq!(
        error(&engine, &format!("SELECT {}", chain(2_000))).await.code(),
        "sql.parse"
    );
    let nested = (0..30).fold("value_text".to_owned(), |inner, _| format!("({inner} ->> 'a')"));
    assert!(engine.execute(&format!("SELECT {nested} FROM tags")).await.is_ok());
}
