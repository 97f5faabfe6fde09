use std::time::Duration;

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};
use thalweg_flow::{OutputContext, Rejection, WriteError};
use tokio::sync::oneshot;

use super::*;

type Cluster = MockCluster<'static, DefaultProducerContext>;
type Done = oneshot::Receiver<Result<(), WriteError>>;

/// A message is `topic`, or `topic key value header`.
struct ByText;

impl RecordEncoder for ByText {
    fn record(&self, messages: &[Message], index: usize) -> Result<ProducerRecord, Rejection> {
        let text = String::from_utf8(messages[index].bytes().into_owned()).unwrap();
        let mut parts = text.split(' ').map(str::to_owned);
        Ok(ProducerRecord {
            topic: parts.next().unwrap().into(),
            key: parts.next().map(Text::from),
            value: parts.next().map(Bytes::from),
            headers: parts.next().iter().fold(OwnedHeaders::new(), |headers, value| {
                headers.insert(Header {
                    key: "h",
                    value: Some(value),
                })
            }),
        })
    }
}

fn cluster(topics: &[&str]) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    topics
        .iter()
        .for_each(|topic| cluster.create_topic(topic, 1, 1).unwrap());
    cluster
}

async fn lane(cluster: &Cluster) -> (ProducerTask, mpsc::UnboundedSender<WriteRequest>) {
    let addresses = cluster.bootstrap_servers();
    let OutputContext {
        component, connection, ..
    } = OutputContext::for_tests("kafka");
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", &addresses)
        .set("max.in.flight.requests.per.connection", "1");
    super::super::settle(&mut settings);
    let link = Arc::new(BrokerLink::new(component, connection, addresses));
    let client = connect(&settings, &link).await.unwrap();
    let (jobs, received) = mpsc::unbounded_channel();
    let lane = ProducerTask::new(client, settings, link, Arc::new(ByText), None, 1 << 20, received);
    (lane, jobs)
}

fn job(texts: &[&str]) -> (WriteRequest, Done) {
    let (done, answer) = oneshot::channel();
    let messages = texts.iter().map(|text| Message::raw((*text).to_owned()));
    let messages = Arc::new(messages.collect::<Vec<_>>());
    (WriteRequest { messages, done }, answer)
}

fn write(place: u64, texts: &[&str]) -> (WriteState, Done) {
    let (job, answer) = job(texts);
    (WriteState::new(place, job), answer)
}

/// A write whose record waits for its topic, which is closed.
fn closed_by(lane: &mut ProducerTask, place: u64, text: &str) -> Done {
    let (mut missed, done) = write(place, &[text]);
    missed.astray = std::mem::take(&mut missed.wanted);
    lane.place = place;
    let topic = ByText.record(&missed.job.messages, 0).unwrap().topic;
    lane.close(&topic, "it does not exist");
    lane.keep(missed);
    assert!(lane.parked.contains_key(&place));
    done
}

fn there(topic: &str) -> ProducerProbeReport {
    ProducerProbeReport {
        partitions: None,
        broker: None,
        stalled: None,
        refused: vec![(topic.into(), None)],
    }
}

/// Processes reports until nothing is in flight, as the task does without new writes.
async fn drained(lane: &mut ProducerTask) {
    while let Some((write, failed)) = lane.on_their_way.next().await {
        lane.ended(write, failed);
    }
}

/// Waits for `count` values in a topic's first partition.
fn values(cluster: &Cluster, topic: &str, count: usize) -> Vec<String> {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "test");
    let consumer: BaseConsumer = settings.create().unwrap();
    let mut from = TopicPartitionList::new();
    from.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&from).unwrap();
    let mut values = Vec::new();
    let begun = Instant::now();
    while values.len() < count {
        assert!(begun.elapsed() < Duration::from_secs(30), "only {values:?}");
        if let Some(message) = consumer.poll(Duration::from_secs(1)) {
            values.push(String::from_utf8(message.unwrap().payload().unwrap().to_vec()).unwrap());
        }
    }
    values
}

