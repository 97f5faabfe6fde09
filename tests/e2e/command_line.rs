//! The command line: help, check, list, echo.

use thalweg_tests::thalweg::run;

#[test]
fn help_names_every_command_and_where_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let help = run(folder.path(), &["--help"]).unwrap();
    assert!(help.status.success());
    for word in [
        "run",
        "check",
        "lint",
        "echo",
        "list",
        "demo",
        "simulate",
        "sql",
        "thalweg demo",
    ] {
        assert!(help.stdout.contains(word), "{word} is missing in\n{}", help.stdout);
    }
}

#[test]
fn check_reports_every_mistake_at_once_with_line_column_and_nearest_name() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
input:
  opcua:
    endpoint: opc.tcp://127.0.0.1:4840
    nodeIDs: [\"ns=3;s=OpcPlc\"]
    subscribeEnable: true
    pollRate: fast
pipeline:
  processors:
    - tag_procesor:
        defaults: return msg;
output:
  drop: {}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    for command in ["check", "lint"] {
        let checked = run(folder.path(), &[command, "flow.yaml"]).unwrap();
        assert_eq!(checked.status.code(), Some(1));
        let lines: Vec<&str> = checked.stderr.lines().collect();
        assert_eq!(lines.len(), 3, "{}", checked.stderr);
        assert_eq!(
            lines[0],
            "flow.yaml:5:5: unknown field \"subscribeEnable\" in input.opcua, did you mean \"subscribeEnabled\"?"
        );
        assert!(
            lines[1].starts_with("flow.yaml:6:15: input.opcua.pollRate: expected a whole number"),
            "{}",
            lines[1]
        );
        assert!(
            lines[2].starts_with("flow.yaml:9:7: unknown processor \"tag_procesor\", did you mean \"tag_processor\"?"),
            "{}",
            lines[2]
        );
    }
}

