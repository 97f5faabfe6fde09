//! Checks the errors for results that would be too large: they name the function and a remedy.

use crate::bounded::function_list::{self, ResultBound};
use crate::{Engine, QueryMetrics, QueryOptions};

/// The smallest memory that a configuration allows. A result may take an eighth of it.
const MEMORY: usize = 8 << 20;

/// A function, a call of it, and the size in its error. The rest of the sentence is the same for all.
const TOO_LARGE: &[(&str, &str, &str)] = &[
    ("repeat", "repeat('x', 2000000)", "2000016 bytes"),
    ("lpad", "lpad('x', 2000000, 'y')", "4000017 bytes"),
    ("rpad", "rpad('x', 2000000)", "4000016 bytes"),
    ("array_repeat", "array_repeat('x', 200000)", "4200016 bytes"),
    ("array_resize", "array_resize([1], 200000)", "3200028 bytes"),
    (
        "replace",
        "replace(repeat('x', 10000), 'x', repeat('y', 1000))",
        "10010016 bytes",
    ),
    (
        "regexp_replace",
        "regexp_replace(repeat('x', 10000), '', repeat('y', 1000), 'g')",
        "15011016 bytes",
    ),
    (
        "regexp_match",
        "regexp_match(repeat('x', 500000), '(x)(x)(x)')",
        "2000080 bytes",
    ),
    (
        "concat",
        "concat(repeat('x', 600000), repeat('y', 600000))",
        "1200024 bytes",
    ),
    ("a || b", "repeat('x', 600000) || repeat('y', 600000)", "1200024 bytes"),
    (
        "concat_ws",
        "concat_ws(repeat(',', 500000), 'a', 'b', 'c', 'd')",
        "3000036 bytes",
    ),
    (
        "array_to_string",
        "array_to_string(range(0, 10000), repeat(',', 1000))",
        "10480020 bytes",
    ),
    (
        "string_to_array",
        "string_to_array(repeat('x,', 100000), ',')",
        "6600048 bytes",
    ),
    (
        "array_replace",
        "array_replace([repeat('x', 600000)], 'x', repeat('y', 600000))",
        "1800045 bytes",
    ),
    (
        "array_replace_all",
        "array_replace_all(array_repeat('x', 1000), 'x', repeat('y', 10000))",
        "10019045 bytes",
    ),
    (
        "array_replace_n",
        "array_replace_n(array_repeat('x', 1000), 'x', repeat('y', 500000), 5)",
        "3005073 bytes",
    ),
    (
        "arrays_zip",
        "arrays_zip(range(0, 20000), range(0, 20000))",
        "1600016 bytes",
    ),
    (
        "to_char",
        "to_char(timestamp '2031-05-06T07:08:09', repeat('%Y', 50000))",
        "2000016 bytes",
    ),
    (
        "levenshtein",
        "levenshtein(repeat('x', 100000), repeat('y', 100000))",
        "157850256 bytes",
    ),
    ("range", "range(0, 1000000)", "8000024 bytes"),
    (
        "generate_series",
        "generate_series(0, 9000000000000000000)",
        "more bytes than can be counted",
    ),
    (
        "struct",
        "struct(repeat('x', 600000), repeat('y', 600000))",
        "1200024 bytes",
    ),
    (
        "named_struct",
        "named_struct('a', repeat('x', 600000), 'b', repeat('y', 600000))",
        "1200058 bytes",
    ),
    (
        "make_array",
        "make_array(repeat('x', 600000), repeat('y', 600000))",
        "1200024 bytes",
    ),
    (
        "array_append",
        "array_append([repeat('x', 600000)], repeat('y', 600000))",
        "1200024 bytes",
    ),
    (
        "array_prepend",
        "array_prepend(repeat('x', 600000), [repeat('y', 600000)])",
        "1200032 bytes",
    ),
    (
        "array_concat",
        "array_concat([repeat('x', 600000)], [repeat('y', 600000)])",
        "1200032 bytes",
    ),
    (
        "array_union",
        "array_union([repeat('x', 600000)], [repeat('y', 600000)])",
        "1200032 bytes",
    ),
    ("map", "map(range(0, 70000), range(0, 70000))", "1120016 bytes"),
    ("CAST", "cast(range(0, 100000) as text)", "2500020 bytes"),
    ("json_get", "json_get(range(0, 100000))", "2500020 bytes"),
    ("json_get_json", "json_get_json(range(0, 100000))", "2500020 bytes"),
    ("json_as_text", "json_as_text(range(0, 100000))", "2500020 bytes"),
    ("json_get_str", "json_get_str(range(0, 100000))", "2500020 bytes"),
    ("json_get_array", "json_get_array(range(0, 100000))", "12500036 bytes"),
    (
        "json_object_keys",
        "json_object_keys(range(0, 100000))",
        "12500036 bytes",
    ),
    ("json_get_int", "json_get_int(range(0, 100000))", "2500020 bytes"),
    ("json_get_float", "json_get_float(range(0, 100000))", "2500020 bytes"),
    ("json_get_bool", "json_get_bool(range(0, 100000))", "2500020 bytes"),
    ("json_length", "json_length(range(0, 100000))", "2500020 bytes"),
    ("json_contains", "json_contains(range(0, 100000), 0)", "2500020 bytes"),
    ("json_has_key", "json_has_key(range(0, 100000), 'a')", "2500020 bytes"),
    ("to_json", "to_json(range(0, 100000))", "2500020 bytes"),
];