#[tokio::test]
async fn what_waits_for_its_topic_is_sent_with_what_failed_and_so_before_anything_newer() {
    let cluster = cluster(&["missed", "failed"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    let parked_done = closed_by(&mut lane, 1, "missed");
    let (failed, failed_done) = write(2, &["failed"]);
    lane.again.insert(2, failed);
    lane.found(Some(there("missed")));
    assert!(lane.parked.is_empty() && lane.on_their_way.is_empty());
    let again: Vec<(u64, &[usize])> = lane.again.values().map(|write| (write.place, &*write.wanted)).collect();
    assert_eq!(again, [(1, [0].as_slice()), (2, [0].as_slice())]);
    lane.repeat().await;
    assert!(lane.again.is_empty() && lane.parked.is_empty());
    assert!(parked_done.await.unwrap().is_ok() && failed_done.await.unwrap().is_ok());
    drop_aside(lane.client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_overtook_a_record_that_failed_is_sent_again_and_confirmed_after_it() {
    let cluster = cluster(&["t", "other"]);
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN;
    cluster.request_errors(RDKafkaApiKey::Produce, &[unknown]);
    let (mut lane, _jobs) = lane(&cluster).await;
    let (older, mut older_done) = write(1, &["t k older"]);
    let (newer, mut newer_done) = write(2, &["t k newer", "t other-key y", "other k z"]);
    lane.launch(older);
    while lane.failing.load(Ordering::Acquire) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The task has not processed the failure yet.
    lane.launch(newer);
    drained(&mut lane).await;
    assert!(lane.again.contains_key(&1), "the first request failed");
    assert!(
        newer_done.try_recv().is_err(),
        "what may have to be sent again is not confirmed"
    );
    lane.repeat().await;
    assert_eq!(values(&cluster, "t", 4), ["newer", "y", "older", "newer"]);
    assert!(older_done.try_recv().unwrap().is_ok() && newer_done.try_recv().unwrap().is_ok());
    assert!(lane.held.is_empty() && lane.again.is_empty());
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn what_overtook_a_record_of_a_missing_topic_waits_with_it() {
    let cluster = cluster(&["t"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    lane.place = 2;
    let _done = closed_by(&mut lane, 1, "t k older");
    lane.closed_at = 2;
    // It was sent before the topic was closed, and accepted.
    let (mut newer, mut newer_done) = write(2, &["t k newer", "t l x"]);
    newer.wanted.clear();
    lane.keep(newer);
    assert_eq!(lane.parked[&2].astray, [0]);
    lane.found(Some(there("t")));
    drained(&mut lane).await;
    assert_eq!(values(&cluster, "t", 2), ["older", "newer"]);
    assert!(newer_done.try_recv().unwrap().is_ok());
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn a_write_that_is_taken_is_confirmed_while_an_older_one_waits_that_has_nothing_to_do_with_it() {
    let cluster = cluster(&["t", "other"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    lane.order.enter(1, &BTreeSet::from(["t".into()]));
    let (later, mut later_done) = write(2, &["t k x"]);
    let (beside, mut beside_done) = write(3, &["other k x"]);
    lane.launch(later);
    lane.launch(beside);
    drained(&mut lane).await;
    assert!(beside_done.try_recv().unwrap().is_ok());
    assert!(later_done.try_recv().is_err() && lane.held.contains_key(&2));
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn nothing_new_is_sent_from_the_first_record_that_fails_until_all_of_its_write_have_an_answer() {
    let cluster = cluster(&["t"]);
    let (lane, _jobs) = lane(&cluster).await;
    let fails = |code| {
        let pending = PendingDeliveries::new(lane.failing.clone(), true);
        pending.begun();
        pending.failed(0, KafkaError::MessageProduction(code));
        pending
    };
    let pending = fails(RDKafkaErrorCode::Unknown);
    pending.failed(1, KafkaError::MessageProduction(RDKafkaErrorCode::Unknown));
    assert!(!lane.is_flowing());
    pending.ended();
    pending.ended();
    assert_eq!(pending.finished().await.len(), 2);
    assert!(lane.is_flowing());
    fails(RDKafkaErrorCode::InvalidTopic);
    assert!(lane.is_flowing(), "what is refused for good is not sent again");
    fails(RDKafkaErrorCode::UnknownTopic);
    assert!(lane.is_flowing(), "a topic that is missing holds up no other");
    drop_aside(lane.client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_there_again_opens_when_nothing_is_on_its_way() {
    let cluster = cluster(&["t", "other"]);
    cluster.broker_round_trip_time(-1, Duration::from_millis(100)).unwrap();
    let (mut lane, _jobs) = lane(&cluster).await;
    let _done = closed_by(&mut lane, 1, "t k 1");
    // Its first record finds the topic closed, which shows when the second has a report.
    let (half, mut half_done) = write(2, &["t k 2", "other k x"]);
    lane.place = 2;
    lane.launch(half);
    lane.found(Some(there("t")));
    assert!(
        !lane.is_flowing(),
        "newer records of the topic wait until older ones can be sent"
    );
    assert!(matches!(lane.topics.gate(&"t".into()), Gate::Closed));
    drained(&mut lane).await;
    assert_eq!(lane.parked.len(), 2);
    lane.open_topics();
    assert!(lane.is_flowing() && matches!(lane.topics.gate(&"t".into()), Gate::Open));
    let (newer, _newer_done) = write(3, &["t k 3"]);
    lane.launch(newer);
    drained(&mut lane).await;
    assert!(
        matches!(lane.topics.gate(&"t".into()), Gate::Open),
        "nobody has refused it again"
    );
    assert!(half_done.try_recv().unwrap().is_ok());
    assert_eq!(values(&cluster, "t", 3), ["1", "2", "3"]);
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn what_is_held_when_its_topic_opens_is_sent_before_anything_newer() {
    let cluster = cluster(&["t", "other"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    let _done = closed_by(&mut lane, 1, "t k 1");
    let (failed, _failed_done) = write(2, &["other k x"]);
    lane.order.enter(2, &BTreeSet::from(["other".into()]));
    lane.again.insert(2, failed);
    let (held, mut held_done) = write(3, &["t k 3", "other l y"]);
    lane.launch(held);
    drained(&mut lane).await;
    assert_eq!(lane.held[&3].astray, [0]);
    lane.found(Some(there("t")));
    lane.repeat().await;
    assert!(lane.parked.is_empty() && held_done.try_recv().unwrap().is_ok());
    assert_eq!(values(&cluster, "t", 2), ["1", "3"]);
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn all_that_the_client_copies_counts_as_being_on_its_way() {
    let cluster = cluster(&["t"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    let header = "x".repeat(1000);
    let (write, _done) = write(1, &[&format!("t key value {header}")]);
    lane.launch(write);
    assert_eq!(lane.bytes, "key".len() + "value".len() + "h".len() + header.len());
    drained(&mut lane).await;
    assert_eq!(lane.bytes, 0);
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn what_waited_for_a_topic_is_sent_as_far_as_there_is_room() {
    let cluster = cluster(&["t"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    lane.bytes_max = 2;
    let _first = closed_by(&mut lane, 1, "t k 1");
    let mut second_done = closed_by(&mut lane, 2, "t k 2");
    lane.found(Some(there("t")));
    assert_eq!((lane.on_their_way.len(), lane.again.len()), (1, 1));
    drained(&mut lane).await;
    lane.repeat().await;
    assert_eq!(values(&cluster, "t", 2), ["1", "2"]);
    assert!(second_done.try_recv().unwrap().is_ok());
    drop_aside(lane.client).await;
}

#[tokio::test]
async fn a_topic_does_not_open_while_something_waits_for_an_answer_for_long() {
    let cluster = cluster(&["t"]);
    let (mut lane, _jobs) = lane(&cluster).await;
    let _done = closed_by(&mut lane, 1, "t k 1");
    let stalled = InFlightWrite {
        since: Instant::now() - STALLED,
        messages: Arc::default(),
        bytes: 0,
    };
    lane.begun.insert(2, stalled);
    lane.found(Some(there("t")));
    assert!(
        lane.is_flowing(),
        "that it opens when nothing is on its way would hold up all others"
    );
    assert!(matches!(lane.topics.gate(&"t".into()), Gate::Closed));
    lane.begun.clear();
    lane.found(Some(there("t")));
    assert!(matches!(lane.topics.gate(&"t".into()), Gate::Open));
    drop_aside(lane.client).await;
}

#[test]
fn what_was_sent_again_and_is_given_up_is_told() {
    let overtaking = || {
        let (mut write, _) = write(1, &["t k newer"]);
        write.wanted.clear();
        let mut late = WaitingKeys::from([("t".into(), Some("k".into()))]);
        assert_eq!(write.overtakers(&ByText, &mut late), [0]);
        write
    };
    let mut in_order = overtaking();
    in_order.give_up(0, "it is gone".to_owned());
    assert!(
        in_order.refused.is_empty(),
        "the broker has it, and nothing older after it"
    );
    let mut overtaken = overtaking();
    overtaken.sent(0, 1);
    overtaken.give_up(0, "it is gone".to_owned());
    assert_eq!(overtaken.refused.len(), 1);
}
