//! `docs/reference/standard-set.md` against the binary: what the page says to be here is listed and read, what it says not to be
//! here is refused, and everything that is here is on the page. So are the fields in the table of `differences.md`.

use std::collections::BTreeSet;

use thalweg_tests::beside;
use thalweg_tests::thalweg::run;

/// A row of a table: its names, its status, and its further cells.
struct Row {
    names: Vec<String>,
    status: String,
    cells: Vec<String>,
}

impl Row {
    fn is_here(&self) -> bool {
        self.status != "not here"
    }
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The rows of the table below a heading, without its head.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let after = page
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading}"))
        .1;
    let section = after.split("\n## ").next().unwrap_or(after);
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

fn page(name: &str) -> String {
    std::fs::read_to_string(beside(&format!("../docs/reference/{name}"))).unwrap()
}

fn rows(heading: &str) -> Vec<Row> {
    let rows: Vec<Row> = table(&page("standard-set.md"), heading)
        .into_iter()
        .map(|cells| Row {
            names: quoted(&cells[0]),
            status: cells[1].clone(),
            cells: cells[2..].to_vec(),
        })
        .collect();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let known = ["the same", "differs", "not here", "only here"].contains(&row.status.as_str());
        assert!(
            known && !row.names.is_empty(),
            "{heading}: {:?}: {:?}",
            row.names,
            row.status
        );
        let told = row.cells.iter().any(|cell| !cell.is_empty());
        assert!(
            row.status != "differs" || told,
            "{heading}: {:?} differ in nothing",
            row.names
        );
        for name in &row.names {
            assert!(seen.insert(name.clone()), "{heading} has {name} twice");
        }
    }
    rows
}

fn names(rows: &[Row], here: bool) -> BTreeSet<String> {
    let some = rows.iter().filter(|row| row.is_here() == here);
    some.flat_map(|row| row.names.clone()).collect()
}

fn list(argument: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let listed = run(folder.path(), &["list", argument]).unwrap();
    assert!(listed.status.success(), "{}", listed.stderr);
    listed.stdout
}

/// The fields of a component or section.
fn fields(head: &str, name: &str) -> BTreeSet<String> {
    let text = list(name);
    let mut of_it = text.lines().skip_while(|line| *line != head).skip(1).peekable();
    assert!(of_it.peek().is_some(), "no {head:?} in {text}");
    of_it
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .filter_map(|line| {
            let name = line
                .strip_prefix("  ")
                .filter(|rest| !rest.starts_with(' '))?
                .split(" (")
                .next()?;
            (line.contains(" (") && !name.contains(' ')).then(|| name.to_owned())
        })
        .collect()
}

/// What `thalweg check` says of a file.
fn said(yaml: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    checked.stdout + &checked.stderr
}

const FLOW: &str = "input: {stdin: {}}\noutput: {drop: {}}\n";

#[test]
fn components_are_here_as_the_page_says() {
    for (heading, kind) in [
        ("Inputs", "input"),
        ("Buffers", "buffer"),
        ("Processors", "processor"),
        ("Outputs", "output"),
    ] {
        let rows = rows(heading);
        let text = list(&format!("{kind}s"));
        let listed: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .map(str::to_owned)
            .collect();
        assert_eq!(names(&rows, true), listed, "what is here of {heading}");
        assert!(
            names(&rows, false).is_disjoint(&listed),
            "what is not here of {heading}"
        );
        for row in rows.iter().filter(|row| row.is_here()) {
            for name in &row.names {
                let fields = fields(&format!("{kind} {name}"), name);
                for absent in quoted(&row.cells[0]) {
                    assert!(!fields.contains(&absent), "{kind} {name} has the field {absent}");
                }
            }
        }
    }
}

