use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::ComponentRegistry;
use thalweg_mqtt_wire::{DecodeContext, FixedHeader, Packet, Publish, Sender};

use super::*;

fn told(fields: &str) -> String {
    let mut registry = ComponentRegistry::new();
    crate::register(&mut registry);
    let text = format!("input: {{stdin: {{}}}}\noutput: {{mqtt: {{{fields}}}}}\n");
    let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    if let Some(flow) = loaded.config.flows.first() {
        drop(thalweg_flow::FlowSpec::parse(flow, &mut context));
    }
    loaded.diagnostics.to_string()
}

#[test]
fn mistakes_are_told_at_their_places() {
    assert_eq!(
        told("urls: [a], topic: '${! @mqtt_topic }', user_properties: {unit: '${! @unit }'}"),
        ""
    );
    for (fields, expected) in [
        ("urls: [a]", "topic"),
        ("urls: [a], topic: ''", "topic: the topic is empty"),
        (
            "urls: [a], topic: 'a/+'",
            "topic: \"a/+\" is no topic: it may not contain +, # and U+0000",
        ),
        (
            "urls: [a], topic: a, write_timeout: 0s",
            "write_timeout: expected a time above 0",
        ),
        (
            "urls: [a], topic: a, max_in_flight: 0",
            "max_in_flight: expected a whole number from 1 to 65535",
        ),
        ("urls: [a], topic: a, user_properties: [b]", "user_properties: "),
        (
            "urls: [a], topic: a, version: 3.1.1, message_expiry: 1m",
            "message_expiry: MQTT 3.1.1 does not have it; set version: 5.0, or remove it",
        ),
        ("urls: [a], topic: a, topics: [b]", "unknown field \"topics\""),
    ] {
        let mistakes = told(fields);
        assert!(mistakes.contains(expected), "{fields}: {mistakes}");
    }
}

fn template() -> PublishTemplate {
    let compile = |text: &str| Interpolation::compile(text).unwrap();
    PublishTemplate {
        topic: compile("plant/${! @machine }"),
        qos: QoS::AtLeastOnce,
        retained: false,
        retained_interpolated: Some(compile("${! @keep }")),
        content_type: Some(compile("${! @type }")),
        user_properties: vec![("unit".to_owned(), compile("${! @unit }"))],
        expiry: Some(60),
    }
}

fn message(meta: &[(&str, &str)]) -> Message {
    let mut message = Message::raw("21.5");
    for (name, value) in meta {
        message.meta.set(*name, *value);
    }
    message
}

fn received(publish: &OutgoingPublish) -> Publish {
    let mut bytes = Vec::new();
    publish.write(7, false, ProtocolVersion::V5, &mut bytes);
    assert_eq!(bytes.len(), publish.packet_len(ProtocolVersion::V5));
    let header = FixedHeader::parse(&bytes, usize::MAX).unwrap().unwrap();
    let context = DecodeContext {
        version: ProtocolVersion::V5,
        sender: Sender::Client,
        strict_utf8: true,
    };
    match Packet::decode(bytes.into(), &header, context).unwrap() {
        Packet::Publish(publish) => publish,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_becomes_what_its_fields_say() {
    let one = message(&[
        ("machine", "m1"),
        ("keep", "true"),
        ("type", "text/plain"),
        ("unit", "°C"),
    ]);
    let publish = received(&template().publish(&[one], 0).unwrap());
    assert_eq!((publish.topic(), publish.payload()), ("plant/m1", &b"21.5"[..]));
    assert_eq!(
        (publish.qos, publish.retain, publish.expiry),
        (QoS::AtLeastOnce, true, Some(60))
    );
    let properties: Vec<String> = publish
        .properties()
        .map(|property| format!("{:?}", property.value))
        .collect();
    assert_eq!(
        properties,
        ["Number(60)", "Text(\"text/plain\")", "Pair(\"unit\", \"°C\")"]
    );
}

#[test]
fn a_message_that_no_broker_takes_is_refused_for_good() {
    let all = [("machine", "m1"), ("keep", "true"), ("type", "t"), ("unit", "u")];
    for (name, value, reason, error) in [
        (
            "machine",
            "a/#",
            DropReason::InvalidTopic,
            "\"plant/a/#\" is no topic: it may not contain +, # and U+0000",
        ),
        (
            "keep",
            "maybe",
            DropReason::InvalidValue,
            "retained_interpolated: expected true or false, got \"maybe\"",
        ),
        (
            "unit",
            "a\0b",
            DropReason::InvalidValue,
            "user_properties: a property has at most 65535 bytes, and no U+0000",
        ),
        (
            "type",
            &"x".repeat(65_536),
            DropReason::InvalidValue,
            "content_type: a property has at most 65535 bytes, and no U+0000",
        ),
    ] {
        let mut message = message(&all);
        message.meta.set(name, value);
        let rejection = template().publish(&[message], 0).unwrap_err();
        assert_eq!((rejection.permanent, rejection.error.as_str()), (Some(reason), error));
    }
}
