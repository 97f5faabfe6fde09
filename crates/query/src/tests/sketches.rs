//! Tests the sketch functions with literals, without rollups.

use super::*;

/// A sketch as a literal.
fn sketch(values: impl IntoIterator<Item = f64>) -> String {
    let (mut sketch, mut bytes) = (thalweg_sketch::Sketch::default(), Vec::new());
    values.into_iter().for_each(|value| sketch.add(value));
    sketch.encode(&mut bytes);
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("X'{digits}'")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sketches_are_merged_and_have_quantiles() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    let number = |value: &str| value.parse::<f64>().unwrap_or_else(|_| panic!("{value} is no number"));
    let (low, high, none) = (
        sketch((1..=500).map(f64::from)),
        sketch((501..=1000).map(f64::from)),
        sketch([]),
    );
    let rows = format!(
        "(VALUES ('a', {low}), ('a', {high}), ('a', NULL), ('b', {high}), ('c', NULL), ('d', {none})) AS t (k, s)"
    );

    // Each row, and NULL where there is no sketch or no value.
    let each = format!("SELECT k, sketch_quantile(s, 0.5) AS q FROM {rows} ORDER BY k, q");
    let each = text(&engine, &each).await;
    let each: Vec<&str> = each.lines().skip(1).collect();
    let of_a = [each[0], each[1]].map(|line| number(line.trim_start_matches("a,")));
    assert!(
        (of_a[0] - 250.0).abs() <= 2.5 && (of_a[1] - 750.0).abs() <= 7.5,
        "{each:?}"
    );
    assert_eq!((each[2], each[4], each[5]), ("a,", "c,", "d,"), "{each:?}");

    // Groups whose partial sketches are merged; a filter; no group; ordered by the quantile.
    let groups = format!(
        "SELECT k, sketch_quantile(sketch_merge(s), 0.9) AS q, sketch_merge(s) IS NULL AS none, sketch_merge(s) FILTER (WHERE k = 'b') IS NULL AS f FROM {rows} GROUP BY k ORDER BY k"
    );
    let groups = text(&engine, &groups).await;
    let groups: Vec<Vec<&str>> = groups.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert!((number(groups[0][1]) - 900.0).abs() <= 9.0, "{groups:?}");
    assert!((number(groups[1][1]) - 950.0).abs() <= 9.5, "{groups:?}");
    assert_eq!(groups[2][1..], ["", "true", "true"], "only NULL");
    assert_eq!(groups[3][1..], ["", "false", "true"], "a sketch without values");
    let all = format!(
        "SELECT sketch_merge(s) = {} AS same FROM {rows} WHERE k = 'a'",
        sketch((1..=1000).map(f64::from))
    );
    assert_eq!(text(&engine, &all).await, "same\ntrue\n");
    // No quantile is beyond the values, although a bin stands for numbers up to 1 % away.
    let of_one = [sketch([0.503]), sketch([1001.0])];
    let ends = format!(
        "SELECT sketch_quantile(sketch_merge(s), 0) AS least, sketch_quantile(sketch_merge(s), 1) AS greatest FROM \
         (SELECT s FROM {rows} UNION ALL VALUES ({}), ({}))",
        of_one[0], of_one[1]
    );
    let ends = text(&engine, &ends).await;
    let ends: Vec<f64> = ends
        .lines()
        .skip(1)
        .flat_map(|line| line.split(',').map(number))
        .collect();
    assert!(
        (0.503..0.503 * 1.004).contains(&ends[0]) && (1001.0 / 1.004..=1001.0).contains(&ends[1]),
        "{ends:?}"
    );
    let nothing = format!("SELECT sketch_merge(s) IS NULL AS n FROM {rows} WHERE k = 'x'");
    assert_eq!(text(&engine, &nothing).await, "n\ntrue\n");

    // Many rows of a table, on several threads, in more groups than partial aggregation is worth.
    let table = format!(
        "SELECT count(*) AS groups, sum(CASE WHEN m = {low} THEN 1 ELSE 0 END) AS same FROM \
         (SELECT value_int, sketch_merge(CASE WHEN value_int % 2 = 0 THEN {low} END) AS m FROM tags GROUP BY value_int)"
    );
    assert_eq!(text(&engine, &table).await, "groups,same\n3000,1500\n");
    let table = format!(
        "SELECT tag, sketch_quantile(sketch_merge({high}), 0) AS q FROM tags GROUP BY tag ORDER BY tag LIMIT 1"
    );
    let table = text(&engine, &table).await;
    assert!(
        (number(table.lines().last().unwrap().trim_start_matches("t0,")) - 501.0).abs() <= 5.01,
        "{table}"
    );
    assert_eq!(
        text(
            &engine,
            "SELECT sketch_quantile(X'', 0.5) IS NULL AS n, sketch_quantile(NULL, 0.5) IS NULL AS m"
        )
        .await,
        "n,m\ntrue,true\n"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_sketch_is_told_with_its_function() {
    let folder = tempfile::tempdir().unwrap();
    filled(folder.path()).await;
    let engine = engine(folder.path(), QueryOptions::default());
    for (sql, expected) in [
        (
            "SELECT sketch_quantile(X'74657874', 0.5) FROM tags",
            "sketch_quantile() was given not a sketch",
        ),
        (
            "SELECT sketch_merge(X'74657874') FROM tags",
            "sketch_merge() was given not a sketch",
        ),
        (
            "SELECT tag, sketch_merge(X'74657874') FROM tags GROUP BY tag",
            "the column sketch of a rollup",
        ),
        (
            "SELECT sketch_quantile(X'', value) FROM tags WHERE value_int = 7",
            "sketch_quantile(sketch, 7): the part must be from 0 to 1",
        ),
        ("SELECT sketch_quantile(X'') FROM tags", "sketch_quantile"),
        ("SELECT sketch_merge(value) FROM tags", "sketch_merge"),
    ] {
        let error = error(&engine, sql).await;
        assert!(error.message.contains(expected), "{sql}: {error}");
    }
}
