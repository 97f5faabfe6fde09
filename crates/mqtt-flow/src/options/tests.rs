use thalweg_config::{Diagnostics, Node};

use super::*;

fn of(yaml: &str) -> (BrokerOptions, String) {
    let (node, diagnostics) = (Node::parse(yaml).unwrap(), Diagnostics::new("t.yaml"));
    let mut fields = Fields::new(&node, &diagnostics);
    let options = read(&mut fields);
    fields.finish();
    (options, diagnostics.to_string())
}

#[test]
fn brokers_are_listed_in_every_form() {
    for (yaml, urls) in [
        ("urls: tcp://a", "tcp://a:1883"),
        ("urls: [tcp://a, \"ssl://b:7\"]", "tcp://a:1883 ssl://b:7"),
        ("urls: [\"tcp://a, tcp://b:2\"]", "tcp://a:1883 tcp://b:2"),
    ] {
        let (options, mistakes) = of(yaml);
        let listed: Vec<String> = options.urls.iter().map(ToString::to_string).collect();
        assert_eq!((listed.join(" ").as_str(), mistakes.as_str()), (urls, ""), "{yaml}");
    }
}

#[test]
fn what_is_not_set_has_the_defaults_of_the_reference() {
    let (options, mistakes) = of("urls: [tcp://a]");
    assert_eq!(mistakes, "");
    assert_eq!(
        (options.keep_alive, options.connect_timeout),
        (30, Duration::from_secs(30))
    );
    assert_eq!((options.version, &options.will), (ProtocolVersion::V5, &None));
    let own = options.client_id_of_run().unwrap();
    assert_eq!((own.len(), &own[..7]), (23, "thalweg"));
    assert!(options.tls.client().unwrap().trusted.is_none());
}

#[test]
fn a_client_id_may_have_a_suffix_that_differs_from_run_to_run() {
    let (options, _) = of("{urls: [a], client_id: gauge-, dynamic_client_id_suffix: nanoid}");
    let (one, two) = (options.client_id_of_run().unwrap(), options.client_id_of_run().unwrap());
    assert!(
        one != two && one.len() == 27 && one.starts_with("gauge-"),
        "{one} {two}"
    );
    assert_eq!(
        of("{urls: [a], client_id: gauge}").0.client_id_of_run().unwrap(),
        "gauge"
    );
}

#[test]
fn a_will_is_read_if_it_is_enabled() {
    let text = "{urls: [a], will: {enabled: true, qos: 1, retained: true, topic: a/b, payload: gone}}";
    let will = WillOptions {
        topic: "a/b".to_owned(),
        payload: "gone".to_owned(),
        qos: QoS::AtLeastOnce,
        retained: true,
    };
    assert_eq!(of(text).0.will, Some(will));
    assert_eq!(of("{urls: [a], will: {enabled: false, topic: a}}").0.will, None);
}

#[test]
fn mistakes_are_told_at_their_places() {
    for (yaml, told) in [
        (
            "client_id: x",
            "urls: no broker is set; set a list such as [\"tcp://broker:1883\"]",
        ),
        ("urls: [\"http://a\"]", "urls: \"http://a\": the scheme is not one of"),
        (
            "broker: local",
            "broker: this version reaches the broker of the process through its listener only",
        ),
        ("{urls: [a], password: p}", "password: a password needs user"),
        (
            "{urls: [a], keepalive: 70000}",
            "keepalive: expected a whole number from 0 to 65535",
        ),
        (
            "{urls: [a], connect_timeout: 0s}",
            "connect_timeout: expected a time above 0",
        ),
        ("{urls: [a], version: 3.1}", "version: expected one of 5.0, 3.1.1"),
        (
            "{urls: [a], will: {enabled: true, topic: a/+}}",
            "will.topic: a will needs a topic",
        ),
        (
            "{urls: [a], will: {enabled: true, topic: a, qos: 3}}",
            "will.qos: expected a whole number from 0 to 2",
        ),
        (
            "{urls: [a], tls: {root_cas: x}}",
            "tls.root_cas: the text holds no certificate in PEM form",
        ),
        (
            "{urls: [a], tls: {client_certs: [{cert_file: a}]}}",
            "key: give one of key and key_file",
        ),
        (
            "{urls: [a], tls: {client_certs: [{cert_file: a, key_file: b, password: c}]}}",
            "password: a key with a password cannot be read",
        ),
        (
            "{urls: [a], client_id: \"a\\0b\"}",
            "client_id: it contains the character U+0000",
        ),
    ] {
        let (_, mistakes) = of(yaml);
        assert!(mistakes.contains(told), "{yaml}: {mistakes}");
    }
}
