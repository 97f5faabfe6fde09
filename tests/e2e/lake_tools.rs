//! The lake from the shell: tables are inspected, verified and maintained by hand, beside the process that writes them and
//! without one; Parquet files are inspected; and SQL has a prompt.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::servers::python;
use thalweg_tests::thalweg::{Finished, binary, run};
use thalweg_tests::{Api, Thalweg, eventually, eventually_within};

use crate::otlp::{attributes, end, is_stored, now, start, text};

const OFTEN: &str = "lake: {flush: {interval: 20ms}}\n";

/// Logs of one day, this many per request and so per file, all of them committed to files.
fn fill(thalweg: &Thalweg, otlp: &Api, requests: u64, each: u64) {
    let noon = now() / DAY_NANOS * DAY_NANOS + DAY_NANOS / 2 - DAY_NANOS;
    for request in 0..requests {
        let record = |n: u64| {
            json!({
                "timeUnixNano": (noon + n).to_string(), "severityNumber": 9, "body": text(&format!("line {n} of {request}")),
                "attributes": attributes(&[("n", json!({"intValue": n.to_string()})), ("http.route", text("/a"))]),
            })
        };
        let resource = attributes(&[("service.name", text(&format!("shop-{}", request % 3)))]);
        let records: Vec<Value> = (request * each..(request + 1) * each).map(record).collect();
        let body =
            json!({"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": records}]}]});
        is_stored(&otlp.post("/v1/logs", &body));
        eventually(|| {
            let committed = thalweg.sql("select count(*) as n from at_time('logs', now() + interval '1 hour')")?;
            anyhow::ensure!(committed[0]["n"] == json!((request + 1) * each), "{committed:?}");
            Ok(())
        })
        .unwrap();
    }
}

const DAY_NANOS: u64 = 86_400_000_000_000;

fn thalweg(folder: &Path, arguments: &[&str]) -> Finished {
    run(folder, arguments).unwrap()
}

/// The output of `thalweg lake` for the data folder `data`.
fn lake(folder: &Path, arguments: &[&str]) -> Finished {
    let all: Vec<&str> = ["lake"]
        .iter()
        .chain(arguments)
        .chain(&["--data-dir", "data"])
        .copied()
        .collect();
    thalweg(folder, &all)
}

fn code(finished: &Finished) -> i32 {
    finished.status.code().unwrap()
}

