//! Runs the samples of `docs/how-to/events.md` and `docs/how-to/event-subscriptions.md` unchanged against the real binary.
//! Only values that differ from run to run are replaced: the address of the server, and leases.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use thalweg_tests::{Process, beside, eventually, servers, thalweg};

use crate::events_server::{Backend, Events, TOKEN};

/// The code block of a section in a language.
fn sample(document: &str, section: &str, language: &str) -> String {
    let text = std::fs::read_to_string(beside("../docs/how-to").join(document)).unwrap();
    let (_, part) = text.split_once(&format!("\n## {section}\n")).unwrap();
    let (_, code) = part.split_once(&format!("\n```{language}\n")).unwrap();
    let (code, _) = code.split_once("\n```").unwrap();
    code.to_owned() + "\n"
}

fn at(code: &str, events: &Events) -> String {
    assert!(code.contains("127.0.0.1:8080"), "{code}");
    code.replace("127.0.0.1:8080", &events.address)
}

/// The output of a program that succeeds.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}\n{stderr}",
        output.status
    );
    stdout.into_owned()
}

#[test]
fn the_sample_for_curl_prints_what_it_says() {
    let events = Events::in_memory();
    let code = at(&sample("events.md", "With curl", "sh"), &events);
    let told: Vec<&str> = code.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    assert_eq!(told.len(), 3);
    let mut command = Command::new("sh");
    command.args(["-ec", &code]).current_dir(events.folder.path());
    let mut sample = Process::start("sample", events.folder.path(), &mut command).unwrap();
    // The last command listens until it is ended.
    let printed = eventually(|| {
        let out = sample.stdout();
        anyhow::ensure!(out.matches("event: poke").count() == 2, "{out}\n{}", sample.stderr());
        Ok(out)
    });
    let printed = printed.unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[..3], told);
    for (line, columns) in lines[3..5].iter().zip([7, 8]) {
        let rows: Value = serde_json::from_str(line).unwrap();
        let rows = rows.as_array().unwrap();
        // The group member of `7` among two is tested elsewhere.
        assert!(columns == 8 || rows.len() == 2, "{line}");
        assert!(
            rows.iter().all(|row| row.as_array().map(Vec::len) == Some(columns)),
            "{line}"
        );
    }
    drop(events);
    sample.wait().unwrap();
}

#[test]
fn the_sample_for_python_runs() {
    let events = Events::in_memory();
    let code = at(&sample("events.md", "With Python", "python"), &events);
    let printed = run(Command::new("python3").args(["-c", &code]));
    let lines: Vec<&str> = printed.lines().collect();
    let result =
        "{'count': 2, 'firstPosition': 0, 'lastPosition': 1, 'firstGlobalPosition': 1, 'lastGlobalPosition': 2}";
    assert_eq!(lines, [result, "0 Created {'total': 3}", "1 Paid {}"]);
}

#[test]
fn the_sample_for_typescript_has_no_wrong_types_and_runs() {
    let events = Events::in_memory();
    let code = at(&sample("events.md", "With TypeScript", "ts"), &events);
    let folder = events.folder.path();
    std::fs::write(folder.join("sample.mts"), code).unwrap();
    let compiler = servers::node_modules().unwrap().join("typescript/bin/tsc");
    let options = [
        "--strict",
        "--target",
        "es2022",
        "--module",
        "nodenext",
        "--lib",
        "es2022,dom",
    ];
    run(Command::new("node")
        .arg(compiler)
        .args(options)
        .arg("sample.mts")
        .current_dir(folder));
    let printed = run(Command::new("node").arg("sample.mjs").current_dir(folder));
    for part in ["'order-9'", "'Created'", "  0,", "  1,", "  null,"] {
        assert!(printed.contains(part), "{part:?} in {printed}");
    }
}

