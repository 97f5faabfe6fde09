//! Runs generated queries over the same Delta tables with DuckDB and with Thalweg. The answers must be equal.
//!
//! `THALWEG_SQL_QUERIES=10000` runs that many queries, `THALWEG_SIM_SEED=7` begins with another seed. Each query has its own
//! seed, which a failure names.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/python/ask.rs"]
mod ask;
#[path = "generated/queries.rs"]
mod queries;

use serde_json::{Value, json};
use thalweg_query::{Engine, QueryMetrics, QueryOptions, print};

use ask::ask;
use queries::GeneratedQuery;

const MAKE: &str = "../../tests/python/make_generated.py";
const DUCKDB: &str = "../../tests/python/ask_duckdb.py";
const QUERIES: u64 = 400;
/// Of a hundred queries, so many may be refused by DuckDB (its integers are narrower), or by both.
const REFUSED_PERCENT_MAX: usize = 15;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_queries_have_the_answers_of_duckdb() {
    let folder = tempfile::tempdir().unwrap();
    let lake = thalweg_lake::folder(folder.path());
    std::fs::create_dir_all(&lake).unwrap();
    let seed = number("THALWEG_SIM_SEED", 1);
    ask(MAKE, &[json!({"lake": lake, "seed": seed})]);
    let queries: Vec<GeneratedQuery> = (0..number("THALWEG_SQL_QUERIES", QUERIES))
        .map(|at| GeneratedQuery::new(seed.wrapping_mul(1_000_003).wrapping_add(at)))
        .collect();
    let mut questions = vec![json!(lake)];
    questions.extend(queries.iter().map(|query| json!(query.sql)));
    let mut answers = tokio::task::spawn_blocking(move || ask(DUCKDB, &questions))
        .await
        .unwrap();
    assert_eq!(answers.remove(0), json!(["a", "b"]));

    let engine = Engine::open(folder.path(), QueryOptions::default(), QueryMetrics::unregistered()).unwrap();
    let (mut refused, mut different) = (0, Vec::new());
    for (query, theirs) in queries.iter().zip(&answers) {
        match (own(&engine, query).await, rows(query, theirs)) {
            (Ok(own), Ok(theirs)) if own == theirs => {}
            (Ok(own), Ok(theirs)) => different.push(difference(query, &own, &theirs)),
            // DuckDB adds in 128 bits.
            (Err(error), _) if error.contains("out of the range") => refused += 1,
            (_, Err(_)) => refused += 1,
            (Err(error), Ok(_)) => different.push(format!("{}\n  refused: {error}", query.named())),
        }
    }
    assert!(
        refused * 100 <= queries.len() * REFUSED_PERCENT_MAX,
        "{refused} of {} queries were refused",
        queries.len()
    );
    assert!(
        different.is_empty(),
        "{} of {} queries differ:\n{}",
        different.len(),
        queries.len(),
        different.join("\n")
    );
}

async fn own(engine: &Engine, query: &GeneratedQuery) -> Result<Vec<String>, String> {
    let answer = engine.execute(&query.sql).await.map_err(|error| error.to_string())?;
    let names: Vec<String> = answer
        .schema
        .fields()
        .iter()
        .map(|field| field.name().clone())
        .collect();
    let mut text = Vec::new();
    print::json(answer, &mut text)
        .await
        .map_err(|error| error.to_string())?;
    let rows: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let rows = rows
        .iter()
        .map(|row| names.iter().map(|name| row[name].clone()).collect());
    Ok(compared(query, rows))
}

fn rows(query: &GeneratedQuery, answer: &Value) -> Result<Vec<String>, String> {
    match answer["rows"].as_array() {
        Some(rows) => Ok(compared(query, rows.iter().map(|row| row.as_array().unwrap().clone()))),
        None => Err(answer["error"].to_string()),
    }
}

/// Rows as texts, in their order if the query gives one.
fn compared(query: &GeneratedQuery, rows: impl Iterator<Item = Vec<Value>>) -> Vec<String> {
    let text = |row: Vec<Value>| row.iter().map(cell).collect::<Vec<_>>().join(" | ");
    let mut rows: Vec<String> = rows.map(text).collect();
    if !query.is_ordered {
        rows.sort();
    }
    rows
}

/// A number is the same whether it is an integer or a double; doubles have nine digits, as sums depend on the order.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Number(number) if number.is_f64() => double(number.as_f64().unwrap()),
        Value::Array(items) => format!("[{}]", items.iter().map(cell).collect::<Vec<_>>().join(", ")),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn double(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    // Two sums on either side of a half are rounded to the same digits.
    let rounded: f64 = format!("{:.8e}", value * (1.0 + 1e-11)).parse().unwrap();
    match rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        // Without the sign of -0.0.
        true => format!("{:.0}", rounded + 0.0),
        false => rounded.to_string(),
    }
}

fn difference(query: &GeneratedQuery, own: &[String], theirs: &[String]) -> String {
    let at = own.iter().zip(theirs).position(|(own, theirs)| own != theirs);
    let at = at.unwrap_or(own.len().min(theirs.len()));
    let shown = |rows: &[String]| {
        rows.get(at)
            .cloned()
            .unwrap_or_else(|| format!("only {} rows", rows.len()))
    };
    format!(
        "{}\n  row {at}: {}\n  duckdb: {}",
        query.named(),
        shown(own),
        shown(theirs)
    )
}
