//! The OPC UA output against real servers: values reported as written are the values that another client reads.

use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::thalweg::run;
use thalweg_tests::{Thalweg, eventually};

use crate::opcua::{SECURE, flow, newest};

/// Type, value in the message, value at the node.
const VALUES: &[(&str, &str, &str)] = &[
    ("Boolean", "\"TRUE\"", "true"),
    ("SByte", "-128.9", "-128"),
    ("Byte", "255", "255"),
    ("Int16", "\"-32768\"", "-32768"),
    ("UInt16", "6.5535e4", "65535"),
    ("Int32", "-2147483648", "-2147483648"),
    ("UInt32", "4294967295", "4294967295"),
    ("Int64", "-9223372036854775808", "-9223372036854775808"),
    ("UInt64", "\"18446744073709551615\"", "18446744073709551615"),
    ("Float", "0.5", "0.5"),
    ("Double", "0.1", "0.1"),
    ("String", "{\"text\": [1, 2]}", "\"{\\\"text\\\":[1,2]}\""),
    ("DateTime", "\"2031-05-06 07:08:09\"", "\"2031-05-06T07:08:09Z\""),
];

/// All of [`VALUES`] in one message, one level deep.
fn message() -> String {
    let members: Vec<String> = VALUES
        .iter()
        .map(|(kind, value, _)| format!("\"{kind}\": {value}"))
        .collect();
    format!("{{\"of\": {{{}}}}}\n", members.join(", "))
}

fn mappings(prefix: &str) -> String {
    let one = |kind: &str| format!("{{nodeId: \"{prefix}{kind}\", valueFrom: of.{kind}, dataType: {kind}}}");
    VALUES
        .iter()
        .map(|(kind, ..)| format!("      - {}\n", one(kind)))
        .collect()
}

/// A flow from the lines of a file to nodes.
fn lines_to_nodes(server: &Server, more: &str, mappings: &str) -> String {
    format!(
        "input:\n  file: {{paths: [in.jsonl]}}\noutput:\n  opcua:\n    endpoint: {}\n    reconnectIntervalInSeconds: 1\n{more}    nodeMappings:\n{mappings}",
        server.endpoint
    )
}

fn write(server: &Server, more: &str, mappings: &str, lines: &str) -> Thalweg {
    Thalweg::spawn_with(&lines_to_nodes(server, more, mappings), &[("in.jsonl", lines)]).unwrap()
}

/// Values of nodes as another client reads them, by browse name.
fn values_below(server: &Server, node: &str, more: &str, expected: &[(String, &str)]) {
    let mut reader = Thalweg::start(&flow(server, node, more)).unwrap();
    eventually(|| {
        let values = newest(&reader);
        for (name, value) in expected {
            let found = values.get(name).map(|(payload, _)| payload.as_str());
            anyhow::ensure!(found == Some(value), "{name}: {found:?} instead of {value}");
        }
        Ok(())
    })
    .unwrap();
    reader.stop().unwrap();
}

fn every_type(kind: Kind, arguments: &[&str], nodes: (&str, &str), more: &str, name: impl Fn(&str) -> String) {
    let server = Server::start(kind, arguments).unwrap();
    let (root, prefix) = nodes;
    let mut writer = write(&server, more, &mappings(prefix), &message());
    let balance = writer.finish().unwrap();
    assert_eq!((balance.entered, balance.out), (1, 1));
    let expected: Vec<(String, &str)> = VALUES.iter().map(|(kind, _, value)| (name(kind), *value)).collect();
    values_below(&server, root, more, &expected);
}

#[test]
fn every_type_arrives_at_the_simulator() {
    let arguments = ["--port", "0", "--slow-nodes", "0", "--fast-nodes", "0", "--types"];
    let name = |kind: &str| format!("Writable{kind}");
    every_type(
        Kind::Simulator,
        &arguments,
        ("ns=3;s=OpcPlc", "ns=3;s=TypesWritable"),
        "",
        name,
    );
}

#[test]
fn every_type_arrives_at_asyncua_without_and_with_security() {
    let name = |kind: &str| format!("Setpoint{kind}");
    let nodes = ("ns=2;s=Setpoints", "ns=2;s=Setpoint.");
    for more in ["", SECURE] {
        every_type(Kind::Asyncua, &["--port", "0", "--writable"], nodes, more, name);
    }
}

#[test]
fn every_type_arrives_at_node_opcua_without_and_with_security() {
    let name = |kind: &str| format!("Setpoint{kind}");
    let nodes = ("ns=1;s=Setpoints", "ns=1;s=Setpoint.");
    for more in ["", SECURE] {
        every_type(Kind::NodeOpcua, &["--port", "0", "--writable"], nodes, more, name);
    }
}

/// The server waits for a device before it reports that the device is absent.
#[test]
fn a_device_that_is_not_there_holds_up_no_other_at_node_opcua() {
    let server = Server::start(Kind::NodeOpcua, &["--port", "0", "--writable"]).unwrap();
    let mapping = "      - {nodeId: \"ns=1;s=${! json(\\\"node\\\") }\", valueFrom: v, dataType: UInt32}\n";
    let output = lines_to_nodes(&server, "", mapping);
    let input = r#"input:
  generate:
    interval: 5ms
    count: 300
    mapping: |
      let n = counter()
      root.v = $n
      root.node = if $n == 1 { "Dead" } else { "Setpoint.UInt32" }
"#;
    let yaml = output.replace("input:\n  file: {paths: [in.jsonl]}\n", input);
    // The first message never ends, so the writer does not end either.
    let mut writer = Thalweg::start(&yaml).unwrap();
    values_below(&server, "ns=1;s=Setpoints", "", &[("SetpointUInt32".to_owned(), "300")]);
    eventually(|| {
        let held_up = writer.metric("thalweg_opcua_nodes_held_up", "")?;
        anyhow::ensure!(held_up == 1.0, "{held_up} nodes are held up");
        Ok(())
    })
    .unwrap();
    writer.process.kill().unwrap();
}