#[test]
fn caches_rate_limits_metrics_and_tracers_are_here_as_the_page_says() {
    for (heading, section) in [("Caches", "cache_resources"), ("Rate limits", "rate_limit_resources")] {
        let rows = rows(heading);
        assert!(names(&rows, true).is_empty());
        for name in names(&rows, false) {
            let said = said(&format!("{section}: [{{label: a, {name}: {{}}}}]\n{FLOW}"));
            assert!(
                said.contains("this version has no") && said.contains(&format!("\"{name}\"")),
                "{said}"
            );
        }
    }
    for row in rows("Metrics") {
        for name in &row.names {
            let said = said(&format!("metrics: {{{name}: {{}}}}\n{FLOW}"));
            let refused = said.contains(&format!("unknown field \"{name}\" in metrics"));
            assert_eq!(refused, !row.is_here(), "{name}: {said}");
            let warned = said.contains("warning");
            assert_eq!(
                warned,
                row.is_here() && row.cells[1].contains("warning"),
                "{name}: {said}"
            );
        }
    }
    let prometheus = fields("section metrics", "metrics");
    for row in rows("Metrics").iter().filter(|row| row.is_here()) {
        for absent in quoted(&row.cells[0]) {
            assert!(
                !prometheus.contains(&format!("metrics.prometheus.{absent}")),
                "{absent}"
            );
        }
    }
    for row in rows("Tracers") {
        for name in &row.names {
            let said = said(&format!("tracer: {{{name}: {{}}}}\n{FLOW}"));
            assert!(said.contains("1 flow without errors"), "{name}: {said}");
            assert_eq!(
                said.contains("warning: tracer"),
                row.status == "differs",
                "{name}: {said}"
            );
        }
    }
}

#[test]
fn scanners_are_here_as_the_page_says() {
    for row in rows("Scanners") {
        for name in &row.names {
            let said = said(&format!(
                "input: {{file: {{paths: [a], scanner: {{{name}: {{}}}}}}}}\noutput: {{drop: {{}}}}\n"
            ));
            let unknown = said.contains(&format!("unknown field \"{name}\""));
            assert_eq!(unknown, !row.is_here(), "{name}: {said}");
        }
    }
}

/// The names that an error lists as known.
fn known(error: &str, what: &str) -> BTreeSet<String> {
    let (_, names) = error
        .lines()
        .find(|line| line.contains(&format!("unknown {what} ")))
        .and_then(|line| line.split_once("there are: "))
        .unwrap_or_else(|| panic!("no names in {error}"));
    names.split(", ").map(str::to_owned).collect()
}

#[test]
fn functions_and_methods_are_here_as_the_page_says() {
    for (heading, what, before) in [
        ("Functions of the mapping language", "function", ""),
        ("Methods of the mapping language", "method", "this."),
    ] {
        let rows = rows(heading);
        let far = said(&format!(
            "input: {{generate: {{mapping: 'root = {before}zzzzzzzzzzzzzzzzzzzz()'}}}}\noutput: {{drop: {{}}}}\n"
        ));
        assert_eq!(names(&rows, true), known(&far, what), "what is here of {heading}");
        let absent = names(&rows, false);
        let processors: String = absent
            .iter()
            .map(|name| format!("    - mapping: 'root = {before}{name}()'\n"))
            .collect();
        let errors = said(&format!("pipeline:\n  processors:\n{processors}{FLOW}"));
        for name in absent {
            let refused = errors.contains(&format!("unknown {what} `{name}`"));
            assert!(refused, "{name} is not refused: {errors}");
        }
    }
}

#[test]
fn sections_of_files_have_the_fields_that_the_page_says() {
    let mut compared = 0;
    for cells in table(&page("differences.md"), "Files of the reference") {
        let Some(section) = quoted(&cells[0]).into_iter().next() else {
            continue;
        };
        if !["http", "logger", "metrics"].contains(&section.as_str()) {
            continue;
        }
        let fields = fields(&format!("section {section}"), &section);
        let has = |field: &str| fields.contains(&format!("{section}.{field}"));
        for field in quoted(&cells[1]) {
            assert!(has(&field), "{section} has no field {field}");
        }
        for absent in quoted(&cells[3])
            .iter()
            .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || "._".contains(c)))
        {
            // A field that may only be empty is listed as one that is not in this version.
            assert!(
                !has(absent) || absent == "mapping" || absent.starts_with("basic_auth"),
                "{section} has the field {absent}"
            );
        }
        compared += 1;
    }
    assert_eq!(compared, 3);
}