#[test]
fn check_reports_all_mistakes_of_a_mapping_and_all_bad_node_ids_as_lines_and_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
input:
  opcua:
    endpoint: opc.tcp://127.0.0.1:4840
    nodeIDs: [\"ns=3;x=a\", \"ns=2;s=ok\", \"i=b\"]
pipeline:
  processors:
    - mapping: |
        root.a = this.foo.upcase()
        root.b = (this.c
        root.d = bar
output:
  drop: {}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    let starts: Vec<String> = checked
        .stderr
        .lines()
        .map(|line| line.chars().take(31).collect())
        .collect();
    let expected = [
        "flow.yaml:4:15: input.opcua.nod",
        "flow.yaml:4:40: input.opcua.nod",
        "flow.yaml:8:27: unknown method ",
        "flow.yaml:10:9: expected `)` to",
        "flow.yaml:10:18: unknown name `",
    ];
    assert_eq!(starts, expected, "{}", checked.stderr);
    let json = run(folder.path(), &["check", "--json", "flow.yaml"]).unwrap();
    assert_eq!((json.status.code(), json.stderr.as_str()), (Some(1), ""));
    let document: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(
        (&document["file"], &document["valid"]),
        (&"flow.yaml".into(), &false.into())
    );
    let found = document["diagnostics"].as_array().unwrap();
    let lines = found.iter().map(|one| {
        assert_eq!((&one["severity"], &one["place"]), (&"error".into(), &"line".into()));
        let message = one["message"].as_str().unwrap();
        format!("flow.yaml:{}:{}: {message}", one["line"], one["column"])
    });
    assert_eq!(lines.collect::<Vec<_>>(), checked.stderr.lines().collect::<Vec<_>>());
    let json = run(folder.path(), &["check", "--json", "missing.yaml"]).unwrap();
    let document: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let found = &document["diagnostics"][0];
    assert_eq!(
        (json.status.code(), &found["place"], &found["line"]),
        (Some(1), &"file".into(), &().into())
    );
}

#[test]
fn check_needs_nothing_that_is_not_on_this_machine_if_it_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
input:
  opcua: {endpoint: \"opc.tcp://${NO_SUCH_HOST}:4840\", nodeIDs: [\"i=85\"], password: \"${file:/nowhere/password}\"}
output:
  drop: {}
http: {cert_file: /nowhere/tls.crt, key_file: /nowhere/tls.key}
logger: {file: {path: log/thalweg.log, rotate: true}}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    assert_eq!(
        run(folder.path(), &["check", "flow.yaml"]).unwrap().status.code(),
        Some(1)
    );
    for flag in ["--without-secrets", "--skip-env-var-check"] {
        let checked = run(folder.path(), &["check", flag, "flow.yaml"]).unwrap();
        assert_eq!(checked.status.code(), Some(0), "{}", checked.stderr);
        let lines: Vec<&str> = checked.stderr.lines().collect();
        assert_eq!(lines.len(), 3, "{}", checked.stderr);
        let is_warning =
            |line: &&str| line.contains(": warning: ") && line.ends_with("what depends on it is not checked");
        assert!(lines.iter().all(is_warning), "{}", checked.stderr);
        assert_eq!(checked.stdout, "flow.yaml: 1 flow without errors\n");
    }
    assert!(!folder.path().join("log").exists(), "a check makes no files");
}

#[test]
fn the_log_goes_to_the_file_that_the_configuration_names() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
input: {generate: {mapping: root = 1, count: 2, interval: \"\"}}
output: {file: {path: out.txt, codec: lines}}
http: {enabled: false}
logger: {file: {path: log/thalweg.log}, format: json}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    for runs in 1..=2 {
        let ran = run(folder.path(), &["run", "flow.yaml"]).unwrap();
        assert_eq!(
            (ran.status.code(), ran.stdout.as_str(), ran.stderr.as_str()),
            (Some(0), "", "")
        );
        let log = std::fs::read_to_string(folder.path().join("log/thalweg.log")).unwrap();
        let lines = log
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let ends = lines.filter(|line| line["msg"].as_str().unwrap().contains("out 2 "));
        assert_eq!(ends.count(), runs, "{log}");
    }
    std::fs::create_dir(folder.path().join("taken.log")).unwrap();
    let refused = run(folder.path(), &["run", "flow.yaml", "-s", "logger.file.path=taken.log"]).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        refused.stderr.contains("logger.file.path: it is a folder"),
        "{}",
        refused.stderr
    );
}

#[test]
fn check_accepts_a_file_of_the_reference_system_with_warnings_for_legacy_fields() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
input:
  opcua:
    endpoint: opc.tcp://127.0.0.1:4840
    nodeIDs: [\"ns=2;s=Line\"]
    subscribeEnabled: true
    insecure: true
    browseHierarchicalReferences: true
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"enterprise.site\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
        conditions:
          - if: true
            then: return msg;
output:
  stdout: {}
logger:
  level: INFO
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    assert!(checked.status.success(), "{}", checked.stderr);
    assert!(
        checked.stderr.contains("flow.yaml:6:5: warning: "),
        "{}",
        checked.stderr
    );
    assert!(
        checked.stderr.contains("flow.yaml:7:5: warning: "),
        "{}",
        checked.stderr
    );
    assert!(checked.stdout.contains("1 flow without errors"), "{}", checked.stdout);
}

#[test]
fn echo_prints_the_effective_file_with_secrets_masked() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "hunter2\n").unwrap();
    let yaml = "\
input:
  opcua:
    endpoint: ${ENDPOINT:opc.tcp://127.0.0.1:4840}
    nodeIDs: [\"i=85\"]
    username: operator
    password: ${file:secret}
output:
  drop: {}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let echoed = run(folder.path(), &["echo", "flow.yaml", "-s", "input.opcua.pollRate=500"]).unwrap();
    assert!(echoed.status.success(), "{}", echoed.stderr);
    assert!(echoed.stdout.contains("opc.tcp://127.0.0.1:4840"), "{}", echoed.stdout);
    assert!(echoed.stdout.contains("pollRate: 500"), "{}", echoed.stdout);
    assert!(!echoed.stdout.contains("hunter2"), "{}", echoed.stdout);
    // A private key is masked, whatever its field is called.
    let key = "-----BEGIN PRIVATE KEY-----\\nMIIhunter2\\n-----END PRIVATE KEY-----";
    let yaml = format!(
        "input:\n  kafka:\n    addresses: [localhost:9092]\n    topics: [a]\n    consumer_group: b\n    tls:\n      enabled: true\n      \
         client_certs: [{{cert_file: c.pem, key: \"{key}\"}}]\noutput:\n  drop: {{}}\n"
    );
    std::fs::write(folder.path().join("kafka.yaml"), yaml).unwrap();
    let echoed = run(folder.path(), &["echo", "kafka.yaml"]).unwrap();
    assert!(echoed.stdout.contains("client_certs"), "{}", echoed.stdout);
    assert!(!echoed.stdout.contains("hunter2"), "{}", echoed.stdout);
}

/// A pipe that nobody reads any more.
fn left() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn a_reader_that_has_left_is_no_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let flow = "input: {stdin: {}}\noutput: {drop: {}}\n";
    std::fs::write(folder.path().join("flow.yaml"), flow).unwrap();
    std::fs::create_dir_all(folder.path().join("thalweg-data/lake")).unwrap();
    for arguments in [
        vec!["list"],
        vec!["echo", "flow.yaml"],
        vec!["check", "flow.yaml"],
        vec!["sql", "--format", "csv", "select 1 as x"],
    ] {
        let output = std::process::Command::new(thalweg_tests::thalweg::binary())
            .args(&arguments)
            .current_dir(folder.path())
            .stdout(left())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {error}");
    }
    let unread = std::process::Command::new(thalweg_tests::thalweg::binary())
        .args(["check", "missing.yaml"])
        .current_dir(folder.path())
        .stderr(left())
        .output()
        .unwrap();
    assert_eq!(unread.status.code(), Some(1), "101 would be a panic");
}

