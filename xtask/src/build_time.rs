//! What the first build costs: builds the product from nothing in a folder of its own, and prints the time of each group
//! of crates, so that whoever adds a dependency sees its price.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::{cargo, run, target_dir};

/// Crates that cost less are not listed one by one.
const LISTED_SECONDS: f64 = 5.0;
/// The report of cargo contains its data as a constant of a script.
const DATA: &str = "const UNIT_DATA = ";

/// A group, and the names or beginnings of names of its crates; a `*` ends a beginning. The first group that fits counts.
const GROUPS: [(&str, &[&str]); 11] = [
    ("own crates", &["thalweg*"]),
    ("SQL", &["datafusion*", "sqlparser*", "recursive*", "stacker", "psm"]),
    (
        "Arrow and Parquet",
        &["arrow*", "parquet*", "flatbuffers", "zstd*", "lz4*", "snap", "simdutf8"],
    ),
    ("Kafka", &["rdkafka*", "openssl*", "libz-sys", "cmake"]),
    ("OPC UA", &["async-opcua*"]),
    ("object stores", &["object_store", "quick-xml", "reqwest"]),
    (
        "TLS and certificates",
        &[
            "aws-lc*", "ring", "rustls*", "rsa", "x509*", "der*", "webpki*", "spki", "pkcs*",
        ],
    ),
    ("JavaScript", &["oxc*", "rquickjs*"]),
    (
        "allocator and profiles",
        &[
            "tikv-jemalloc*",
            "findshlibs",
            "pprof*",
            "symbolic*",
            "inferno",
            "gimli",
            "addr2line",
            "prost*",
        ],
    ),
    (
        "HTTP and runtime",
        &[
            "tokio*", "hyper*", "axum*", "tower*", "h2", "http*", "futures*", "mio", "ureq*",
        ],
    ),
    (
        "macros",
        &[
            "syn",
            "quote",
            "proc-macro2",
            "serde*",
            "*derive",
            "*macros",
            "*macro",
            "thiserror*",
            "clap*",
        ],
    ),
];
const OTHERS: &str = "others";

/// One compilation.
#[derive(Debug, PartialEq)]
struct CompiledUnit {
    name: String,
    seconds: f64,
}

/// Builds, and prints the table.
pub fn show() -> Result<()> {
    let folder = tempfile::tempdir_in(target_dir()).context("no folder for the build")?;
    println!("The product is built from nothing; this takes half an hour to an hour on two cores.");
    let start = Instant::now();
    run(cargo()
        .args([
            "build",
            "--release",
            "--package",
            "thalweg",
            "--timings",
            "--target-dir",
        ])
        .arg(folder.path()))?;
    let wall = start.elapsed().as_secs_f64();
    let units = read(&folder.path().join("cargo-timings/cargo-timing.html"))?;
    print!("{}", table(&units, wall));
    Ok(())
}

fn read(report: &Path) -> Result<Vec<CompiledUnit>> {
    let text = std::fs::read_to_string(report).with_context(|| format!("{} cannot be read", report.display()))?;
    units(&text)
}

/// The compilations in a report of cargo.
fn units(report: &str) -> Result<Vec<CompiledUnit>> {
    let Some((_, data)) = report.split_once(DATA) else {
        bail!("the report of cargo has another form; look for {DATA:?} in it");
    };
    let mut values = serde_json::Deserializer::from_str(data).into_iter::<Value>();
    let values = values.next().context("the report of cargo ends early")??;
    let unit = |value: &Value| {
        Some(CompiledUnit {
            name: value["name"].as_str()?.to_owned(),
            seconds: value["duration"].as_f64()?,
        })
    };
    Ok(values.as_array().into_iter().flatten().filter_map(unit).collect())
}

fn group_of(name: &str) -> &'static str {
    let fits = |pattern: &&str| match (pattern.strip_suffix('*'), pattern.strip_prefix('*')) {
        (Some(beginning), _) => name.starts_with(beginning),
        (_, Some(end)) => name.ends_with(end),
        _ => name == *pattern,
    };
    let group = GROUPS.iter().find(|(_, patterns)| patterns.iter().any(fits));
    group.map_or(OTHERS, |(group, _)| group)
}

fn table(units: &[CompiledUnit], wall: f64) -> String {
    let all: f64 = units.iter().map(|unit| unit.seconds).sum();
    let (mut groups, mut crates) = (BTreeMap::new(), BTreeMap::new());
    for unit in units {
        let (seconds, members) = groups.entry(group_of(&unit.name)).or_insert((0.0, BTreeMap::new()));
        *seconds += unit.seconds;
        *members.entry(unit.name.as_str()).or_insert(0.0) += unit.seconds;
        *crates.entry(unit.name.as_str()).or_insert(0.0) += unit.seconds;
    }
    let mut text = format!(
        "{:.1} minutes; {:.0} s of compiling in {} crates\n\n{:<24} {:>7} {:>6} {:>7}\n",
        wall / 60.0,
        all,
        crates.len(),
        "group",
        "s",
        "%",
        "crates"
    );
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|(_, (one, _)), (_, (other, _))| other.total_cmp(one));
    for (group, (seconds, members)) in &groups {
        let share = 100.0 * seconds / all.max(1.0);
        text += &format!("{group:<24} {seconds:>7.1} {share:>6.1} {:>7}\n", members.len());
    }
    text += &format!("\n{:<40} {:>7}\n", format!("crate of {LISTED_SECONDS} s and more"), "s");
    let mut crates: Vec<(&str, f64)> = crates
        .into_iter()
        .filter(|(_, seconds)| *seconds >= LISTED_SECONDS)
        .collect();
    crates.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    for (name, seconds) in crates {
        text += &format!("{name:<40} {seconds:>7.1}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<script>
const UNIT_DATA = [
  {"i": 0, "name": "datafusion-expr", "duration": 30.5, "mode": "todo"},
  {"i": 1, "name": "thalweg-log", "duration": 9.5},
  {"i": 2, "name": "thalweg-log", "duration": 0.5, "target": " (build script)"},
  {"i": 3, "name": "zerovec-derive", "duration": 1.0}
];
const CONCURRENCY_DATA = [];
</script>"#;

    #[test]
    fn crates_count_for_their_group() {
        let units = units(REPORT).unwrap_or_default();
        assert_eq!(units.len(), 4);
        assert_eq!(group_of("zerovec-derive"), "macros");
        assert_eq!(group_of("memchr"), OTHERS);
        let table = table(&units, 60.0);
        assert!(
            table.starts_with("1.0 minutes; 42 s of compiling in 3 crates\n"),
            "{table}"
        );
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["SQL", "30.5", "73.5", "1"]), "{table}");
        assert!(rows.contains(&vec!["own", "crates", "10.0", "24.1", "1"]), "{table}");
        assert!(rows.contains(&vec!["thalweg-log", "10.0"]), "{table}");
        assert!(!table.contains("zerovec"), "{table}");
    }

    #[test]
    fn another_form_of_the_report_is_an_error() {
        assert!(super::units("const DATA = []").is_err());
        assert!(super::units("const UNIT_DATA = [").is_err());
    }
}
