//! Sketches of the public implementation, passed to SQL and read from it.

use std::process::Command;

use serde_json::Value;
use thalweg_tests::Thalweg;
use thalweg_tests::servers::python;

const IDLE: &str = "input:\n  generate: {interval: 1h, mapping: root = 1}\noutput:\n  drop: {}\n";

/// Three sketches as SQL literals, or the quantiles of the sketch that is given in base64.
fn public(arguments: &[&str]) -> Value {
    let script = thalweg_tests::beside("python/sketches.py");
    let asked = Command::new(python().unwrap())
        .arg(script)
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{error}");
    serde_json::from_slice(&asked.stdout).unwrap()
}

#[test]
fn sql_merges_what_others_made_and_others_read_what_sql_merged() {
    let mut thalweg = Thalweg::start(IDLE).unwrap();
    thalweg.wait_ready().unwrap();
    let made = public(&[]);
    let rows: Vec<String> = made["sketches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|hex| format!("(X'{}')", hex.as_str().unwrap()))
        .collect();
    let rows = format!("(VALUES {}) AS t (s)", rows.join(", "));
    let merged = thalweg
        .sql(&format!(
            "SELECT sketch_merge(s) AS whole, sketch_quantile(sketch_merge(s), 0.9) AS q FROM {rows}"
        ))
        .unwrap();
    let (whole, ours) = (merged[0]["whole"].as_str().unwrap(), merged[0]["q"].as_f64().unwrap());
    let exact = made["exact"].as_f64().unwrap();
    assert!((ours - exact).abs() <= 0.0101 * exact.abs(), "{ours} {exact}");
    let theirs = public(&[whole])["quantile"].as_f64().unwrap();
    assert!((ours - theirs).abs() <= 1e-9 * theirs.abs(), "{ours} {theirs}");
    let other = thalweg.sql(&format!(
        "SELECT sketch_merge(X'{}') AS m",
        made["other"].as_str().unwrap()
    ));
    let error = other.unwrap_err().to_string();
    assert!(error.contains("422") || error.contains("400"), "{error}");
    assert!(
        error.contains("sketch_merge() was given a sketch with bins of another kind"),
        "{error}"
    );
}
