//! Records with keys, headers and times of any kind, which the JSON of the second client cannot express.

use std::time::{Duration, Instant};

use rdkafka::bindings::{rd_kafka_header_add, rd_kafka_header_get_all};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{BorrowedHeaders, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);

pub type RawHeader = (Vec<u8>, Option<Vec<u8>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    pub key: Option<Vec<u8>>,
    pub value: Vec<u8>,
    pub headers: Vec<RawHeader>,
    pub time_ms: i64,
}

/// Writes records to the first partition of a topic.
pub fn produce(address: &str, topic: &str, records: &[RawRecord]) {
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", address).create().unwrap();
    for record in records {
        let mut out = BaseRecord::<[u8], [u8]>::to(topic)
            .partition(0)
            .payload(&record.value)
            .timestamp(record.time_ms)
            .headers(headers(&record.headers));
        out.key = record.key.as_deref();
        producer.send(out).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

fn headers(headers: &[RawHeader]) -> OwnedHeaders {
    let all = OwnedHeaders::new();
    let native = std::ptr::from_ref(all.as_borrowed()).cast_mut().cast();
    for (name, value) in headers {
        let (bytes, size) = value
            .as_ref()
            .map_or((std::ptr::null(), 0), |value| (value.as_ptr().cast(), value.len()));
        // SAFETY: this function owns the headers; name and value are copied.
        let error =
            unsafe { rd_kafka_header_add(native, name.as_ptr().cast(), name.len() as isize, bytes, size as isize) };
        assert_eq!(error as i32, 0);
    }
    all
}

/// Waits for the first records of a topic's first partition.
pub fn consume(address: &str, topic: &str, count: usize) -> Vec<RawRecord> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", address)
        .set("group.id", "raw")
        .create()
        .unwrap();
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&from).unwrap();
    let (begun, mut records) = (Instant::now(), Vec::new());
    while records.len() < count {
        assert!(begun.elapsed() < PATIENCE, "only {records:?}");
        let Some(message) = consumer.poll(Duration::from_millis(100)) else {
            continue;
        };
        let message = message.unwrap();
        records.push(RawRecord {
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().unwrap_or_default().to_vec(),
            headers: message.headers().map_or_else(Vec::new, pairs),
            time_ms: message.timestamp().to_millis().unwrap(),
        });
    }
    records
}

fn pairs(headers: &BorrowedHeaders) -> Vec<RawHeader> {
    let native = std::ptr::from_ref(headers).cast();
    let pair = |n| {
        let (mut name, mut value, mut size) = (std::ptr::null(), std::ptr::null(), 0);
        // SAFETY: the headers outlive what is read from them, and the client checks the index.
        unsafe {
            assert_eq!(
                rd_kafka_header_get_all(native, n, &mut name, &mut value, &mut size) as i32,
                0
            );
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size).to_vec());
            (std::ffi::CStr::from_ptr(name).to_bytes().to_vec(), value)
        }
    };
    (0..headers.count()).map(pair).collect()
}
