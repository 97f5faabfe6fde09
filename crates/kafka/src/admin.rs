//! Admin requests about topics and groups that the Rust library of the client does not wrap. Each blocks until the
//! response arrives or its timeout expires.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rdkafka::bindings::{self, rd_kafka_admin_op_t as Operation};
use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;

/// The client times out by itself; this margin is for the case that it does not.
const SLACK: Duration = Duration::from_secs(1);

/// Distinguishes a topic from any other that has or had the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopicId(u128);

/// An existing topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// `None` if the broker is too old to have topic ids (before version 2.8).
    pub id: Option<TopicId>,
    pub partitions: i32,
}

pub type TopicDescriptions = BTreeMap<String, Result<TopicDescription, RDKafkaErrorCode>>;

/// The state of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupDescription {
    /// Its members, by their ids, are assigned these partitions.
    Stable {
        members: BTreeSet<String>,
        assigned: BTreeSet<(String, i32)>,
    },
    /// It has no members, or a rebalance is in progress.
    Unsettled,
}

impl TopicId {
    #[cfg(test)]
    pub fn of(number: u128) -> TopicId {
        TopicId(number)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl FromStr for TopicId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<TopicId, Self::Err> {
        u128::from_str_radix(text, 16).map(TopicId)
    }
}

/// Requests the descriptions of topics by name from the broker that returned this metadata. The response also updates
/// the client's own metadata cache.
pub fn describe_topics<C: ClientContext>(
    client: &Client<C>,
    metadata: &Metadata,
    topics: &[String],
    timeout: Duration,
) -> KafkaResult<TopicDescriptions> {
    let names = CStrings::of(topics)?;
    let send = |rk, options, queue| {
        let mut pointers = names.pointers();
        // SAFETY: client, options and queue outlive the call; the names are copied, and their collection is destroyed
        // once.
        unsafe {
            let topics = bindings::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
            bindings::rd_kafka_DescribeTopics(rk, topics, options, queue);
            bindings::rd_kafka_TopicCollection_destroy(topics);
        }
    };
    let operation = Operation::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
    let answer = ask(client, operation, broker(metadata), timeout, send)?;
    let mut count = 0;
    // SAFETY: the event outlives everything that is read from it here; the array has as many elements as it says, and
    // each is valid as long as the event.
    unsafe {
        let result = bindings::rd_kafka_event_DescribeTopics_result(answer.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let topics = bindings::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        Ok(elements(topics, count).map(|topic| topic_description(topic)).collect())
    }
}

/// Returns a broker for the request. By default it would go to the controller, which not every server of the protocol
/// has.
fn broker(metadata: &Metadata) -> Option<i32> {
    // The first connection is to an address, and not yet to a known broker.
    let origin = Some(metadata.orig_broker_id()).filter(|id| *id >= 0);
    origin.or_else(|| Some(metadata.brokers().first()?.id()))
}

/// Requests the description of a group from its coordinator.
pub fn describe_group<C: ClientContext>(
    client: &Client<C>,
    group: &str,
    timeout: Duration,
) -> KafkaResult<GroupDescription> {
    let names = CStrings::of(&[group.to_owned()])?;
    let send = |rk, options, queue| {
        let mut pointers = names.pointers();
        // SAFETY: client, options and queue outlive the call; the names are copied.
        unsafe { bindings::rd_kafka_DescribeConsumerGroups(rk, pointers.as_mut_ptr(), pointers.len(), options, queue) }
    };
    let operation = Operation::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
    let answer = ask(client, operation, None, timeout, send)?;
    let mut count = 0;
    // SAFETY: as above.
    unsafe {
        let result = bindings::rd_kafka_event_DescribeConsumerGroups_result(answer.0);
        if result.is_null() {
            return Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage));
        }
        let groups = bindings::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count);
        match elements(groups, count).next() {
            Some(group) => group_description(group),
            None => Err(KafkaError::AdminOp(RDKafkaErrorCode::BadMessage)),
        }
    }
}

/// Returns the id of this member in its group; `None` before it has joined.
pub fn member_id<C: ClientContext>(client: &Client<C>) -> Option<String> {
    // SAFETY: the client outlives the call; the text ends with a zero, belongs to the caller, and is freed once.
    unsafe {
        let id = bindings::rd_kafka_memberid(client.native_ptr());
        if id.is_null() {
            return None;
        }
        let text = CStr::from_ptr(id).to_string_lossy().into_owned();
        bindings::rd_kafka_mem_free(client.native_ptr(), id.cast());
        Some(text).filter(|text| !text.is_empty())
    }
}

