//! Reads and writes the headers of records. Producers may use any bytes as header names. The client's own accessor
//! assumes UTF-8 and panics otherwise, so one such record would end the input. Here, a name becomes text as
//! [`text_bytes`](crate::text_bytes) says, like a value.

use std::borrow::Cow;
use std::ffi::CStr;
use std::ptr;

use rdkafka::bindings;
use rdkafka::message::{BorrowedHeaders, Headers as _, Message, OwnedHeaders};
use rdkafka::types::RDKafkaHeaders;

use crate::text_bytes;

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
    let (name, value) = raw_header(headers, n)?;
    Some(RecordHeader {
        name: text_bytes::text_of(name.to_bytes()),
        value,
    })
}

/// Returns the name and the value of the header at this place.
fn raw_header(headers: &BorrowedHeaders, n: usize) -> Option<(&CStr, Option<&[u8]>)> {
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    let native = ptr::from_ref(headers).cast::<RDKafkaHeaders>();
    // SAFETY: a reference to headers is a pointer to the client's headers, and the client checks the index. The results
    // belong to the headers and are valid as long as they are: the name ends with a zero, the value has as many bytes
    // as it says.
    unsafe {
        if bindings::rd_kafka_header_get_all(native, n, &mut name, &mut value, &mut size) != NO_ERROR || name.is_null()
        {
            return None;
        }
        let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
        Some((CStr::from_ptr(name), value))
    }
}

/// Returns the length of all names and values.
pub fn bytes(headers: &OwnedHeaders) -> usize {
    let headers = headers.as_borrowed();
    let all = (0..headers.count()).filter_map(|n| raw_header(headers, n));
    all.map(|(name, value)| name.count_bytes() + value.map_or(0, <[u8]>::len))
        .sum()
}

/// Appends a header, whose name and value may be any bytes. The library's own function takes texts as names.
pub fn add(headers: &mut OwnedHeaders, name: &[u8], value: Option<&[u8]>) {
    let native = ptr::from_ref(headers.as_borrowed()).cast::<RDKafkaHeaders>().cast_mut();
    let length = |bytes: &[u8]| isize::try_from(bytes.len()).unwrap_or(isize::MAX);
    let (bytes, size) = value.map_or((ptr::null(), 0), |value| (value.as_ptr().cast(), length(value)));
    // SAFETY: the headers are borrowed exclusively; name and value have these lengths, and are copied.
    let added = unsafe { bindings::rd_kafka_header_add(native, name.as_ptr().cast(), length(name), bytes, size) };
    // The client refuses headers only while another record reads them.
    debug_assert_eq!(added, NO_ERROR);
}

const NO_ERROR: bindings::rd_kafka_resp_err_t = bindings::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use rdkafka::message::{OwnedMessage, Timestamp};

    use super::*;

    /// Builds headers whose names are any bytes except zeros.
    pub fn raw(headers: &[(Vec<u8>, Option<Vec<u8>>)]) -> OwnedHeaders {
        let mut all = OwnedHeaders::new();
        for (name, value) in headers {
            add(&mut all, name, value.as_deref());
        }
        all
    }

    /// Returns all headers as bytes.
    pub fn pairs(headers: &OwnedHeaders) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        (0..headers.count())
            .filter_map(|n| raw_header(headers.as_borrowed(), n))
            .map(|(name, value)| (name.to_bytes().to_vec(), value.map(<[u8]>::to_vec)))
            .collect()
    }

    fn record(headers: Option<OwnedHeaders>) -> OwnedMessage {
        OwnedMessage::new(None, None, "t".to_owned(), Timestamp::NotAvailable, 0, 0, headers)
    }

    #[test]
    fn a_record_without_headers_has_none() {
        assert_eq!((count(&record(None)), of(&record(None)).count()), (0, 0));
    }

    #[test]
    fn a_name_that_is_no_text_comes_with_private_characters_and_its_value() {
        let headers = raw(&[
            (b"caf\xe9".to_vec(), Some(b"1".to_vec())),
            (b"unit".to_vec(), None),
            (b"".to_vec(), Some(Vec::new())),
        ]);
        let record = record(Some(headers));
        let read: Vec<(String, Option<&[u8]>)> = of(&record).map(|of| (of.name.into_owned(), of.value)).collect();
        let expected: [(&str, Option<&[u8]>); 3] = [("caf\u{f7e9}", Some(b"1")), ("unit", None), ("", Some(b""))];
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
                .map(|(name, value)| (text_bytes::text_of(&name).into_owned(), value))
                .collect();
            prop_assert_eq!(read, expected);
        }
    }
}
