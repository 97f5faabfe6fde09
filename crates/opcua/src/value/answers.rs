//! Decodes the responses that contain values in one pass: Publish, Republish and Read.

use opcua::types::{Identifier, NodeId, PublishRequest, ReadRequest, RepublishRequest};

use super::decode::{DataValue, DecodeError, Decoder, ExtensionBody};
use super::types::StructureRegistry;
use crate::channel::{AnswerBody, CallError};

const DATA_CHANGE: u32 = 811;
const STATUS_CHANGE: u32 = 820;

/// Maximum number of values per response: each takes some hundred bytes of memory, but only one or five bytes of the
/// response.
const VALUES_MAX: usize = 1_000_000;

/// Content of a Publish response.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PublishAnswer {
    pub subscription_id: u32,
    /// Notifications that the server still keeps.
    pub available: Vec<u32>,
    pub more: bool,
    pub message: NotificationHeader,
    /// One status per acknowledgement of the request.
    pub acknowledged: Vec<u32>,
}

/// A notification message without its values, which go to a buffer of the caller.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct NotificationHeader {
    pub sequence_number: u32,
    /// A message without data is a keep-alive; its number is that of the next message.
    pub is_keep_alive: bool,
    /// The subscription ended or was transferred, with this status.
    pub status_change: Option<u32>,
}

/// A value and the client handle of its item.
pub(crate) type ClientHandleValue = (u32, DataValue);

pub(crate) fn publish(
    body: &AnswerBody,
    types: &StructureRegistry,
    values: &mut Vec<ClientHandleValue>,
) -> Result<PublishAnswer, CallError> {
    let bytes = body.content::<PublishRequest>()?;
    answer(&bytes, types, |decoder| {
        let subscription_id = decoder.u32()?;
        let available = numbers(decoder)?;
        let more = decoder.u8()? != 0;
        let message = notifications(decoder, values)?;
        let acknowledged = numbers(decoder)?;
        Ok(PublishAnswer {
            subscription_id,
            available,
            more,
            message,
            acknowledged,
        })
    })
}

pub(crate) fn republish(
    body: &AnswerBody,
    types: &StructureRegistry,
    values: &mut Vec<ClientHandleValue>,
) -> Result<NotificationHeader, CallError> {
    let bytes = body.content::<RepublishRequest>()?;
    answer(&bytes, types, |decoder| notifications(decoder, values))
}

/// Returns the values of a read, in the order of the request. A response with more values than the limit is too large,
/// like one with too many bytes.
pub(crate) fn read(body: &AnswerBody, types: &StructureRegistry) -> Result<Vec<DataValue>, CallError> {
    let bytes = body.content::<ReadRequest>()?;
    answer(&bytes, types, |decoder| {
        let count = decoder.length(1)?.unwrap_or(0);
        if count > VALUES_MAX {
            return Ok(None);
        }
        let values: Result<Vec<DataValue>, DecodeError> = (0..count).map(|_| decoder.data_value()).collect();
        // A single value cannot be split, so it is returned as it is.
        let starved = decoder.is_exhausted() && count > 1;
        Ok(if starved { None } else { Some(values?) })
    })?
    .ok_or(CallError::TooLarge)
}

fn answer<T>(
    bytes: &[u8],
    types: &StructureRegistry,
    read: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<T, CallError> {
    let mut decoder = Decoder::new(bytes, types);
    let unreadable = |error: DecodeError| CallError::Unreadable(error.to_string());
    let status = response_header(&mut decoder).map_err(unreadable)?;
    if super::status::is_bad(status) {
        return Err(CallError::Refused(status));
    }
    read(&mut decoder).map_err(unreadable)
}

/// Returns the service result.
fn response_header(decoder: &mut Decoder<'_>) -> Result<u32, DecodeError> {
    decoder.time()?;
    decoder.u32()?;
    let status = decoder.u32()?;
    decoder.diagnostic_info()?;
    let strings = decoder.length(4)?.unwrap_or(0);
    for _ in 0..strings {
        decoder.bytes()?;
    }
    extension(decoder)?;
    Ok(status)
}

/// Reads the type and the body of an extension object.
fn extension<'a>(decoder: &mut Decoder<'a>) -> Result<(NodeId, &'a [u8]), DecodeError> {
    let id = decoder.node_id()?;
    Ok(match decoder.extension_body()? {
        ExtensionBody::None => (id, &[]),
        ExtensionBody::Binary(body) | ExtensionBody::Xml(body) => (id, body),
    })
}

