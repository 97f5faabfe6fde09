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
fn every_example_passes_the_check() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let command = std::process::Command::new(thalweg_tests::thalweg::binary())
                .arg("check")
                .arg(&path)
                .env("ENDPOINT", "opc.tcp://127.0.0.1:4840")
                .output()
                .unwrap();
            assert!(
                command.status.success(),
                "{}: {}",
                path.display(),
                String::from_utf8_lossy(&command.stderr)
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "no examples found in {examples}");
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