fn document(finished: &Finished) -> Value {
    assert_eq!(code(finished), 0, "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

fn documents(finished: &Finished) -> Vec<Value> {
    assert_eq!(code(finished), 0, "{}", finished.stderr);
    finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn files_of(folder: &Path) -> Vec<PathBuf> {
    let files = documents(&lake(folder, &["files", "logs", "--json"]));
    let path = |file: &Value| folder.join("data/lake/logs").join(file["path"].as_str().unwrap());
    files.iter().map(path).collect()
}

fn verified(folder: &Path, deep: bool) -> (i32, String) {
    let mut arguments = vec!["verify", "logs"];
    arguments.extend(deep.then_some("--deep"));
    let finished = lake(folder, &arguments);
    (code(&finished), finished.stdout)
}

#[test]
fn tables_are_looked_at_and_checked_beside_the_process_that_writes_them() {
    let (mut thalweg, otlp) = start(OFTEN);
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 4, 10);

    let status = document(&lake(&folder, &["status", "--json"]));
    let logs = &status["tables"][0];
    assert_eq!(
        (&logs["table"], &logs["rows"], &logs["files"]),
        (&json!("logs"), &json!(40), &json!(4)),
        "{status}"
    );
    assert_eq!(status["holder"]["process"], json!(thalweg.process.id()));
    let partitions = logs["partitions"].as_array().unwrap();
    let sum = |name: &str| {
        partitions
            .iter()
            .map(|state| state[name].as_i64().unwrap())
            .sum::<i64>()
    };
    assert_eq!(
        (sum("position"), sum("end"), sum("backlog"), sum("backlog_bytes")),
        (4, 4, 0, 0),
        "{status}"
    );
    assert!(logs["commit_lag_seconds"].as_f64().unwrap() < 5.0);
    let shown = lake(&folder, &["status"]);
    assert!(
        shown
            .stdout
            .starts_with(&format!("held by process {} (http://", thalweg.process.id())),
        "{}",
        shown.stdout
    );
    assert!(shown.stdout.contains("lake.logs"), "{}", shown.stdout);

    let tables = document(&lake(&folder, &["tables", "--json"]));
    let logs = &tables[0];
    assert_eq!(
        (&logs["rows"], &logs["levels"], &logs["sealed"]),
        (&json!(40), &json!({"0": 4}), &json!(0))
    );
    let day = logs["first_date"].as_str().unwrap().to_owned();
    let shown = lake(&folder, &["tables"]).stdout;
    assert!(shown.lines().nth(1).unwrap().starts_with("logs"), "{shown}");
    assert_eq!(
        documents(&lake(&folder, &["files", "logs", "--date", &day, "--json"])).len(),
        4
    );
    assert!(documents(&lake(&folder, &["files", "logs", "--date", "1999-01-01", "--json"])).is_empty());
    assert_eq!(lake(&folder, &["files", "logs"]).stdout.lines().count(), 5);

    let history = documents(&lake(&folder, &["history", "logs", "--json"]));
    assert_eq!(history[0]["operation"], json!("CREATE TABLE"));
    let added: u64 = history
        .iter()
        .map(|commit| commit["added"]["rows"].as_u64().unwrap())
        .sum();
    assert_eq!((added, &history.last().unwrap()["table"]["rows"]), (40, &json!(40)));
    assert!(
        history[1]["columns"]
            .as_array()
            .unwrap()
            .contains(&json!("attr_http_route")),
        "{}",
        history[1]
    );
    assert_eq!(
        documents(&lake(&folder, &["history", "logs", "--limit", "2", "--json"])),
        history[history.len() - 2..]
    );

    for deep in [false, true] {
        assert_eq!(verified(&folder, deep), (0, String::new()));
    }
    let wrong = lake(&folder, &["files", "lags"]);
    assert_eq!(
        (code(&wrong), wrong.stderr.as_str()),
        (1, "thalweg: there is no table lags; the tables are: logs\n")
    );
    assert_eq!(code(&lake(&folder, &["files", "logs", "--date", "yesterday"])), 2);
    end(&mut thalweg);

    let alone = document(&lake(&folder, &["status", "--json"]));
    assert_eq!(alone["holder"], Value::Null);
    let partitions = alone["tables"][0]["partitions"].as_array().unwrap();
    assert_eq!(
        partitions
            .iter()
            .map(|state| state["position"].as_i64().unwrap())
            .sum::<i64>(),
        4,
        "{alone}"
    );
    assert!(partitions.iter().all(|state| state["backlog"].is_null()));
    let nowhere = run(&folder, &["lake", "tables", "--data-dir", "nowhere"]).unwrap();
    assert_eq!(code(&nowhere), 1);
    assert!(nowhere.stderr.contains("there is no lake in"), "{}", nowhere.stderr);
}

#[test]
fn damage_is_found_and_named() {
    let (mut thalweg, otlp) = start(OFTEN);
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 4, 200);
    end(&mut thalweg);
    assert_eq!(verified(&folder, true), (0, String::new()));
    let files = files_of(&folder);
    let (flipped, missing) = (&files[0], &files[1]);
    let whole = std::fs::read(flipped).unwrap();

    // A byte of a page with bodies.
    let mut bytes = whole.clone();
    let at = bytes.len() / 3;
    bytes[at] ^= 0x01;
    std::fs::write(flipped, &bytes).unwrap();
    let name = flipped.file_name().unwrap().to_str().unwrap();
    let (exit, found) = verified(&folder, true);
    assert_eq!(exit, 1, "{found}");
    assert!(found.contains(name), "{found}");
    std::fs::write(flipped, &whole).unwrap();

    std::fs::remove_file(missing).unwrap();
    let (exit, found) = verified(&folder, false);
    let name = missing.file_name().unwrap().to_str().unwrap();
    assert_eq!(exit, 1);
    assert!(
        found
            .lines()
            .any(|line| line.contains(name) && line.ends_with(": the file is missing")),
        "{found}"
    );
    assert_eq!(found.lines().count(), 1, "{found}");

    let commits = folder.join("data/lake/logs/_delta_log");
    let newest = std::fs::read_dir(&commits).unwrap().flatten().map(|entry| entry.path());
    let newest = newest
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .max()
        .unwrap();
    let text = std::fs::read_to_string(&newest).unwrap();
    let wrong = text.replace(r#"\"numRecords\":200"#, r#"\"numRecords\":201"#);
    assert_ne!(wrong, text);
    std::fs::write(&newest, wrong).unwrap();
    let json = lake(&folder, &["verify", "--json"]);
    assert_eq!(code(&json), 1);
    let found: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(found["findings"], json!(2), "{found}");
    let problems: Vec<&str> = found["tables"][0]["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["problem"].as_str().unwrap())
        .collect();
    assert!(
        problems.contains(&"the file has 200 rows, the table says 201"),
        "{problems:?}"
    );
    assert!(problems.contains(&"the file is missing"), "{problems:?}");
}

#[test]
fn maintenance_is_done_by_the_running_process_or_alone() {
    let more = "lake: {flush: {interval: 20ms}, retention: {logs: 30}, vacuum: {retain: 1h}}\n";
    let (mut thalweg, otlp) = start(more);
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 6, 5);
    let orphan = |name: &str| {
        let file = files_of(&folder)[0].with_file_name(name);
        std::fs::write(&file, "nobody's").unwrap();
        // It is older than anything that is still being written.
        let old = std::time::SystemTime::now() - Duration::from_secs(7200);
        std::fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(old)
            .unwrap();
        file
    };

    let dry = document(&lake(&folder, &["compact", "logs", "--dry-run", "--json"]));
    assert_eq!((&dry["files"], files_of(&folder).len()), (&json!(6), 6), "{dry}");
    let done = lake(&folder, &["compact", "logs"]);
    assert_eq!(code(&done), 0, "{}", done.stderr);
    assert!(
        done.stdout.contains("6 files with 30 rows") && done.stdout.contains("merged into 1 file"),
        "{}",
        done.stdout
    );
    assert!(done.stderr.contains("the process at http://"), "{}", done.stderr);
    assert_eq!(files_of(&folder).len(), 1);
    assert_eq!(
        thalweg.sql("select count(*) as n from logs").unwrap()[0]["n"],
        json!(30)
    );
    let nothing = lake(&folder, &["retain"]);
    assert!(nothing.stdout.contains("logs: nothing to do"), "{}", nothing.stdout);
    let mine = orphan("mine.parquet");
    let vacuumed = document(&lake(&folder, &["vacuum", "logs", "--json"]));
    assert_eq!(
        vacuumed["files"],
        json!(1),
        "what was merged a moment ago stays for readers: {vacuumed}"
    );
    assert!(!mine.exists());
    let unknown = lake(&folder, &["compact", "lags"]);
    assert_eq!(code(&unknown), 1);
    assert!(unknown.stderr.contains("there is no table lags"), "{}", unknown.stderr);
    // It continues as before.
    fill_more(&thalweg, &otlp);
    end(&mut thalweg);

    let done = lake(&folder, &["compact", "--json"]);
    assert_eq!(document(&done)["files"], json!(2), "{}", done.stdout);
    let theirs = orphan("theirs.parquet");
    let vacuumed = document(&lake(&folder, &["vacuum", "-c", "flow.yaml", "--json"]));
    assert_eq!(vacuumed["files"], json!(1), "{vacuumed}");
    assert!(!theirs.exists());
    assert_eq!(verified(&folder, true), (0, String::new()));
    let sql = thalweg_sql(&folder, "select count(*) as n from logs");
    assert_eq!(sql, "n\n31\n");
    // The planner knows the order of the one file.
    let ordered = "select body from logs order by resource_service_name nulls first, time_unix_nano";
    let plan = thalweg_sql(&folder, &format!("explain {ordered}"));
    assert!(plan.contains("Sort: logs.resource_service_name"), "{plan}");
    assert!(!plan.contains("SortExec"), "{plan}");
    assert_eq!(
        thalweg_sql(&folder, ordered).lines().nth(1),
        Some("late"),
        "it has no service"
    );
    thalweg.restart().unwrap();
    thalweg.wait_ready().unwrap();
    assert_eq!(
        thalweg.sql("select count(*) as n from logs").unwrap()[0]["n"],
        json!(31)
    );
    end(&mut thalweg);
}

fn fill_more(thalweg: &Thalweg, otlp: &Api) {
    let time = now() / DAY_NANOS * DAY_NANOS + DAY_NANOS / 2 - DAY_NANOS;
    let record = json!({"timeUnixNano": time.to_string(), "body": text("late")});
    is_stored(&otlp.post(
        "/v1/logs",
        &json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}),
    ));
    eventually(|| {
        let committed = thalweg.sql("select count(*) as n from at_time('logs', now() + interval '1 hour')")?;
        anyhow::ensure!(committed[0]["n"] == json!(31), "{committed:?}");
        Ok(())
    })
    .unwrap();
}