/// # Safety
/// The description must be valid while this runs.
unsafe fn topic_description(
    topic: *const bindings::rd_kafka_TopicDescription_t,
) -> (String, Result<TopicDescription, RDKafkaErrorCode>) {
    let mut partitions = 0;
    // SAFETY: everything that is read from the description is valid as long as it is. Its name ends with a zero.
    unsafe {
        let name = CStr::from_ptr(bindings::rd_kafka_TopicDescription_name(topic));
        let name = name.to_string_lossy().into_owned();
        if let Some(error) = error_code(bindings::rd_kafka_TopicDescription_error(topic)) {
            return (name, Err(error));
        }
        bindings::rd_kafka_TopicDescription_partitions(topic, &mut partitions);
        let id = bindings::rd_kafka_TopicDescription_topic_id(topic);
        let half = |bits: i64| u128::from(bits.cast_unsigned());
        let id = match id.is_null() {
            true => 0,
            false => {
                half(bindings::rd_kafka_Uuid_most_significant_bits(id)) << 64
                    | half(bindings::rd_kafka_Uuid_least_significant_bits(id))
            }
        };
        let description = TopicDescription {
            id: (id != 0).then_some(TopicId(id)),
            partitions: i32::try_from(partitions).unwrap_or(i32::MAX),
        };
        (name, Ok(description))
    }
}

/// # Safety
/// The description must be valid while this runs.
unsafe fn group_description(
    group: *const bindings::rd_kafka_ConsumerGroupDescription_t,
) -> KafkaResult<GroupDescription> {
    use bindings::rd_kafka_consumer_group_state_t::RD_KAFKA_CONSUMER_GROUP_STATE_STABLE as STABLE;
    // SAFETY: everything that is read from the description is valid as long as it is.
    unsafe {
        if let Some(error) = error_code(bindings::rd_kafka_ConsumerGroupDescription_error(group)) {
            return Err(KafkaError::AdminOp(error));
        }
        if bindings::rd_kafka_ConsumerGroupDescription_state(group) != STABLE {
            return Ok(GroupDescription::Unsettled);
        }
        let (mut members, mut assigned) = (BTreeSet::new(), BTreeSet::new());
        for index in 0..bindings::rd_kafka_ConsumerGroupDescription_member_count(group) {
            let member = bindings::rd_kafka_ConsumerGroupDescription_member(group, index);
            let id = bindings::rd_kafka_MemberDescription_consumer_id(member);
            if !id.is_null() {
                members.insert(CStr::from_ptr(id).to_string_lossy().into_owned());
            }
            let assignment = bindings::rd_kafka_MemberDescription_assignment(member);
            if assignment.is_null() {
                continue;
            }
            let list = bindings::rd_kafka_MemberAssignment_partitions(assignment);
            assigned.extend(partitions(list).iter().map(|partition| {
                let topic = CStr::from_ptr(partition.topic);
                (topic.to_string_lossy().into_owned(), partition.partition)
            }));
        }
        Ok(GroupDescription::Stable { members, assigned })
    }
}

/// Keeps the client's state of a topic alive. When a topic is deleted, the client releases its last partition and with
/// it its state of the topic, while responses to fetches access that state without a lock.
pub struct PinnedTopic(*mut bindings::rd_kafka_topic_t);

impl PinnedTopic {
    /// It must be dropped before the client.
    pub fn of<C: ClientContext>(client: &Client<C>, topic: &str) -> Option<PinnedTopic> {
        let name = CString::new(topic).ok()?;
        // SAFETY: client and name outlive the call, which copies the name.
        let known = unsafe { bindings::rd_kafka_topic_new(client.native_ptr(), name.as_ptr(), std::ptr::null_mut()) };
        (!known.is_null()).then_some(PinnedTopic(known))
    }
}

impl Drop for PinnedTopic {
    fn drop(&mut self) {
        // SAFETY: the handle is reference counted, and released once.
        unsafe { bindings::rd_kafka_topic_destroy(self.0) }
    }
}

/// Returns the elements of a list, including the fields that the Rust library does not expose.
///
/// # Safety
/// The list must be valid and unchanged for as long as its elements are used.
pub unsafe fn partitions<'l>(
    list: *const bindings::rd_kafka_topic_partition_list_t,
) -> &'l [bindings::rd_kafka_topic_partition_t] {
    // SAFETY: a list has as many elements as it says.
    unsafe {
        match list.as_ref() {
            Some(list) if !list.elems.is_null() => {
                std::slice::from_raw_parts(list.elems, usize::try_from(list.cnt).unwrap_or(0))
            }
            _ => &[],
        }
    }
}

