use std::time::Duration;

use opcua::crypto::SecurityPolicy;
use opcua::types::MessageSecurityMode;
use thalweg_config::{Diagnostics, Node};

use super::*;
use crate::config::Identity;

fn parse(yaml: &str) -> Result<(InputConfig, String), String> {
    let node = Node::parse(yaml).unwrap();
    let diagnostics = Diagnostics::new("flow.yaml");
    match InputConfig::parse(&node, &diagnostics) {
        Some(config) => Ok((config, diagnostics.to_string())),
        None => Err(diagnostics.to_string()),
    }
}

const LEAST: &str = "endpoint: opc.tcp://plc:4840\nnodeIDs: [\"ns=2;s=a\"]\n";

fn error(yaml: &str) -> String {
    parse(yaml).map(|_| ()).unwrap_err()
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let (config, warnings) = parse(LEAST).unwrap();
    assert_eq!(warnings, "");
    assert!(!config.subscribe && !config.heartbeat && !config.connection.direct_connect);
    assert_eq!(config.poll_rate, Duration::from_secs(1));
    assert_eq!((config.queue_size, config.sampling_interval_ms), (10, 0.0));
    assert_eq!(
        (config.publishing_interval, config.keep_alive_count),
        (Duration::from_millis(100), 50)
    );
    assert_eq!(
        (config.notifications_per_publish_max, config.items_per_subscription),
        (10_000, 10_000)
    );
    assert_eq!((config.publish_requests, config.connections), (4, 1));
    assert_eq!(config.deadband, Deadband::Absolute(0.0));
    assert!(config.deadband_rules.is_empty());
    assert_eq!(
        (
            config.browse.depth_max,
            config.browse.nodes_max,
            config.browse.properties
        ),
        (25, 0, true)
    );
    assert_eq!(config.tag_group_mode, TagGroupMode::Clean);
    assert_eq!(config.bad_values, BadValues::Auto);
    assert_eq!(config.connection.session_timeout, Duration::from_secs(10));
    assert_eq!(config.connection.reconnect_interval, Duration::from_secs(5));
    assert!(config.connection.security.is_none());
    assert!(matches!(config.connection.identity, Identity::Anonymous));
    assert_eq!(config.connection.profile, None);
}

#[test]
fn values_that_mean_a_default_become_one() {
    let (config, _) = parse(&format!("{LEAST}pollRate: 0\nsessionTimeout: -1\n")).unwrap();
    assert_eq!(config.poll_rate, Duration::from_secs(1));
    assert_eq!(config.connection.session_timeout, Duration::from_secs(5));
    // The maximum is one day.
    let day = Duration::from_secs(86_400);
    let (config, _) = parse(&format!("{LEAST}pollRate: 86400001\nsessionTimeout: 86400001\n")).unwrap();
    assert_eq!((config.poll_rate, config.connection.session_timeout), (day, day));
}

#[test]
fn a_full_configuration_is_read() {
    let yaml = r#"
endpoint: opc.tcp://plc:4840/ua
nodeIDs: ["ns=2;s=a", "i=85", "nsu=urn:x;i=4"]
username: operator
password: secret
securityMode: SignAndEncrypt
securityPolicy: Aes256Sha256RsaPss
profile: siemens-s7-1500
subscribeEnabled: true
useHeartbeat: true
deadband: {type: percent, value: 2.5}
deadbandRules:
  - {pattern: "*Temp*", type: none}
  - {pattern: "ns=2;s=P*", type: absolute, value: 4}
browse: {maxDepth: 3, maxNodes: 10, include: ["A.*"], exclude: ["*.B"], properties: false}
tagGroupMode: reference
bad_values: pass
"#;
    let (config, _) = parse(yaml).unwrap();
    assert_eq!(config.nodes.len(), 3);
    let security = config.connection.security;
    assert_eq!(security.mode, Some(MessageSecurityMode::SignAndEncrypt));
    assert_eq!(security.policy.unwrap().0, SecurityPolicy::Aes256Sha256RsaPss);
    assert!(matches!(config.connection.identity, Identity::User { .. }));
    assert_eq!(config.deadband, Deadband::Percent(2.5));
    assert_eq!(config.deadband_rules[1].deadband, Deadband::Absolute(4.0));
    assert!(config.deadband_rules[0].pattern.is_match("Plant.Line.Temp1"));
    assert_eq!(config.tag_group_mode, TagGroupMode::Reference);
    assert_eq!(config.bad_values, BadValues::Pass);
    assert!(config.browse.include.unwrap().is_match("A.b.c"));
}