fn notifications<'a>(
    decoder: &mut Decoder<'a>,
    values: &mut Vec<ClientHandleValue>,
) -> Result<NotificationHeader, DecodeError> {
    let sequence_number = decoder.u32()?;
    decoder.time()?;
    let count = decoder.length(3)?.unwrap_or(0);
    let mut message = NotificationHeader {
        sequence_number,
        is_keep_alive: count == 0,
        status_change: None,
    };
    for _ in 0..count {
        let (id, body) = extension(decoder)?;
        match (id.namespace, &id.identifier) {
            (0, Identifier::Numeric(DATA_CHANGE)) => {
                decoder.within(body, |inner| data_change(inner, values))?;
            }
            (0, Identifier::Numeric(STATUS_CHANGE)) => {
                message.status_change = Some(decoder.within(body, Decoder::u32)?.0);
            }
            // Events are never requested.
            _ => {}
        }
    }
    Ok(message)
}

fn data_change(decoder: &mut Decoder<'_>, values: &mut Vec<ClientHandleValue>) -> Result<(), DecodeError> {
    let count = decoder.length(5)?.unwrap_or(0);
    if values.len() + count > VALUES_MAX {
        return Err(DecodeError("a notification holds too many values"));
    }
    values.reserve(count);
    for _ in 0..count {
        let handle = decoder.u32()?;
        values.push((handle, decoder.data_value()?));
    }
    Ok(())
}

