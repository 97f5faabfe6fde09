//! A file that is checked on a machine that lacks what it names.

use super::*;

const HEAD: &str = "data_dir: ${DATA}\nmemory: {limit: \"${MEMORY}\"}\n";

fn checked(text: &str, allows_absent: bool) -> CheckedConfig {
    let options = LoadOptions {
        allows_absent,
        ..LoadOptions::default()
    };
    let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &options);
    checked.verify_start();
    checked
}

/// Variables and files in every kind of place.
fn plant() -> String {
    format!(
        "{HEAD}
input:
  opcua:
    endpoint: opc.tcp://${{PLC}}:4840
    nodeIDs: ${{NODES}}
    pollRate: ${{RATE}}
    password: ${{file:/nowhere/password}}
pipeline:
  processors:
    - mapping: |
        root.site = ${{SITE}}
        root.value = this.value
    - tag_processor:
        defaults: |
          msg.meta.location_path = ${{LOCATION}};
          return msg;
    - ${{PROCESSOR}}
output:
  broker:
    outputs:
      - resource: ${{TARGET}}
      - kafka: {{addresses: ['${{BROKER}}'], topic: '${{! meta(\"a\") }}${{TOPIC}}'}}
http:
  address: ${{HOST}}:4195
  cert_file: /nowhere/tls.crt
  key_file: ${{file:/nowhere/key}}
auth:
  users_file: /nowhere/users
  tokens:
    - {{name: a, file: /nowhere/token, roles: [read]}}
    - {{name: b, sha256: '${{HASH}}', roles: [read]}}
"
    )
}

#[test]
fn what_is_not_on_this_machine_is_a_warning() {
    let checked = checked(&plant(), true);
    let found = checked.diagnostics.sorted();
    let shown = checked.diagnostics.to_string();
    assert!(!checked.diagnostics.has_errors(), "{shown}");
    for absent in [
        "DATA",
        "MEMORY",
        "PLC",
        "NODES",
        "RATE",
        "SITE",
        "LOCATION",
        "PROCESSOR",
        "TARGET",
        "BROKER",
        "TOPIC",
        "HOST",
        "HASH",
    ] {
        let text = format!("environment variable {absent} is not set; what depends on it is not checked");
        assert_eq!(
            found.iter().filter(|found| found.message == text).count(),
            1,
            "{absent}: {shown}"
        );
    }
    for file in [
        "/nowhere/password",
        "/nowhere/key",
        "/nowhere/tls.crt",
        "/nowhere/users",
        "/nowhere/token",
    ] {
        assert!(shown.contains(file), "{file}: {shown}");
    }
    assert_eq!(found.len(), 18, "nothing else: {shown}");
}

#[test]
fn without_the_option_it_is_an_error_and_nothing_else_is_told_of_it() {
    let checked = checked(&plant(), false);
    let found = checked.diagnostics.sorted();
    assert!(
        found
            .iter()
            .all(|found| found.severity == thalweg_config::Severity::Error)
    );
    assert_eq!(found.len(), 18, "{}", checked.diagnostics);
}

#[test]
fn other_mistakes_are_found_all_the_same() {
    let text = "
input:
  opcua:
    endpoint: ${PLC}
    nodeIDs: [${NODE}, ns=x;i=1, 'ns=2;q=1']
    pollRat: 5
pipeline: {processors: [{mapping: 'root = foo + bar'}]}
output: {drop: {}}
http: {address: '192.0.2.7:4195'}
auth: {users_file: /}
";
    let checked = checked(text, true);
    let errors = checked.diagnostics.sorted();
    let errors = errors
        .iter()
        .filter(|found| found.severity == thalweg_config::Severity::Error);
    let places: Vec<(u32, u32)> = errors.map(|found| (found.pos.line, found.pos.column)).collect();
    assert_eq!(
        places,
        [(5, 24), (5, 34), (6, 5), (7, 43), (7, 49), (9, 17), (10, 20)],
        "{}",
        checked.diagnostics
    );
}

#[test]
fn a_file_of_which_nothing_is_known_has_no_errors() {
    for text in ["${ALL}", "input: ${INPUT}\noutput: ${OUTPUT}\n", "flows: ${FLOWS}\n"] {
        let checked = checked(text, true);
        assert!(!checked.diagnostics.has_errors(), "{text}: {}", checked.diagnostics);
        assert!(!checked.diagnostics.sorted().is_empty(), "{text}");
    }
}
