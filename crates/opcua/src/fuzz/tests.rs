use opcua::types::{
    BinaryEncodable, ContextOwned, DataChangeNotification, DataValue as UaDataValue, DecodingOptions, ExtensionObject,
    MonitoredItemNotification, NamespaceMap, NotificationMessage, PublishResponse, ReadResponse, RepublishResponse,
    ResponseHeader, StatusCode,
};
use proptest::prelude::*;

use super::*;
use crate::mutation::{mutate, mutations};
use crate::value::generated as ua;

#[test]
fn a_generated_structure_is_used_by_the_values_after_it() {
    // A plain structure with one scalar Int32, and a value of it.
    let description = [1, 0, 1, 6, 0];
    let value = [1, 22, 1, 1, 0, 0, 1, 4, 0, 0, 0, 7, 0, 0, 0];
    let data = [&description[..], &value].concat();
    let (book, rest) = generated(&data);
    assert_eq!(rest, value);
    let value = Decoder::new(rest, &book).data_value().unwrap();
    let ValueContent::Value(value @ thalweg_record::Value::Object(_)) = value.content else {
        panic!("{value:?}");
    };
    assert_eq!(json::to_string(&value), r#"{"field":7}"#);
    values(&data);
}

#[test]
fn an_answer_gets_past_its_type() {
    // A header of zeros with null strings, no values, no diagnostics.
    let header = [&[0; 16][..], &[0], &[0xff; 4], &[0, 0, 0]].concat();
    let answer = [&header[..], &0i32.to_le_bytes(), &[0xff; 4]].concat();
    let read = answers::read(
        &body::<opcua::types::ReadRequest>(&answer),
        &StructureRegistry::standard(),
    );
    assert!(read.unwrap().is_empty());
    for service in 0..3 {
        answers(&[&[service], &answer[..]].concat());
    }
}

#[test]
fn frames_end_in_a_reason() {
    for security in 0..4 {
        for flags in 0..=u8::MAX {
            frames(&[security, flags, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3]);
        }
    }
    frames(&[]);
}

fn encoded(value: &impl BinaryEncodable) -> Vec<u8> {
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    value.encode_to_vec(&context.context())
}

/// Up to three structures, as [`generated`] reads them.
fn description() -> impl Strategy<Value = Vec<u8>> {
    let field = (0u8..32, 0u8..3, any::<bool>())
        .prop_map(|(element, rank, optional)| [element, rank | u8::from(optional) << 7]);
    let structure = (0u8..3, prop::collection::vec(field, 0..5))
        .prop_map(|(kind, fields)| [&[kind, fields.len() as u8][..], &fields.concat()].concat());
    prop::collection::vec(structure, 0..4)
        .prop_map(|structures| [&[structures.len() as u8][..], &structures.concat()].concat())
}

/// A data value of a described structure, whose bytes may or may not match its fields.
fn of_structure() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..40);
    (0u8..4, body).prop_map(|(id, body)| {
        let length = (body.len() as i32).to_le_bytes();
        [&[1, 22, 1, 1, id, 0, 1][..], &length, &body].concat()
    })
}

fn some_values() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![of_structure(), ua::data_value().prop_map(|value| encoded(&value))];
    prop::collection::vec(value, 1..4).prop_map(|values| values.concat())
}

fn notification(values: Vec<UaDataValue>) -> NotificationMessage {
    let items = values
        .into_iter()
        .zip(1..)
        .map(|(value, client_handle)| MonitoredItemNotification { client_handle, value });
    let change = DataChangeNotification {
        monitored_items: Some(items.collect()),
        diagnostic_infos: None,
    };
    NotificationMessage {
        sequence_number: 1,
        publish_time: opcua::types::DateTime::now(),
        notification_data: Some(vec![ExtensionObject::from_message(change)]),
    }
}

/// A response of one of the services, as its entry point chooses it.
fn an_answer() -> impl Strategy<Value = Vec<u8>> {
    let values = prop::collection::vec(ua::data_value(), 0..4);
    (0u8..3, values).prop_map(|(service, values)| {
        let response_header = ResponseHeader::null();
        let answer = match service {
            0 => encoded(&PublishResponse {
                response_header,
                subscription_id: 7,
                available_sequence_numbers: Some(vec![1, 2]),
                more_notifications: false,
                notification_message: notification(values),
                results: Some(vec![StatusCode::Good]),
                diagnostic_infos: None,
            }),
            1 => encoded(&RepublishResponse {
                response_header,
                notification_message: notification(values),
            }),
            _ => encoded(&ReadResponse {
                response_header,
                results: Some(values),
                diagnostic_infos: None,
            }),
        };
        [&[service][..], &answer].concat()
    })
}

/// The security, then frames with their flags.
fn some_frames() -> impl Strategy<Value = Vec<u8>> {
    let content = prop_oneof![
        Just(encoded(&ResponseHeader::null())),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let frame = (prop_oneof![Just(0u8), Just(0x80), any::<u8>()], content)
        .prop_map(|(flags, content)| [&[flags, content.len() as u8][..], &content].concat());
    (0u8..4, prop::collection::vec(frame, 1..5))
        .prop_map(|(security, frames)| [&[security][..], &frames.concat()].concat())
}

/// Unchanged data is decoded to its end.
#[test]
fn the_seeds_are_right() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..200 {
        let answer = an_answer().new_tree(&mut runner).unwrap().current();
        let (service, rest) = answer.split_first().unwrap();
        let (book, mut values) = (StructureRegistry::standard(), Vec::new());
        match service {
            0 => drop(answers::publish(&body::<opcua::types::PublishRequest>(rest), &book, &mut values).unwrap()),
            1 => drop(answers::republish(&body::<opcua::types::RepublishRequest>(rest), &book, &mut values).unwrap()),
            _ => drop(answers::read(&body::<opcua::types::ReadRequest>(rest), &book).unwrap()),
        }
        let seed = (description(), some_values()).new_tree(&mut runner).unwrap().current();
        let data = [seed.0, seed.1].concat();
        let (book, rest) = generated(&data);
        let mut decoder = Decoder::new(rest, &book);
        while !decoder.is_empty() {
            decoder.data_value().unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn changed_values_end_somehow(description in description(), rest in some_values(), mutations in mutations()) {
        let mut data = [description, rest].concat();
        mutate(&mut data, &mutations);
        values(&data);
    }

    #[test]
    fn changed_answers_end_somehow(mut data in an_answer(), mutations in mutations()) {
        mutate(&mut data, &mutations);
        answers(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_frames_end_in_a_reason(mut data in some_frames(), mutations in mutations()) {
        mutate(&mut data, &mutations);
        frames(&data);
    }
}