#[test]
fn every_mistake_is_told_at_once_with_its_place() {
    let text = error(
        "endpoint: http://plc\nnodeIDs: [\"ns=x;i=1\", \"i=85\", \"ns=2;foo\"]\nsubscribeEnable: true\nprofile: simens\nsecurityMode: Sing\n",
    );
    for part in [
        "flow.yaml:1:11: endpoint: endpoint \"http://plc\" does not begin with opc.tcp://",
        "flow.yaml:2:11: nodeIDs[0]: \"ns=x;i=1\" is not a NodeID: the namespace is not a number",
        "nodeIDs[2]: \"ns=2;foo\" is not a NodeID",
        "flow.yaml:3:1: unknown field \"subscribeEnable\", did you mean \"subscribeEnabled\"?",
        "profile: expected one of auto, unknown",
        "did you mean \"Sign\"?",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn nodes_are_required() {
    assert!(error("endpoint: opc.tcp://x\nnodeIDs: []\n").contains("nodeIDs: no nodeIDs provided"));
    assert!(error("endpoint: opc.tcp://x\n").contains("missing required field \"nodeIDs\""));
    assert!(error("nodeIDs: [i=85]\n").contains("missing required field \"endpoint\""));
}

#[test]
fn contradictions_and_bad_values_are_refused() {
    for (yaml, part) in [
        (
            "securityMode: None\nsecurityPolicy: Basic256",
            "excludes every endpoint",
        ),
        ("securityMode: Sign\nsecurityPolicy: None", "excludes every endpoint"),
        ("deadband: {type: absolute, value: -1}", "0 or more"),
        ("deadband: {type: percent, value: 101}", "at most 100 percent"),
        ("deadbandRules: [{pattern: \"[\"}]", "is not a glob"),
        ("browse: {include: [\"{\"]}", "is not a glob"),
        ("serverCertificateFingerprint: abc", "expected the 128 hex digits"),
        ("clientCertificate: \"!!\"", "expected base64"),
        ("clientCertificate: aGVsbG8=", "PEM bundle"),
        ("connections: 17", "from 1 to 16"),
        ("publishRequests: 1", "from 2 to 16"),
        ("samplingInterval: -1", "0 or more milliseconds"),
        ("bad_values: keep", "expected one of auto, drop, pass"),
    ] {
        let text = error(&format!("{LEAST}{yaml}\n"));
        assert!(text.contains(part), "{yaml}: {text}");
    }
}

#[test]
fn legacy_fields_warn_and_say_what_they_do() {
    let yaml = format!(
        "{LEAST}insecure: true\nautoReconnect: false\nbrowseHierarchicalReferences: true\ndeadbandType: percent\ndeadbandValue: 3\n"
    );
    let (config, warnings) = parse(&yaml).unwrap();
    assert_eq!(config.deadband, Deadband::Percent(3.0));
    for name in [
        "insecure",
        "autoReconnect",
        "browseHierarchicalReferences",
        "deadbandType",
        "deadbandValue",
    ] {
        assert!(warnings.contains(&format!("warning: {name} ")), "{name}\n{warnings}");
    }
}

#[test]
fn trust_without_security_warns_that_it_has_no_effect() {
    let digest = "ab".repeat(32);
    let trust = format!("serverCertificateFingerprint: {digest}\ntrustFolder: /trust\n");
    for security in ["", "securityMode: None\n"] {
        let (_, warnings) = parse(&format!("{LEAST}{trust}{security}")).unwrap();
        for place in [
            "flow.yaml:3:31: warning: serverCertificateFingerprint",
            "flow.yaml:4:14: warning: trustFolder",
        ] {
            assert!(warnings.contains(place), "{place}\n{warnings}");
        }
        assert!(
            warnings.contains("has no effect on a connection without security; set securityMode"),
            "{warnings}"
        );
    }
    let (_, warnings) = parse(&format!("{LEAST}{trust}securityMode: Sign\n")).unwrap();
    assert_eq!(warnings, "");
    let (_, warnings) = parse(&format!("{LEAST}trustFolder: \"\"\n")).unwrap();
    assert_eq!(warnings, "");
}

#[test]
fn a_password_is_not_shown_by_debug() {
    let (config, _) = parse(&format!("{LEAST}username: u\npassword: topsecret\n")).unwrap();
    assert!(!format!("{config:?}").contains("topsecret"));
}