fn thalweg_sql(folder: &Path, sql: &str) -> String {
    let done = thalweg(folder, &["sql", sql, "--format", "csv", "--data-dir", "data"]);
    assert_eq!(code(&done), 0, "{}", done.stderr);
    done.stdout
}

#[test]
fn what_is_too_old_is_let_go_by_hand() {
    let (mut thalweg, otlp) = start("lake: {flush: {interval: 20ms}}\n");
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 1, 5);
    end(&mut thalweg);
    let kept = lake(&folder, &["retain", "logs"]);
    assert!(
        kept.stdout.contains("nothing to do") && kept.stderr.contains("--config FILE"),
        "{}",
        kept.stderr
    );
    // They arrived today, so even old rows stay for the retention time.
    std::fs::write(folder.join("keep.yaml"), "ingest: {}\nlake: {retention: {logs: 1}}\n").unwrap();
    let done = document(&lake(&folder, &["retain", "logs", "-c", "keep.yaml", "--json"]));
    assert_eq!(done["files"], json!(0), "{done}");
    std::fs::write(folder.join("wrong.yaml"), "lake: {retention: {lags: 1}}\n").unwrap();
    let wrong = lake(&folder, &["retain", "-c", "wrong.yaml"]);
    assert_eq!(code(&wrong), 1);
    assert!(wrong.stderr.contains("lags"), "{}", wrong.stderr);
}