/// The commands of a block of shell code, without their comments.
fn commands(code: &str) -> Vec<String> {
    let words = |line: &str| {
        let end = line.find(" # ").or_else(|| line.find(" #")).unwrap_or(line.len());
        line[..end].trim().to_owned()
    };
    code.lines()
        .map(words)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// With `thalweg` on the path, for samples that name no server.
fn shell(events: &Events, line: &str) -> Command {
    let folder = events.folder.path();
    let _ = std::os::unix::fs::symlink(thalweg::binary(), folder.join("thalweg"));
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("sh");
    command
        .args(["-ec", line])
        .env("PATH", format!("{}:{path}", folder.display()))
        .env("THALWEG_EVENTS_URL", format!("http://{}", events.address))
        .env("THALWEG_EVENTS_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .current_dir(folder);
    command
}

#[test]
fn the_commands_of_the_shell_do_what_is_said_beside_them() {
    let (events, other) = (Events::of(Backend::Memory), Events::of(Backend::Memory));
    let folder: &Path = events.folder.path();
    std::fs::write(folder.join("messages.ndjson"), "{\"type\":\"Paid\",\"data\":{}}\n").unwrap();
    let all = commands(&sample("events.md", "At the shell", "sh"));
    let mut tail = None;
    let mut seen = Vec::new();
    for line in &all {
        let name = line.split_whitespace().nth(2).unwrap_or_default();
        seen.push(name);
        match name {
            // Already set by the environment.
            _ if line.starts_with("export THALWEG_EVENTS_URL=") => {}
            "tail" => {
                let process = Process::start("tail", folder, &mut shell(&events, &format!("exec {line}"))).unwrap();
                tail = Some(process);
            }
            // Into a store that does not have the messages yet.
            "import" => {
                std::fs::copy(
                    folder.join("orders.ndjson.gz"),
                    other.folder.path().join("orders.ndjson.gz"),
                )
                .unwrap();
                run(&mut shell(&other, line));
                let exported = run(&mut shell(&events, "thalweg events export"));
                assert_eq!(run(&mut shell(&other, "thalweg events export")), exported);
                assert_eq!(exported.lines().count(), 2);
            }
            "restore" => drop(run(&mut shell(&events, &line.replace("DIR", "restored")))),
            _ => drop(run(&mut shell(&events, line))),
        }
    }
    let expected = [
        "append",
        "append",
        "tail",
        "streams",
        "categories",
        "export",
        "import",
        "verify",
        "scavenge",
        "backup",
        "restore",
    ];
    assert_eq!(seen[1..], expected);
    assert_eq!(
        run(&mut shell(&events, "thalweg events streams --prefix order-"))
            .lines()
            .count(),
        2
    );
    // It may have started before or after this write: the write is repeated until it is seen.
    let mut tail = tail.unwrap();
    eventually(|| {
        events.call(json!(["stream.write", "order-1", {"type": "Other", "data": {}}]));
        events.call(json!(["stream.write", "order-1", {"type": "Paid", "data": {}}]));
        let out = tail.stdout();
        anyhow::ensure!(out.contains("\"type\":\"Paid\""), "{out}");
        assert!(!out.contains("Other"), "{out}");
        Ok(())
    })
    .unwrap();
    tail.signal("INT").unwrap();
    assert_eq!(tail.wait().unwrap().code(), Some(0));
}

#[test]
fn the_sample_of_a_persistent_subscription_runs_from_fetch_to_replay() {
    let events = Events::in_memory();
    events.call(json!(["stream.write", "order-7", {"type": "Created", "data": {"total": 12.5}}]));
    let code = at(&sample("event-subscriptions.md", "With curl", "sh"), &events);
    let (function, _) = code.split_once("\n\n").unwrap();
    let calls: Vec<&str> = code.lines().filter(|line| line.starts_with("rpc '")).collect();
    let mut lease = None;
    let mut answers = Vec::new();
    for call in calls {
        let call = call.replace("1.1768473000250001", lease.as_deref().unwrap_or_default());
        let printed = run(Command::new("sh").args(["-ec", &format!("{function}\n{call}")]));
        let answer: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(answer["error"], Value::Null, "{call}: {printed}");
        if call.contains("sub.fetch") {
            assert_eq!(
                (&answer[0]["attempt"], &answer[0]["message"][1]),
                (&json!(1), &json!("order-7"))
            );
            lease = answer[0]["lease"].as_str().map(str::to_owned);
        }
        answers.push(answer);
    }
    let [_, _, acked, nacked, info, parked, replayed] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!(acked, &json!({"acked": 1, "stale": []}));
    assert_eq!(nacked, &json!({"nacked": 0, "stale": [lease]}));
    assert_eq!((&info["name"], parked), (&json!("billing"), &json!([])));
    assert_eq!(replayed, &json!({"replayed": 0}));
}