fn numbers(decoder: &mut Decoder<'_>) -> Result<Vec<u32>, DecodeError> {
    let count = decoder.length(4)?.unwrap_or(0);
    (0..count).map(|_| decoder.u32()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use opcua::types::{
        BinaryEncodable as _, ContextOwned, DataChangeNotification, DataValue as UaDataValue, DecodingOptions,
        ExtensionObject, MonitoredItemNotification, NamespaceMap, NotificationMessage, ObjectId, PublishResponse,
        ResponseHeader, StatusChangeNotification, StatusCode, Variant,
    };
    use proptest::prelude::*;
    use thalweg_record::Value;

    use crate::value::ValueContent;

    fn body(response: &PublishResponse) -> AnswerBody {
        let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
        let context = context.context();
        let mut bytes = NodeId::from(ObjectId::PublishResponse_Encoding_DefaultBinary).encode_to_vec(&context);
        bytes.extend(response.encode_to_vec(&context));
        AnswerBody::from_bytes(Bytes::from(bytes))
    }

    fn response(notifications: Vec<ExtensionObject>) -> PublishResponse {
        PublishResponse {
            response_header: ResponseHeader::null(),
            subscription_id: 7,
            available_sequence_numbers: Some(vec![3, 4]),
            more_notifications: true,
            notification_message: NotificationMessage {
                sequence_number: 4,
                publish_time: opcua::types::DateTime::now(),
                notification_data: if notifications.is_empty() {
                    None
                } else {
                    Some(notifications)
                },
            },
            results: Some(vec![StatusCode::Good]),
            diagnostic_infos: None,
        }
    }

    fn data_change(values: &[(u32, i32)]) -> ExtensionObject {
        let items = values.iter().map(|(handle, value)| MonitoredItemNotification {
            client_handle: *handle,
            value: UaDataValue::value_only(Variant::Int32(*value)),
        });
        ExtensionObject::from_message(DataChangeNotification {
            monitored_items: Some(items.collect()),
            diagnostic_infos: None,
        })
    }

    #[test]
    fn values_come_by_handle_and_everything_else_is_read_around_them() {
        let book = StructureRegistry::default();
        let mut values = Vec::new();
        let notifications = vec![data_change(&[(1, 10), (2, 20)]), data_change(&[(1, 11)])];
        let answer = publish(&body(&response(notifications)), &book, &mut values).unwrap();
        let seen: Vec<(u32, ValueContent)> = values
            .iter()
            .map(|(handle, value)| (*handle, value.content.clone()))
            .collect();
        let content = |n| ValueContent::Value(Value::I32(n));
        assert_eq!(seen, [(1, content(10)), (2, content(20)), (1, content(11))]);
        assert_eq!(
            (answer.subscription_id, answer.available, answer.more),
            (7, vec![3, 4], true)
        );
        let message = NotificationHeader {
            sequence_number: 4,
            is_keep_alive: false,
            status_change: None,
        };
        assert_eq!((answer.message, answer.acknowledged), (message, vec![0]));
    }

    /// The response to a read with these data values.
    fn read_body(count: i32, data_values: &[u8]) -> AnswerBody {
        let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
        let context = context.context();
        let mut bytes = NodeId::from(ObjectId::ReadResponse_Encoding_DefaultBinary).encode_to_vec(&context);
        bytes.extend(ResponseHeader::null().encode_to_vec(&context));
        bytes.extend(count.to_le_bytes());
        bytes.extend(data_values);
        AnswerBody::from_bytes(Bytes::from(bytes))
    }

    #[test]
    fn a_read_of_more_than_fits_is_too_large_and_one_value_alone_is_not() {
        let book = StructureRegistry::default();
        let mut array = vec![1, super::super::types::BOOLEAN | 0x80];
        array.extend(1_000_000i32.to_le_bytes());
        array.resize(array.len() + 1_000_000, 1);
        let error = read(&read_body(10, &array.repeat(10)), &book).unwrap_err();
        assert!(error.is_too_large(), "{error}");
        assert_eq!(read(&read_body(8, &array.repeat(8)), &book).unwrap().len(), 8);
        // Values of one byte each.
        let count = VALUES_MAX + 1;
        let error = read(&read_body(count as i32, &vec![0; count]), &book).unwrap_err();
        assert!(error.is_too_large(), "{error}");
    }

    #[test]
    fn keep_alives_and_status_changes_are_told_apart() {
        let book = StructureRegistry::default();
        let answer = publish(&body(&response(vec![])), &book, &mut Vec::new()).unwrap();
        assert!(answer.message.is_keep_alive);
        let change = ExtensionObject::from_message(StatusChangeNotification {
            status: StatusCode::BadTimeout,
            diagnostic_info: Default::default(),
        });
        let answer = publish(&body(&response(vec![change])), &book, &mut Vec::new()).unwrap();
        assert!(!answer.message.is_keep_alive);
        assert_eq!(answer.message.status_change, Some(StatusCode::BadTimeout.bits()));
    }

    /// Nearly all servers reject a request with a fault instead of a response of the service.
    #[test]
    fn a_fault_is_a_refusal_of_any_service() {
        let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
        let context = context.context();
        let fault = opcua::types::ServiceFault {
            response_header: ResponseHeader {
                service_result: StatusCode::BadTooManyPublishRequests,
                ..ResponseHeader::null()
            },
        };
        let mut bytes = NodeId::from(ObjectId::ServiceFault_Encoding_DefaultBinary).encode_to_vec(&context);
        bytes.extend(fault.encode_to_vec(&context));
        let (body, book) = (AnswerBody::from_bytes(Bytes::from(bytes)), StructureRegistry::default());
        let refusals = [
            publish(&body, &book, &mut Vec::new()).err(),
            republish(&body, &book, &mut Vec::new()).err(),
            read(&body, &book).err(),
        ];
        for error in refusals {
            let status = error.and_then(|error| error.status());
            assert_eq!(status, Some(StatusCode::BadTooManyPublishRequests.bits()));
        }
    }

    #[test]
    fn a_bad_service_result_is_a_refusal() {
        let book = StructureRegistry::default();
        let mut refused = response(vec![]);
        refused.response_header.service_result = StatusCode::BadNoSubscription;
        let error = publish(&body(&refused), &book, &mut Vec::new()).unwrap_err();
        assert_eq!(error.status(), Some(StatusCode::BadNoSubscription.bits()));
    }

    proptest! {
        #[test]
        fn no_answer_panics(noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20), cut in any::<prop::sample::Index>()) {
            let whole = body(&response(vec![data_change(&[(1, 1), (2, 2)])]));
            let mut bytes = whole.bytes().to_vec();
            for (at, byte) in noise {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            let _ = publish(&AnswerBody::from_bytes(Bytes::from(bytes)), &StructureRegistry::default(), &mut Vec::new());
        }
    }
}