#[test]
fn a_process_that_cannot_be_asked_is_named_and_logins_hold_for_maintenance() {
    let silent = "http: {enabled: false}\n";
    let (http, grpc) = (free(), free());
    let receive = format!(
        "ingest: {{otlp: {{http: {{address: \"127.0.0.1:{http}\"}}, grpc: {{address: \"127.0.0.1:{grpc}\"}}}}}}\n"
    );
    let thalweg = Thalweg::spawn(&format!("{silent}{receive}{OFTEN}")).unwrap();
    let folder = thalweg.folder.path().to_owned();
    let otlp = Api::at_root(&format!("127.0.0.1:{http}"));
    let record = json!({"timeUnixNano": now().to_string(), "body": text("x")});
    let body = json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]});
    eventually(|| {
        std::net::TcpStream::connect(("127.0.0.1", http))?;
        Ok(())
    })
    .unwrap();
    is_stored(&otlp.post("/v1/logs", &body));
    eventually(|| {
        anyhow::ensure!(lake(&folder, &["tables", "--json"]).stdout.contains("logs"));
        Ok(())
    })
    .unwrap();
    let refused = lake(&folder, &["compact"]);
    assert_eq!(code(&refused), 1);
    let expected = format!("process {} holds data and has no HTTP listener", thalweg.process.id());
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    drop(thalweg);

    let logins = "auth: {tokens: [{name: r, file: r.token, roles: [read]}, {name: a, file: a.token, roles: [admin]}]}\nqueues: {list: [{name: q}]}\n";
    let files = [("r.token", "read-secret"), ("a.token", "admin-secret")];
    let mut thalweg = Thalweg::spawn_with(logins, &files).unwrap();
    thalweg.wait_ready().unwrap();
    let folder = thalweg.folder.path().to_owned();
    let none = lake(&folder, &["status"]);
    assert_eq!(code(&none), 1);
    assert!(none.stderr.contains("--token"), "{}", none.stderr);
    let reads = lake(&folder, &["status", "--token-file", "r.token"]);
    assert_eq!(code(&reads), 0, "{}", reads.stderr);
    assert_eq!(code(&lake(&folder, &["compact", "--token-file", "r.token"])), 1);
    let all = lake(&folder, &["compact", "--token", "admin-secret"]);
    assert_eq!(code(&all), 0, "{}", all.stderr);
    end(&mut thalweg);
}