/// Sends an admin request and waits for its response.
fn ask<C: ClientContext>(
    client: &Client<C>,
    operation: Operation,
    broker: Option<i32>,
    timeout: Duration,
    send: impl FnOnce(*mut bindings::rd_kafka_t, *const bindings::rd_kafka_AdminOptions_t, *mut bindings::rd_kafka_queue_t),
) -> KafkaResult<AdminEvent> {
    let milliseconds = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    let rk = client.native_ptr();
    let mut why: [c_char; 256] = [0; 256];
    // SAFETY: the client outlives the call; options, queue and event are created here and destroyed once.
    let event = unsafe {
        let options = bindings::rd_kafka_AdminOptions_new(rk, operation);
        // Both fail only for numbers that are out of range; the client then uses its defaults.
        let (why, len) = (why.as_mut_ptr(), why.len());
        bindings::rd_kafka_AdminOptions_set_request_timeout(options, milliseconds(timeout), why, len);
        if let Some(broker) = broker {
            bindings::rd_kafka_AdminOptions_set_broker(options, broker, why, len);
        }
        let queue = bindings::rd_kafka_queue_new(rk);
        send(rk, options, queue);
        let event = bindings::rd_kafka_queue_poll(queue, milliseconds(timeout + SLACK));
        bindings::rd_kafka_queue_destroy(queue);
        bindings::rd_kafka_AdminOptions_destroy(options);
        event
    };
    if event.is_null() {
        return Err(KafkaError::AdminOp(RDKafkaErrorCode::OperationTimedOut));
    }
    let event = AdminEvent(event);
    // SAFETY: the event is valid.
    match RDKafkaErrorCode::from(unsafe { bindings::rd_kafka_event_error(event.0) }) {
        RDKafkaErrorCode::NoError => Ok(event),
        error => Err(KafkaError::AdminOp(error)),
    }
}

/// Returns `None` if there is no error.
///
/// # Safety
/// The error, if there is one, must be valid while this runs.
unsafe fn error_code(error: *const bindings::rd_kafka_error_t) -> Option<RDKafkaErrorCode> {
    // SAFETY: null means no error.
    let code = RDKafkaErrorCode::from(unsafe { bindings::rd_kafka_error_code(error) });
    (code != RDKafkaErrorCode::NoError).then_some(code)
}

/// # Safety
/// The array must have `count` elements for as long as they are used.
unsafe fn elements<'a, T: 'a>(array: *mut *const T, count: usize) -> impl Iterator<Item = *const T> + 'a {
    let elements: &[*const T] = match array.is_null() {
        true => &[],
        // SAFETY: as the caller promises.
        false => unsafe { std::slice::from_raw_parts(array, count) },
    };
    elements.iter().copied()
}

struct AdminEvent(*mut bindings::rd_kafka_event_t);

impl Drop for AdminEvent {
    fn drop(&mut self) {
        // SAFETY: this value owns the event.
        unsafe { bindings::rd_kafka_event_destroy(self.0) }
    }
}

struct CStrings(Vec<CString>);

impl CStrings {
    fn of(texts: &[String]) -> KafkaResult<CStrings> {
        let texts = texts.iter().map(|text| CString::new(text.as_str()));
        let texts = texts.collect::<Result<Vec<CString>, _>>();
        texts.map(CStrings).map_err(KafkaError::Nul)
    }

    fn pointers(&self) -> Vec<*const c_char> {
        self.0.iter().map(|text| text.as_ptr()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::admin::AdminClient;
    use rdkafka::client::DefaultClientContext;
    use rdkafka::mocking::MockCluster;

    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = TopicId(0x0123_4567_89ab_cdef_0000_0000_0000_00ff);
        assert_eq!(id.to_string(), "0123456789abcdef00000000000000ff");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("no id".parse::<TopicId>().is_err());
    }

    #[test]
    fn topics_are_described_each_by_itself() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("t", 3, 1).unwrap();
        let client: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("allow.auto.create.topics", "false")
            .create()
            .unwrap();
        let names = ["t".to_owned(), "missing".to_owned()];
        let patience = Duration::from_secs(30);
        let metadata = client.inner().fetch_metadata(None, patience).unwrap();
        let described = describe_topics(client.inner(), &metadata, &names, patience).unwrap();
        assert_eq!(described.len(), 2);
        assert_eq!(described["t"].map(|topic| topic.partitions), Ok(3));
        assert_eq!(described["missing"], Err(RDKafkaErrorCode::UnknownTopicOrPartition));
    }

    #[test]
    fn what_is_not_answered_is_an_error_in_time() {
        let cluster = MockCluster::new(1).unwrap();
        let client: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .create()
            .unwrap();
        let metadata = client.inner().fetch_metadata(None, Duration::from_secs(30)).unwrap();
        cluster.broker_down(1).unwrap();
        let topics = ["t".to_owned()];
        assert!(describe_topics(client.inner(), &metadata, &topics, Duration::from_millis(50)).is_err());
        assert!(describe_group(client.inner(), "g", Duration::from_millis(50)).is_err());
    }
}
