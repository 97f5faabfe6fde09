//! Reads the headers of records. Producers may use any bytes as header names. The client's own accessor assumes UTF-8
//! and panics otherwise, so one such record would end the input. Here, invalid UTF-8 in a name is replaced with
//! replacement characters, as in text values.

use std::borrow::Cow;
use std::ffi::CStr;
use std::ptr;

use rdkafka::bindings;
use rdkafka::message::{BorrowedHeaders, Headers as _, Message, OwnedHeaders};
use rdkafka::types::RDKafkaHeaders;

/// A header may have no value, which differs from an empty value.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordHeader<'a> {
    pub name: Cow<'a, str>,
    pub value: Option<&'a [u8]>,
}

/// A record with readable headers.
pub trait RecordWithHeaders: Message<Headers: Native> {}

impl<R: Message<Headers: Native>> RecordWithHeaders for R {}

/// Headers in the client's memory.
pub trait Native {
    fn native(&self) -> &BorrowedHeaders;
}

impl Native for BorrowedHeaders {
    fn native(&self) -> &BorrowedHeaders {
        self
    }
}

impl Native for OwnedHeaders {
    fn native(&self) -> &BorrowedHeaders {
        self.as_borrowed()
    }
}

/// Returns all headers of a record, in their order.
pub fn of<R: RecordWithHeaders>(record: &R) -> impl Iterator<Item = RecordHeader<'_>> {
    let headers = record.headers().map(Native::native);
    headers
        .into_iter()
        .flat_map(|headers| (0..headers.count()).filter_map(|n| header(headers, n)))
}

/// Returns the number of headers of a record.
pub fn count<R: RecordWithHeaders>(record: &R) -> usize {
    record.headers().map_or(0, |headers| headers.native().count())
}

fn header(headers: &BorrowedHeaders, n: usize) -> Option<RecordHeader<'_>> {
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    let native = ptr::from_ref(headers).cast::<RDKafkaHeaders>();
    // SAFETY: a reference to headers is a pointer to the client's headers, and the client checks the index. The results
    // belong to the headers and are valid as long as they are: the name ends with a zero, the value has as many bytes
    // as it says.
    let (name, value) = unsafe {
        if bindings::rd_kafka_header_get_all(native, n, &mut name, &mut value, &mut size) != NO_ERROR || name.is_null()
        {
            return None;
        }
        let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
        (CStr::from_ptr(name), value)
    };
    Some(RecordHeader {
        name: name.to_string_lossy(),
        value,
    })
}

const NO_ERROR: bindings::rd_kafka_resp_err_t = bindings::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use rdkafka::message::{OwnedMessage, Timestamp};

    use super::*;

    /// Builds headers whose names are any bytes except zeros.
    pub fn raw(headers: &[(Vec<u8>, Option<Vec<u8>>)]) -> OwnedHeaders {
        let all = OwnedHeaders::new();
        let native = ptr::from_ref(all.as_borrowed()).cast::<RDKafkaHeaders>().cast_mut();
        for (name, value) in headers {
            let (bytes, size) = match value {
                Some(value) => (value.as_ptr().cast(), value.len()),
                None => (ptr::null(), 0),
            };
            // SAFETY: this function owns the headers; name and value are copied.
            let added = unsafe {
                bindings::rd_kafka_header_add(native, name.as_ptr().cast(), name.len() as isize, bytes, size as isize)
            };
            assert_eq!(added, NO_ERROR);
        }
        all
    }

    fn record(headers: Option<OwnedHeaders>) -> OwnedMessage {
        OwnedMessage::new(None, None, "t".to_owned(), Timestamp::NotAvailable, 0, 0, headers)
    }

    #[test]
    fn a_record_without_headers_has_none() {
        assert_eq!((count(&record(None)), of(&record(None)).count()), (0, 0));
    }

    #[test]
    fn a_name_that_is_no_text_comes_with_replacement_characters_and_its_value() {
        let headers = raw(&[
            (b"caf\xe9".to_vec(), Some(b"1".to_vec())),
            (b"unit".to_vec(), None),
            (b"".to_vec(), Some(Vec::new())),
        ]);
        let record = record(Some(headers));
        let read: Vec<(String, Option<&[u8]>)> = of(&record).map(|of| (of.name.into_owned(), of.value)).collect();
        let expected: [(&str, Option<&[u8]>); 3] = [("caf\u{fffd}", Some(b"1")), ("unit", None), ("", Some(b""))];
        assert_eq!(read, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    proptest! {
        #[test]
        fn whatever_bytes_headers_are_they_are_read(
            headers in prop::collection::vec((prop::collection::vec(1u8.., 0..20), prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..20),
        ) {
            let record = record(Some(raw(&headers)));
            let read: Vec<_> = of(&record).map(|of| (of.name.into_owned(), of.value.map(<[u8]>::to_vec))).collect();
            let expected: Vec<_> = headers
                .into_iter()
                .map(|(name, value)| (String::from_utf8_lossy(&name).into_owned(), value))
                .collect();
            prop_assert_eq!(read, expected);
        }
    }
}