fn free() -> u16 {
    thalweg_tests::servers::free_port().unwrap()
}

#[test]
fn parquet_files_are_looked_into() {
    let (mut thalweg, otlp) = start(OFTEN);
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 1, 50);
    end(&mut thalweg);
    let file = files_of(&folder)[0].to_str().unwrap().to_owned();
    let parquet = |arguments: &[&str]| {
        let all: Vec<&str> = ["parquet"].iter().chain(arguments).copied().collect();
        thalweg_at(&folder, &all)
    };

    let some = parquet(&[
        "cat",
        &file,
        "--columns",
        "attr_n,body",
        "--where",
        "cast(attr_n as int) >= 48",
        "--limit",
        "5",
    ]);
    let expected = [
        json!({"attr_n": "48", "body": "line 48 of 0"}),
        json!({"attr_n": "49", "body": "line 49 of 0"}),
    ];
    assert_eq!(documents(&some), expected);
    assert_eq!(documents(&parquet(&["cat", &file, "--limit", "7"])).len(), 7);
    let bytes = std::fs::read(&file).unwrap();
    let piped = with_input(
        &folder,
        &["parquet", "cat", "-", "--columns", "severity_number"],
        &bytes,
    );
    assert_eq!(documents(&piped).len(), 50);
    let wrong = parquet(&["cat", &file, "--columns", "bady"]);
    assert_eq!(code(&wrong), 1);
    assert!(
        wrong
            .stderr
            .starts_with("thalweg: there is no column bady; the columns are: "),
        "{}",
        wrong.stderr
    );
    let wrong = parquet(&["cat", &file, "--where", "body ="]);
    assert!(
        code(&wrong) == 1 && wrong.stderr.contains("--where: sql.parse"),
        "{}",
        wrong.stderr
    );
    let wrong = parquet(&["stats", "flow.yaml"]);
    assert!(
        code(&wrong) == 1 && wrong.stderr.contains("flow.yaml is not a Parquet file"),
        "{}",
        wrong.stderr
    );

    let schema = document(&parquet(&["schema", &file, "--json"]));
    let columns = schema["columns"].as_array().unwrap();
    let column = |name: &str| columns.iter().find(|column| column["path"] == json!(name)).unwrap();
    assert_eq!(
        column("attr_http_route")["metadata"]["thalweg.name"],
        json!("http.route"),
        "{schema}"
    );
    assert_eq!(column("time_unix_nano")["physical"], json!("INT64"));
    assert!(parquet(&["schema", &file]).stdout.contains("thalweg.name=http.route"));

    let stats = document(&parquet(&["stats", &file, "--json"]));
    assert_eq!(
        (&stats["rows"], &stats["row_groups"][0]["sorted_by"]),
        (&json!(50), &json!(["resource_service_name", "time_unix_nano"]))
    );
    let columns = stats["columns"].as_array().unwrap();
    let severity = columns
        .iter()
        .find(|column| column["path"] == json!("severity_number"))
        .unwrap();
    assert_eq!(
        (&severity["min"], &severity["max"], &severity["nulls"]),
        (&json!("9"), &json!("9"), &json!(0))
    );
    assert_eq!(severity["codecs"], json!(["ZSTD"]));
    let shown = parquet(&["stats", &file]).stdout;
    assert!(
        shown.contains("resource_service_name, time_unix_nano") && shown.contains("RLE_DICTIONARY"),
        "{shown}"
    );
    let left = Command::new("sh")
        .arg("-c")
        .arg(format!("{} parquet cat '{file}' | head -1", binary().display()))
        .output()
        .unwrap();
    assert_eq!(
        (
            left.stdout.iter().filter(|byte| **byte == b'\n').count(),
            left.stderr.as_slice()
        ),
        (1, &b""[..])
    );
}

