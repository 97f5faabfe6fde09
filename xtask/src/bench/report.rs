//! Rows as a table for people and as JSON for machines.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::environment;

/// One measured operation; fields that do not apply are `None`.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub name: String,
    pub ops_per_second: f64,
    pub wall_ns_per_op: f64,
    pub cpu_ns_per_op: f64,
    pub bytes_per_op: f64,
    pub allocs_per_op: f64,
    pub p50_ns: Option<f64>,
    pub p99_ns: Option<f64>,
    /// Further results, for the JSON.
    pub more: Map<String, Value>,
}

/// The cost that a stage adds to a row: the difference of two rows.
pub struct Stage {
    pub name: &'static str,
    pub with: &'static str,
    pub without: Option<&'static str>,
}

/// Prints the separate cost of each stage, in the order of the given stages.
pub fn print_stages(rows: &[Row], stages: &[Stage]) {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    println!("\n{:<52} {:>10} {:>12} {:>10}", "stage", "CPU us", "bytes", "allocs");
    let nothing = Row::default();
    for stage in stages {
        let (Some(with), Some(without)) = (find(stage.with), stage.without.map_or(Some(&nothing), find)) else {
            continue;
        };
        println!(
            "{:<52} {:>10.2} {:>12.0} {:>10.2}",
            stage.name,
            (with.cpu_ns_per_op - without.cpu_ns_per_op) / 1e3,
            with.bytes_per_op - without.bytes_per_op,
            with.allocs_per_op - without.allocs_per_op,
        );
    }
}

pub fn print(bench: &str, rows: &[Row], folder: &Path) {
    println!(
        "\n{}\n\n{bench}: one op is one message, from input to acknowledgement, or one query (sql_*)",
        environment::text(&environment::facts(folder))
    );
    println!(
        "{:<28} {:>12} {:>10} {:>10} {:>12} {:>12} {:>10} {:>10} {:>10}",
        "row", "ops/s", "wall us", "CPU us", "per core/s", "bytes", "allocs", "p50 ms", "p99 ms"
    );
    for row in rows {
        let optional =
            |value: Option<f64>, scale: f64| value.map_or_else(|| "-".to_owned(), |v| format!("{:.3}", v / scale));
        // Some rows have no such value.
        let known = |value: f64, digits: usize| match value.is_finite() {
            true => format!("{value:.digits$}"),
            false => "-".to_owned(),
        };
        println!(
            "{:<28} {:>12.0} {:>10.2} {:>10} {:>12} {:>12} {:>10} {:>10} {:>10}",
            row.name,
            row.ops_per_second,
            row.wall_ns_per_op / 1e3,
            known(row.cpu_ns_per_op / 1e3, 2),
            known(1e9 / row.cpu_ns_per_op, 0),
            known(row.bytes_per_op, 0),
            known(row.allocs_per_op, 2),
            optional(row.p50_ns, 1e6),
            optional(row.p99_ns, 1e6),
        );
    }
}

pub fn write_json(bench: &str, rows: &[Row], folder: &Path, file: &str) -> Result<()> {
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    let facts = environment::facts(folder).into_iter();
    let machine: Map<_, _> = facts.map(|(name, value)| (name.to_owned(), value.into())).collect();
    let document = json!({"bench": bench, "machine": machine, "rows": rows});
    std::fs::write(file, serde_json::to_string_pretty(&document)?).with_context(|| format!("cannot write {file}"))
}

fn row_json(row: &Row) -> Value {
    let mut fields = row.more.clone();
    fields.insert("name".to_owned(), row.name.clone().into());
    let numbers = [
        ("ops_per_second", Some(row.ops_per_second)),
        ("wall_ns_per_op", Some(row.wall_ns_per_op)),
        ("cpu_ns_per_op", Some(row.cpu_ns_per_op)),
        ("bytes_per_op", Some(row.bytes_per_op)),
        ("allocs_per_op", Some(row.allocs_per_op)),
        ("p50_ns", row.p50_ns),
        ("p99_ns", row.p99_ns),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            fields.insert(name.to_owned(), ((value * 1000.0).round() / 1000.0).into());
        }
    }
    Value::Object(fields)
}