#[test]
fn check_knows_what_this_version_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "\
metrics: {mapping: root = this}
scripting: {stack: 7MiB}
memory: {limit: 1GiB}
lake: {memory: 900MiB, rollup: {lateness: 1m}, flush: {interval: 1ms}}
query: {memory: 500MiB, timout: 5s}
input: {stdin: {}}
output: {drop: {}}
";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let starts: Vec<String> = checked
        .stderr
        .lines()
        .map(|line| line.chars().take(40).collect())
        .collect();
    let expected = [
        "flow.yaml:1:20: metrics.mapping: this ve",
        "flow.yaml:2:20: scripting.stack: a scrip",
        "flow.yaml:4:16: the parts of memory.limi",
        "flow.yaml:4:43: lake.rollup.lateness: ex",
        "flow.yaml:4:66: lake.flush.interval: exp",
        "flow.yaml:5:25: unknown field \"timout\" i",
    ];
    assert_eq!(starts, expected, "{}", checked.stderr);
}

/// A flow of 100 numbers with scripts of each kind.
const SCRIPTS: &str = r#"
input: {generate: {interval: "", count: 100, mapping: "root = counter()\nmeta unit = \"F\""}}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = "ent.site";
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = "temp";
          return msg;
        conditions:
          - if: msg.meta.unit === "F"
            then: |
              msg.payload = Math.round((msg.payload - 32) / 1.8);
              return msg;
          - if: msg.payload > 10
            then: |
              const seen = new Set([msg.meta.unit]);
              msg.meta.units = seen.size;
              return msg;
output: {file: {path: out.txt, codec: lines}}
"#;

#[test]
fn check_explains_how_scripts_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), SCRIPTS).unwrap();
    let checked = run(folder.path(), &["check", "--explain", "flow.yaml"]).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{}", checked.stderr);
    let expected = [
        "flow.yaml:7:11: defaults: native code, once for each tag",
        "flow.yaml:12:17: condition-0-if: native code, once for each tag",
        "flow.yaml:14:15: condition-0-then: native code, for each message: sets msg.payload at 14:15",
        "flow.yaml:16:17: condition-1-if: native code, for each message: reads msg.payload at 16:17",
        "flow.yaml:18:15: condition-1-then: QuickJS: new Set at 18:28",
        "flow.yaml: 1 flow without errors",
    ];
    assert_eq!(checked.stdout.lines().collect::<Vec<_>>(), expected);
    let native = format!("scripting: {{engine: native}}{SCRIPTS}");
    std::fs::write(folder.path().join("flow.yaml"), native).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    assert_eq!(checked.status.code(), Some(1));
    let mistake = "flow.yaml:18:28: failed to compile JavaScript programs: failed to compile condition 1 'then' code: \
                   new Set cannot run as native code; use scripting.engine: auto (line 1, column 14)";
    assert_eq!(checked.stderr.lines().next(), Some(mistake));
}

#[test]
fn every_engine_gives_the_same() {
    let mut first = None;
    for engine in ["auto", "quickjs", "verify"] {
        let folder = tempfile::tempdir().unwrap();
        let yaml = format!("scripting: {{engine: {engine}}}\nhttp: {{enabled: false}}{SCRIPTS}");
        std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
        let ran = run(folder.path(), &["run", "flow.yaml"]).unwrap();
        assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(!said.contains("differ"), "{said}");
        let told = said.contains("condition-1-then runs in QuickJS, not as native code: new Set (line 1, column 14)");
        assert_eq!(told, engine != "quickjs", "{said}");
        let written = std::fs::read_to_string(folder.path().join("out.txt")).unwrap();
        let values: Vec<String> = written
            .lines()
            .map(|line| line.split(',').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(values.len(), 100, "{written}");
        assert_eq!(values.get(99).map(String::as_str), Some("{\"value\":38"), "{written}");
        assert_eq!(first.get_or_insert(values.clone()), &values, "{engine}");
    }
}

#[test]
fn list_names_the_components() {
    let folder = tempfile::tempdir().unwrap();
    let listed = run(folder.path(), &["list"]).unwrap();
    for name in [
        "opcua",
        "generate",
        "stdin",
        "file",
        "tag_processor",
        "classic_to_core",
        "topic_browser",
        "mapping",
        "log",
        "drop",
        "stdout",
        "broker",
        "lake",
    ] {
        assert!(
            listed.stdout.lines().any(|line| line.trim() == name),
            "{name} is missing in\n{}",
            listed.stdout
        );
    }
}

#[test]
fn a_simulator_that_other_hosts_reach_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let simulate = |host: &[&str]| {
        let few = ["--port=0", "--slow-nodes=1", "--fast-nodes=1", "--until-stdin-ends"];
        let simulated = run(folder.path(), &[&["simulate", "opcua"], host, &few].concat()).unwrap();
        assert!(simulated.status.success(), "{}", simulated.stderr);
        simulated.stderr
    };
    assert_eq!(simulate(&[]), "");
    let open = simulate(&["--host=0.0.0.0"]);
    assert!(open.starts_with("other hosts reach this simulator"), "{open}");
}