fn thalweg_at(folder: &Path, arguments: &[&str]) -> Finished {
    thalweg(folder, arguments)
}

fn with_input(folder: &Path, arguments: &[&str], input: &[u8]) -> Finished {
    use std::io::Write as _;
    use std::process::Stdio;
    let mut child = Command::new(binary())
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    Finished {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// The terminal output when these lines are typed at the prompt.
fn at_prompt(folder: &Path, steps: &Value) -> String {
    let typed = Command::new(python().unwrap())
        .arg(thalweg_tests::beside("python/at_terminal.py"))
        .arg(steps.to_string())
        .arg(binary())
        .args(["sql", "--data-dir", "data"])
        .current_dir(folder)
        .env("XDG_STATE_HOME", folder.join("state"))
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&typed.stdout).into_owned();
    assert!(
        typed.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&typed.stderr)
    );
    shown
}

#[test]
fn sql_has_a_prompt_with_a_history_over_http_and_on_files() {
    let (mut thalweg, otlp) = start(OFTEN);
    let folder = thalweg.folder.path().to_owned();
    fill(&thalweg, &otlp, 1, 5);
    let steps = |whom: &str| {
        json!([
            {"expect": whom},
            {"expect": "thalweg> "},
            {"send": "select count(*) as n,\n", "expect": "-> "},
            {"send": "';' as semicolon from logs;\n", "expect": "(1 row)"},
            {"expect": "thalweg> "},
            {"send": "\\d\n", "expect": "| logs"},
            {"expect": "thalweg> "},
            {"send": "\\d logs\n", "expect": "attr_http_route"},
            {"expect": "thalweg> "},
            {"send": "\\format csv\n", "expect": "thalweg> "},
            {"send": "\\timing on\n", "expect": "timing is on"},
            {"expect": "thalweg> "},
            {"send": "select min(body) as least from logs;\n", "expect": "least\nline 0 of 0\n"},
            {"expect": "time: "},
            {"expect": "thalweg> "},
            {"send": "select nothing;\n", "expect": "sql.plan: "},
            {"expect": "thalweg> "},
            {"send": "half a statement\u{3}", "expect": "thalweg> "},
            {"send": "\\x\n", "expect": "there is no command \\x"},
            {"expect": "thalweg> "},
            {"send": "\u{4}"},
        ])
    };
    at_prompt(
        &folder,
        &steps(&format!("Querying process {} at ", thalweg.process.id())),
    );
    // A query without end is cancelled, also in the process: nothing of it remains.
    let begun = std::time::Instant::now();
    let long = "select max(a.body || h.body) from logs a, logs b, logs c, logs d, logs e, logs f, logs g, logs h, logs i, logs j, logs k, \
                logs l, logs m, logs n, logs o, logs p;\n";
    let cut = json!([
        {"expect": "thalweg> "},
        {"send": long, "pause_s": 1},
        {"send": "\u{3}", "expect": "the query was cancelled"},
        {"expect": "thalweg> "},
        {"send": "\\q\n"},
    ]);
    at_prompt(&folder, &cut);
    eventually_within(Duration::from_secs(10), || {
        let cancelled = thalweg.metric("thalweg_lake_query_seconds_count", "query.cancelled")?;
        anyhow::ensure!(cancelled == 1.0, "{cancelled}");
        Ok(())
    })
    .unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(50),
        "before its own time was over"
    );
    end(&mut thalweg);

    at_prompt(&folder, &steps("Querying the files in data"));
    at_prompt(&folder, &cut);
    // The history works: the last but one entry is the long query.
    let again = json!([
        {"expect": "thalweg> "},
        {"send": "\u{1b}[A\u{1b}[A\u{1b}[A", "expect": "\\x"},
        {"send": "\u{3}", "expect": "thalweg> "},
        {"send": "\u{4}"},
    ]);
    at_prompt(&folder, &again);
    let history = std::fs::read_to_string(folder.join("state/thalweg/sql_history")).unwrap();
    assert!(history.contains("select min(body) as least from logs;"), "{history}");
    assert!(!history.contains("half a statement"), "{history}");
}

