use thalweg_config::{Diagnostics, LoadOptions, SourceText, load};
use thalweg_log::Durability;
use thalweg_mqtt::{
    AclAction, AclRule, AclSubject, CertificateIdentity, ClientAuth, DeniedV3Publish, ListenerKind,
    MqttListenerSettings, MqttSettings, RateLimit, SessionOverflow, SharedStrategy,
};
use thalweg_mqtt_wire::{ProtocolVersion, QoS};

use super::section::{MqttSection, NOT_YET, section};
use crate::checked_config::CheckedConfig;

/// The section of a text, and all messages but those about keys that are not available yet.
fn read(text: &str) -> (MqttSection, String) {
    let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    assert_eq!(loaded.diagnostics.to_string(), "", "{text}");
    let diagnostics = Diagnostics::new("f.yaml");
    let section = section(&loaded.config, &diagnostics).unwrap();
    let messages = diagnostics.to_string();
    let told = messages.lines().filter(|line| !line.contains("not available yet"));
    (section, told.map(|line| format!("{line}\n")).collect())
}

/// What a check says of a whole file.
fn check(text: &str) -> String {
    let checked = CheckedConfig::text(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
    checked.verify_start();
    checked.diagnostics.to_string()
}

#[test]
fn an_empty_section_is_complete_and_has_the_defaults_of_the_broker() {
    let (section, messages) = read("mqtt: {}\n");
    assert_eq!(messages, "");
    assert_eq!(section.broker, MqttSettings::default());
    assert_eq!(
        (section.durability, section.is_insecure, section.needs_login),
        (None, false, false)
    );
    let settings: Vec<_> = section.listeners.iter().map(|listener| &listener.settings).collect();
    assert_eq!(
        settings,
        [&MqttListenerSettings::new(ListenerKind::Tcp, "127.0.0.1:1883")]
    );
    assert_eq!(check("mqtt: {}\n"), "");
    // Written out, the defaults are the same.
    let (empty, _) = read("mqtt: {session: {}, store: {}, retained: {}, limits: {connect_rate: off}}\n");
    assert_eq!(empty.broker, section.broker);
    // No listener is one of the choices.
    assert!(read("mqtt: {listeners: []}\n").0.listeners.is_empty());
}

/// Every key, with another value than the default.
pub(super) const EVERYTHING: &str = "\
mqtt:
  listeners:
    - {kind: tcp, address: '127.0.0.1:0', proxy_protocol: true, max_connections: 7, versions: [3.1, 3.1.1, 5.0]}
    - {kind: tls, address: 'localhost:8883', cert_file: s.pem, key_file: s.key, client_auth: optional, client_ca_file: ca.pem,
       crl_file: crl.pem, identity: uri, versions: [5.0]}
    - {kind: ws, address: '127.0.0.1:8083', path: /x, origins: ['https://plant.example']}
    - {kind: wss, address: '[::1]:8084', cert_file: s.pem, key_file: s.key}
  anonymous: true
  insecure: true
  acl:
    - {role: write, allow: publish, topics: ['plant/%u/#']}
    - {user: ada, deny: subscribe, topics: ['$queue/+']}
    - {client: c1, allow: all, topics: ['#']}
    - {anonymous: true, deny: all, topics: [a, b]}
  client_id_binding: false
  connect_timeout: 3s
  max_keep_alive: 5m
  max_packet_size: 24MiB
  receive_maximum: 65535
  topic_alias_max: 0
  topic_alias_max_out: 65535
  max_topic_levels: 1024
  max_qos: 1
  retain_available: false
  strict_utf8: true
  check_payload_format: true
  v3_denied_publish: close
  max_session_expiry: never
  v3_session_expiry: 24h
  session: {max_queued: 10000000, overflow: drop-newest, max_inflight: 20, memory_queue: 256KiB}
  send_buffer: 64KiB
  durability: os
  store: {max_bytes: 1GiB, ack_flush: 10s}
  retained: {max_messages: 5, max_bytes: 1KiB}
  shared_strategy: hash-topic
  limits:
    connections: 5
    connecting: 6
    subscriptions: 7
    connect_rate: {per_second: 0.5, burst: 3}
    publish_rate: {per_second: 12.5}
    subscribe_rate: off
  server_reference: other:1883
  response_information: answers/%c
  sys_interval: 0s
  memory: 64MiB
";

#[test]
fn every_key_is_read() {
    let (section, messages) = read(EVERYTHING);
    assert_eq!(messages, "");
    let rule = |who, is_allowed, action, topics: &[&str]| AclRule {
        who,
        is_allowed,
        action,
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
    };
    let expected = MqttSettings {
        anonymous: true,
        acl: Some(vec![
            rule(
                AclSubject::Role("write".to_owned()),
                true,
                AclAction::Publish,
                &["plant/%u/#"],
            ),
            rule(
                AclSubject::User("ada".to_owned()),
                false,
                AclAction::Subscribe,
                &["$queue/+"],
            ),
            rule(AclSubject::Client("c1".to_owned()), true, AclAction::All, &["#"]),
            rule(AclSubject::Anonymous, false, AclAction::All, &["a", "b"]),
        ]),
        client_id_binding: false,
        connect_timeout: std::time::Duration::from_secs(3),
        max_keep_alive: 300,
        max_packet_size: 24 << 20,
        receive_maximum: 65_535,
        topic_alias_max: 0,
        topic_alias_max_out: 65_535,
        max_topic_levels: 1024,
        max_qos: QoS::AtLeastOnce,
        retain_available: false,
        strict_utf8: true,
        check_payload_format: true,
        v3_denied_publish: DeniedV3Publish::Close,
        max_session_expiry: u32::MAX,
        v3_session_expiry: 86_400,
        max_queued: 10_000_000,
        overflow: SessionOverflow::DropNewest,
        max_inflight: 20,
        memory_queue: 256 << 10,
        send_buffer: 64 << 10,
        store_bytes: 1 << 30,
        ack_flush: std::time::Duration::from_secs(10),
        retained_messages: 5,
        retained_bytes: 1024,
        shared_strategy: SharedStrategy::HashTopic,
        connections: 5,
        connecting: 6,
        subscriptions: 7,
        connect_rate: Some(RateLimit {
            per_second: 0.5,
            burst: 3,
        }),
        publish_rate: Some(RateLimit {
            per_second: 12.5,
            burst: 13,
        }),
        subscribe_rate: None,
        server_reference: Some("other:1883".to_owned()),
        response_information: Some("answers/%c".to_owned()),
        sys_interval: std::time::Duration::ZERO,
        // The other two are set when the process starts.
        ..MqttSettings::default()
    };
    assert_eq!(section.broker, expected);
    assert_eq!((section.durability, section.is_insecure), (Some(Durability::Os), true));
    assert_eq!(section.memory.map(|(bytes, _)| bytes), Some(64 << 20));
    let [tcp, tls, ws, wss] = &section.listeners[..] else {
        panic!("{:?}", section.listeners);
    };
    let expected = MqttListenerSettings {
        proxy_protocol: true,
        max_connections: 7,
        ..MqttListenerSettings::new(ListenerKind::Tcp, "127.0.0.1:0")
    };
    assert_eq!(tcp.settings, expected);
    let expected = MqttListenerSettings {
        cert_file: Some("s.pem".into()),
        key_file: Some("s.key".into()),
        client_auth: ClientAuth::Optional,
        client_ca_file: Some("ca.pem".into()),
        crl_file: Some("crl.pem".into()),
        identity: CertificateIdentity::Uri,
        versions: vec![ProtocolVersion::V5],
        ..MqttListenerSettings::new(ListenerKind::Tls, "localhost:8883")
    };
    assert_eq!(tls.settings, expected);
    assert_eq!((ws.settings.path.as_str(), ws.settings.origins.len()), ("/x", 1));
    assert_eq!(
        (wss.settings.kind, wss.settings.path.as_str()),
        (ListenerKind::Wss, "/mqtt")
    );
}

#[test]
fn what_is_not_available_yet_is_refused_and_everything_else_is_not() {
    let found = check(EVERYTHING);
    let refused: Vec<&str> = found
        .lines()
        .filter_map(|line| {
            line.strip_suffix(" is not available yet; remove it")?
                .rsplit_once(": mqtt.")
        })
        .map(|(_, key)| key)
        .collect();
    let keys: Vec<&&str> = NOT_YET.iter().collect();
    assert_eq!(refused.len(), keys.len(), "{found}");
    // A key of the list that is no key would refuse nothing.
    let about = |key: &&&str| {
        found
            .lines()
            .any(|line| line.contains(&format!("{key} is not available yet")))
    };
    let silent: Vec<_> = keys.iter().filter(|key| !about(key)).collect();
    assert!(silent.is_empty(), "{silent:?} are not refused: {found}");
}

#[test]
fn mistakes_are_told_at_their_place_with_the_cure() {
    let mut wrong = String::new();
    for (text, expected) in [
        (
            "listenrs: []",
            "f.yaml:1:8: unknown field \"listenrs\" in mqtt, did you mean \"listeners\"?",
        ),
        (
            "listeners: [{kind: udp, address: 'a:1'}]",
            "f.yaml:1:27: mqtt.listeners[0].kind: expected one of tcp, tls, ws, wss, got the text \"udp\", did you mean \"tcp\"?",
        ),
        (
            "listeners: [{kind: tcp}]",
            "f.yaml:1:20: missing required field \"address\" in mqtt.listeners[0]",
        ),
        (
            "listeners: [{kind: tcp, address: localhost}]",
            "f.yaml:1:41: mqtt.listeners[0].address: expected host:port such as 127.0.0.1:1883",
        ),
        (
            "listeners: [{kind: tls, address: 'a:1', key_file: k}]",
            "f.yaml:1:27: mqtt.listeners[0].kind: a listener of kind tls needs cert_file and key_file; add cert_file",
        ),
        (
            "listeners: [{kind: tcp, address: 'a:1', cert_file: c, path: /mqtt}]",
            "f.yaml:1:59: mqtt.listeners[0].cert_file: it is of tls and wss, and the kind is tcp; remove it\n\
             f.yaml:1:68: mqtt.listeners[0].path: it is of ws and wss, and the kind is tcp; remove it",
        ),
        (
            "listeners: [{kind: ws, address: 'a:1', path: mqtt}]",
            "f.yaml:1:53: mqtt.listeners[0].path: a path begins with \"/\", for example /mqtt",
        ),
        (
            "listeners: [{kind: tls, address: 'a:1', cert_file: c, key_file: k, client_auth: required}]",
            "f.yaml:1:88: mqtt.listeners[0].client_auth: it needs client_ca_file, the authorities of the clients' certificates",
        ),
        (
            "listeners: [{kind: tls, address: 'a:1', cert_file: c, key_file: k, client_ca_file: x}]",
            "f.yaml:1:91: mqtt.listeners[0].client_ca_file: it has no effect without client_auth: optional or required",
        ),
        (
            "listeners: [{kind: tcp, address: 'a:1', versions: [3.1.2, 5]}]",
            "f.yaml:1:59: mqtt.listeners[0].versions[0]: expected one of 3.1, 3.1.1, 5.0, got the text \"3.1.2\"",
        ),
        (
            "listeners: [{kind: tcp, address: 'a:1', versions: []}]",
            "f.yaml:1:58: mqtt.listeners[0].versions: name at least one of 3.1, 3.1.1, 5.0",
        ),
        (
            "connect_timeout: 0s",
            "f.yaml:1:25: mqtt.connect_timeout: expected 100ms to 1h",
        ),
        (
            "max_keep_alive: 1500ms",
            "f.yaml:1:24: mqtt.max_keep_alive: expected 0s to 65535s in whole seconds",
        ),
        (
            "max_packet_size: 25MiB",
            "f.yaml:1:25: mqtt.max_packet_size: expected 16KiB to 24MiB",
        ),
        (
            "receive_maximum: 0",
            "f.yaml:1:25: mqtt.receive_maximum: expected a whole number from 1 to 65535, got the number 0",
        ),
        (
            "max_qos: 3",
            "f.yaml:1:17: mqtt.max_qos: expected a whole number from 0 to 2, got the number 3",
        ),
        (
            "durability: memory",
            "f.yaml:1:20: mqtt.durability: expected one of fsync, interval, os, got the text \"memory\"",
        ),
        (
            "max_session_expiry: forever",
            "f.yaml:1:28: mqtt.max_session_expiry: expected a duration such as 500ms, 10s or 1h30m, got the text \"forever\", or never",
        ),
        (
            "v3_session_expiry: 100y",
            "f.yaml:1:27: mqtt.v3_session_expiry: expected a duration such as 500ms, 10s or 1h30m, got the text \"100y\"",
        ),
        (
            "session: {max_queued: 0}",
            "f.yaml:1:30: mqtt.session.max_queued: expected a whole number from 1 to 10000000, got the number 0",
        ),
        (
            "store: {ack_flush: 11s}",
            "f.yaml:1:27: mqtt.store.ack_flush: expected 0s to 10s",
        ),
        (
            "sys_interval: 100ms",
            "f.yaml:1:22: mqtt.sys_interval: expected at least 1s, or 0s for no $SYS",
        ),
        (
            "limits: {connect_rate: {per_second: 0}}",
            "f.yaml:1:44: mqtt.limits.connect_rate.per_second: expected a number above 0, and at most 10000000",
        ),
        (
            "limits: {connect_rate: {burst: 1}}",
            "f.yaml:1:31: missing required field \"per_second\" in mqtt.limits.connect_rate",
        ),
        (
            "acl: [{user: a, role: b, allow: all, topics: [a]}]",
            "f.yaml:1:14: mqtt.acl[0]: a rule is about one of user, role, client and anonymous; name exactly one",
        ),
        (
            "acl: [{user: a, topics: [a]}]",
            "f.yaml:1:14: mqtt.acl[0]: a rule has either allow or deny, with publish, subscribe or all",
        ),
        (
            "acl: [{user: a, allow: all, topics: ['a#']}]",
            "f.yaml:1:44: mqtt.acl[0].topics: \"a#\" is no filter of topics; + and # fill a level, and # is the last one",
        ),
        (
            "acl: [{anonymous: false, allow: all, topics: [a]}]",
            "f.yaml:1:26: mqtt.acl[0].anonymous: expected true; a rule without it is not about anonymous clients",
        ),
    ] {
        let (_, found) = read(&format!("mqtt: {{{text}}}\n"));
        if found != format!("{expected}\n") {
            wrong += &format!("for {text}\n{found}");
        }
    }
    assert_eq!(wrong, "");
}

#[test]
fn a_log_that_stores_nothing_is_no_log_for_it() {
    let found = check("log: {durability: memory}\nmqtt: {}\n");
    let expected = "f.yaml:2:7: mqtt: log.durability is memory, which stores nothing; set mqtt.durability to fsync, interval or os\n";
    assert_eq!(found, expected);
    assert_eq!(check("log: {durability: memory}\nmqtt: {durability: os}\n"), "");
}

#[test]
fn a_listener_that_other_hosts_reach_needs_tls_and_a_login_or_the_word_of_the_operator() {
    let address = "mqtt.listeners[1].address 0.0.0.0:1884 can be reached by other hosts without";
    let two = "{kind: tcp, address: '127.0.0.1:1883'}, {kind: KIND, address: '0.0.0.0:1884'TLS}";
    let token = "auth: {tokens: [{name: a, file: /dev/null, roles: [read]}]}\n";
    let tls = ", cert_file: /dev/null, key_file: /dev/null";
    let login = "auth.tokens or auth.users_file, or client_auth: required";
    for (auth, kind, tls, more, lacks, cure) in [
        (
            "",
            "tcp",
            "",
            "",
            " TLS and a login",
            format!("kind: tls with cert_file and key_file, and {login}"),
        ),
        (
            "",
            "ws",
            "",
            "",
            " TLS and a login",
            format!("kind: wss with cert_file and key_file, and {login}"),
        ),
        ("", "tls", tls, "", " a login", login.to_owned()),
        (
            token,
            "tcp",
            "",
            "",
            " TLS",
            "kind: tls with cert_file and key_file".to_owned(),
        ),
        (
            token,
            "tls",
            tls,
            ", anonymous: true",
            " a login",
            format!("mqtt.anonymous: false with {login}"),
        ),
        (token, "tls", tls, "", "", String::new()),
        ("", "tcp", "", ", insecure: true", "", String::new()),
        (
            "",
            "tls",
            ", cert_file: /dev/null, key_file: /dev/null, client_auth: required, client_ca_file: /dev/null",
            "",
            "",
            String::new(),
        ),
    ] {
        let listeners = two.replace("KIND", kind).replace("TLS", tls);
        let text = format!("{auth}mqtt: {{listeners: [{listeners}]{more}}}\n");
        let found = check(&text);
        let exposed: Vec<&str> = found.lines().filter(|line| line.contains("can be reached")).collect();
        match lacks {
            "" => assert!(exposed.is_empty(), "{text}: {exposed:?}"),
            lacks => {
                let expected = format!(
                    "{address}{lacks}; set it to 127.0.0.1:1884, or add {cure}, or allow it with mqtt.insecure: true"
                );
                assert!(exposed.len() == 1 && exposed[0].ends_with(&expected), "{text}: {found}");
            }
        }
    }
}