/// These return numbers of fixed width. Only their pattern can be too large.
const OF_FIXED_WIDTH: [&str; 3] = ["regexp_count", "regexp_instr", "regexp_like"];

async fn told(engine: &Engine, sql: &str) -> String {
    let answer = match engine.execute(sql).await {
        Ok(answer) => answer,
        Err(error) => return error.to_string(),
    };
    let rows: Vec<_> = futures::StreamExt::collect(answer).await;
    match rows.into_iter().find_map(Result::err) {
        Some(error) => error.to_string(),
        None => "rows".to_owned(),
    }
}

fn engine() -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let options = QueryOptions {
        memory_bytes: MEMORY,
        ..QueryOptions::default()
    };
    let engine = Engine::open(folder.path(), options, QueryMetrics::unregistered()).unwrap();
    (folder, engine)
}

#[tokio::test]
async fn each_bounded_function_is_told_with_its_size_and_the_cure() {
    let (_folder, engine) = engine();
    for (function, call, asked) in TOO_LARGE {
        let expected = format!(
            "query.too_large: {function} would make {asked} at once, and 1048576 are allowed; ask for less or raise query.memory"
        );
        let told = told(&engine, &format!("select {call}")).await;
        assert_eq!(told, expected, "{call}");
    }
}

/// Queries refused for other reasons than the size of a result.
#[tokio::test]
async fn what_cannot_be_planned_or_compiled_is_told_with_its_place_and_the_cure() {
    let (_folder, engine) = engine();
    for (sql, expected) in [
        (
            "select 'x' like repeat('_', 20000)".to_owned(),
            "query.too_complex: the pattern of LIKE has 20000 bytes, 16384 are allowed; use a shorter pattern or \
             contains(text, part)",
        ),
        (
            "select count(*) from (select unnest(range(0, 300)) v) where cast(v as text) like concat('_', v)"
                .to_owned(),
            "query.too_complex: the regular expression of LIKE is too large: the query has more than 256 different ones; use one \
             pattern for many rows",
        ),
        (
            format!(
                "select count(*) from (select 1 a) group by cube({})",
                ["a"; 11].join(", ")
            ),
            "query.too_complex: GROUP BY makes 2048 grouping sets, and 1024 are allowed; name those you need with GROUPING SETS",
        ),
        (
            format!("select 1 a order by {}", ["a"; 257].join(", ")),
            "query.too_complex: rows are sorted by 257 values, 256 are allowed; sort by those that tell rows apart",
        ),
        (
            format!("select {}1", "cast(".repeat(9)),
            "sql.parse: more than 8 of CAST, NOT, EXTRACT, TRIM and their like are nested; write casts as value::type, or \
             split it into several queries",
        ),
        (
            "select repeat('x', 900000) a, repeat('y', 900000) b, repeat('z', 900000) c".to_owned(),
            "query.too_large: a row of the answer would make 2700027 bytes at once, and 2097152 are allowed; ask for less or raise \
             query.memory",
        ),
        (
            "select arrow_cast(null, 'FixedSizeBinary(5000)')".to_owned(),
            "query.too_complex: a type whose values have 5000 bytes each is not possible here, 4096 are allowed; use one of variable \
             length",
        ),
    ] {
        assert_eq!(told(&engine, &sql).await, expected, "{sql}");
    }
}

#[test]
fn no_bounded_function_is_without_its_text() {
    let has_size = |size: &ResultBound| {
        matches!(
            size,
            ResultBound::Exact(_) | ResultBound::AtMost(_) | ResultBound::Pattern(_)
        )
    };
    let bounded = function_list::SCALAR
        .iter()
        .filter(|(_, size)| has_size(size))
        .map(|(name, _)| *name);
    let missing: Vec<&str> = bounded
        .filter(|name| !OF_FIXED_WIDTH.contains(name))
        .filter(|name| TOO_LARGE.iter().all(|(function, _, _)| function != name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