#[test]
fn a_query_over_http_keeps_its_limits_and_a_cut_answer_never_looks_whole() {
    let more = "query: {timeout: 2s, concurrency: 1}\n";
    let (mut thalweg, otlp) = start(&format!("{OFTEN}{more}"));
    fill(&thalweg, &otlp, 1, 300);
    let address = thalweg.address().unwrap();
    let api = Api::at_root(&address);
    let answer = api.post(
        "/api/sql",
        &json!({"sql": "select cast($1 as bigint) as n, $2 as t", "params": [9_007_199_254_740_993_u64, "x"]}),
    );
    assert_eq!(
        (answer.status, answer.text.trim_end()),
        (200, r#"[{"n":"9007199254740993","t":"x"}]"#)
    );
    let refused = api.post("/api/sql", &json!({"sql": "drop table logs"}));
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("sql.not_allowed"), "{}", refused.text);

    // One runs, 64 wait, and one more is told to retry.
    let endless = "select count(*) from logs a, logs b, logs c, logs d, logs e, logs f where a.body <> b.body || c.body || d.body";
    let asking: Vec<_> = (0..66)
        .map(|_| {
            let api = Api::at_root(&address);
            std::thread::spawn(move || api.post("/api/sql", &json!({"sql": endless})))
        })
        .collect();
    let answers: Vec<_> = asking.into_iter().map(|asking| asking.join().unwrap()).collect();
    let of = |status: u16, code: &str| {
        answers
            .iter()
            .filter(|answer| answer.status == status && answer.text.contains(code))
            .count()
    };
    assert_eq!((of(429, "query.busy"), of(504, "query.timeout")), (1, 65));

    // Rows are sent until its timeout; then the connection breaks, without the end of a complete response.
    let flowing = "select a.body from logs a, logs b, logs c, logs d";
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut response = agent
        .post(format!("http://{address}/api/sql?format=json"))
        .send(flowing)
        .unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let read = std::io::copy(&mut response.body_mut().as_reader(), &mut std::io::sink());
    assert!(read.is_err(), "{read:?}");
    end(&mut thalweg);
}