#[test]
fn nodes_are_found_by_the_uri_of_their_namespace() {
    let arguments = ["--port", "0", "--writable", "--namespaces-before", "2"];
    let name = |kind: &str| format!("Setpoint{kind}");
    let nodes = ("ns=4;s=Setpoints", "nsu=urn:thalweg:test:plant;s=Setpoint.");
    every_type(Kind::Asyncua, &arguments, nodes, "", name);
}

#[test]
fn what_a_server_does_not_take_is_a_dead_letter_and_the_others_are_written() {
    let server = Server::start(Kind::Asyncua, &["--port", "0", "--writable"]).unwrap();
    let mappings =
        "      - {nodeId: \"ns=2;s=${! json(\\\"node\\\") }\", valueFrom: v, dataType: \"${! json(\\\"type\\\") }\"}\n";
    let lines = [
        r#"{"node": "Setpoint.Int16", "type": "Int16", "v": 1}"#,
        r#"{"node": "Setpoint.Int16", "type": "Int32", "v": 2}"#,
        r#"{"node": "Setpoint.Int16", "type": "Int16", "v": 40000}"#,
        r#"{"node": "Setpoint.None", "type": "Int16", "v": 3}"#,
        r#"{"node": "Types.Int16", "type": "Int16", "v": 4}"#,
        r#"{"node": "Setpoint.Int16", "type": "Int8", "v": 5}"#,
        r#"{"node": "Setpoint.Int16", "type": "Int16"}"#,
        "[6]",
        r#"{"node": "Setpoint.Int16", "type": "Int16", "v": 7}"#,
    ];
    let dead = "dead_letter: {file: {path: dead.txt, codec: lines}}\npipeline:\n  threads: 1\n";
    let yaml = format!("{}{dead}", lines_to_nodes(&server, "", mappings));
    let mut writer = Thalweg::spawn_with(&yaml, &[("in.jsonl", &format!("{}\n", lines.join("\n")))]).unwrap();
    writer.finish().unwrap();
    let dead = std::fs::read_to_string(writer.folder.path().join("dead.txt")).unwrap();
    let mut refused: Vec<&str> = dead.lines().collect();
    refused.sort_unstable();
    let mut expected = lines[1..8].to_vec();
    expected.sort_unstable();
    assert_eq!(refused, expected);
    values_below(&server, "ns=2;s=Setpoints", "", &[("SetpointInt16".to_owned(), "7")]);
}

#[test]
fn a_server_that_dies_gets_the_rest_when_it_is_back() {
    let arguments = ["--port", "0", "--writable"];
    let mut server = Server::start(Kind::Asyncua, &arguments).unwrap();
    let port = server.port().unwrap().to_string();
    let mapping = "      - {nodeId: \"ns=2;s=Setpoint.UInt32\", valueFrom: v, dataType: UInt32}\n";
    let output = lines_to_nodes(&server, "", mapping);
    let input = "input:\n  generate: {interval: 20ms, count: 300, mapping: root.v = counter()}\n";
    let yaml = output.replace("input:\n  file: {paths: [in.jsonl]}\n", input);
    let mut writer = Thalweg::start(&yaml).unwrap();
    let out = |writer: &Thalweg| writer.metric("output_sent", "").unwrap_or(0.0);
    eventually(|| {
        anyhow::ensure!(out(&writer) > 20.0, "{:?}", writer.request("/ready"));
        Ok(())
    })
    .unwrap();
    server.process.kill().unwrap();
    eventually(|| {
        let (status, why) = writer.request("/ready")?;
        anyhow::ensure!(status == 503 && why.contains("opcua"), "{status} {why}");
        Ok(())
    })
    .unwrap();
    eventually(|| {
        let failed = writer.metric("output_connection_failed", "")?;
        anyhow::ensure!(failed > 0.0, "it does not try to connect");
        Ok(())
    })
    .unwrap();
    let again = Server::start(Kind::Asyncua, &["--port", &port, "--writable"]).unwrap();
    let balance = writer.finish().unwrap();
    assert_eq!((balance.entered, balance.out, balance.dropped), (300, 300, 0));
    values_below(&again, "ns=2;s=Setpoints", "", &[("SetpointUInt32".to_owned(), "300")]);
}

#[test]
fn mistakes_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "input:\n  generate: {mapping: root.v = 1}\noutput:\n  opcua:\n    endpoint: opc.tcp://plc:4840\n    nodeMappings:\n      - {nodeId: \"ns=2\", valueFrom: v, dataType: Int8}\n";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let checked = run(folder.path(), &["check", "flow.yaml"]).unwrap();
    let text = format!("{}{}", checked.stdout, checked.stderr);
    for part in [
        "flow.yaml:7:18: ",
        "\"ns=2\" is not a NodeID",
        "unsupported dataType 'Int8'. Supported types are: Boolean, SByte,",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}
