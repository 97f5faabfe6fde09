//! The engines that read the tables. Their rows are normalised to JSON without nulls and with numbers as texts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thalweg_query::{Engine, QueryMetrics, QueryOptions, QueryStream, print};

use crate::ask::ask;

const SCRIPT: &str = "../../tests/python/read_table.py";
const OPTIMIZE: &str = "../../tests/python/optimize.py";
const CHECKPOINT: &str = "../../tests/python/checkpoint.py";
const FILTERS: &str = "../../tests/python/filters.py";

/// As documented in docs/how-to/tags.md.
const NEWEST_OF_METRICS: &str =
    "qualify row_number() over (partition by resolution_s, series_id, time_unix_nano order by revision desc) = 1";
const NEWEST_OF_TAGS: &str =
    "qualify row_number() over (partition by resolution_s, tag_id, time_unix_nano order by revision desc) = 1";

/// Each row as text.
pub type Rows = BTreeSet<String>;

pub struct Engines {
    own: Engine,
    lake: PathBuf,
}

impl Engines {
    pub fn of(data_dir: &Path) -> Engines {
        Engines {
            own: Engine::open(data_dir, QueryOptions::default(), QueryMetrics::unregistered()).unwrap(),
            lake: thalweg_lake::folder(data_dir),
        }
    }

    pub fn lake(&self) -> &Path {
        &self.lake
    }

    pub async fn ask(&self, sql: &str) -> Vec<Value> {
        let answer = self.own.execute(sql).await;
        in_json(answer.unwrap_or_else(|error| panic!("{sql}: {error}"))).await
    }

    /// Returns `None` if the query fails.
    pub async fn try_ask(&self, sql: &str) -> Option<Vec<Value>> {
        Some(in_json(self.own.execute(sql).await.ok()?).await)
    }

    /// Names and types of the columns.
    async fn columns(&self, table: &str) -> Vec<(String, String)> {
        let described = self.ask(&format!("describe {table}")).await;
        let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        described
            .iter()
            .map(|row| (text(row, "column_name"), text(row, "data_type")))
            .collect()
    }

    pub async fn own(&self, table: &str) -> Rows {
        let columns = self.columns(table).await;
        let sql = format!(
            "select {} from {table}",
            selected(&columns, "cast({} as bigint)", "encode({}, 'hex')")
        );
        canonical(table, &self.ask(&sql).await)
    }

    /// The rows that the other engines read, by table and engine.
    pub async fn others(&self, tables: &[&'static str]) -> Vec<Vec<(&'static str, Rows)>> {
        const ENGINES: [&str; 2] = ["duckdb", "deltalake"];
        let mut questions = Vec::new();
        for table in tables {
            let columns = self.columns(table).await;
            let path = self.lake.join(table);
            let newest = newest(table);
            let sql = format!(
                "select {} from t {newest}",
                selected(&columns, "epoch_us({})", "lower(hex({}))")
            );
            questions.extend(ENGINES.map(|engine| json!([engine, path, sql])));
        }
        let answers = tokio::task::spawn_blocking(move || ask(SCRIPT, &questions))
            .await
            .unwrap();
        let answers = answers.chunks(ENGINES.len()).zip(tables);
        answers
            .map(|(answers, table)| {
                let rows = answers.iter().map(|rows| canonical(table, rows.as_array().unwrap()));
                ENGINES.into_iter().zip(rows).collect()
            })
            .collect()
    }
}

impl Engines {
    /// Lets the other program rewrite tables. Each has files to rewrite; windows that were computed at once are in one
    /// file per day.
    pub async fn optimize(&self, tables: &[&'static str]) {
        for (table, done) in tables.iter().zip(self.run_on(OPTIMIZE, tables).await) {
            let had_many = done["removed"].as_u64() > done["added"].as_u64();
            assert!(
                had_many || (table.ends_with("_rollup") && done["removed"] == 0),
                "{table}: {done}"
            );
        }
    }

    /// Lets the other program write checkpoints.
    pub async fn checkpoint(&self, tables: &[&'static str]) {
        for (table, version) in tables.iter().zip(self.run_on(CHECKPOINT, tables).await) {
            let file = format!(
                "{table}/_delta_log/{:020}.checkpoint.parquet",
                version.as_i64().unwrap()
            );
            assert!(self.lake.join(&file).exists(), "{file}");
        }
    }

    /// Lets other programs read tables with filters on all columns of simple types. Returns for each table how many
    /// filters each program was asked for, and which of them lost rows.
    pub async fn filter(&self, tables: &[&'static str]) -> Vec<Value> {
        self.run_on(FILTERS, tables).await
    }

    /// The result of a script of the other program for each table.
    async fn run_on(&self, script: &'static str, tables: &[&'static str]) -> Vec<Value> {
        let paths: Vec<Value> = tables.iter().map(|table| json!(self.lake.join(table))).collect();
        tokio::task::spawn_blocking(move || ask(script, &paths)).await.unwrap()
    }
}

async fn in_json(answer: QueryStream) -> Vec<Value> {
    let mut text = Vec::new();
    print::json(answer, &mut text).await.unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Only the newest revision of a recomputed window counts. Thalweg filters this by itself.
fn newest(table: &str) -> &'static str {
    match table {
        "metrics_rollup" => NEWEST_OF_METRICS,
        "tags_rollup" => NEWEST_OF_TAGS,
        _ => "",
    }
}

/// Each engine shows times and bytes differently.
fn selected(columns: &[(String, String)], time: &str, bytes: &str) -> String {
    let of = |(name, data_type): &(String, String)| {
        let quoted = format!("\"{name}\"");
        let expression = match data_type.as_str() {
            kind if kind.starts_with("Timestamp") => time.replace("{}", &quoted),
            kind if kind.starts_with("Binary") => bytes.replace("{}", &quoted),
            "Date32" => format!("cast({quoted} as varchar)"),
            _ => quoted.clone(),
        };
        format!("{expression} as {quoted}")
    };
    columns.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn canonical(table: &str, rows: &[Value]) -> Rows {
    let all: Rows = rows.iter().map(|row| plain(row).to_string()).collect();
    assert_eq!(
        all.len(),
        rows.len(),
        "no two rows of {table} are the same in all columns"
    );
    all
}

fn plain(value: &Value) -> Value {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => whole.to_string().into(),
            (None, Some(number)) if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}").into(),
            (None, number) => format!("{:?}", number.unwrap()).into(),
        },
        Value::Array(items) => Value::Array(items.iter().map(plain).collect()),
        Value::Object(members) => {
            let some = members.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                some.map(|(name, value)| (name.clone(), plain(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        other => other.clone(),
    }
}
