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
            key: parts.next().map(|key| RecordKey::Text(key.into())),
            time_ms: None,
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

async fn task(cluster: &Cluster) -> (ProducerTask, mpsc::UnboundedSender<WriteRequest>) {
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
    let task = ProducerTask::new(client, settings, link, Arc::new(ByText), None, 1 << 20, received);
    (task, jobs)
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
fn closed_by(task: &mut ProducerTask, place: u64, text: &str) -> Done {
    let (mut missed, done) = write(place, &[text]);
    missed.astray = std::mem::take(&mut missed.wanted);
    task.place = place;
    let topic = ByText.record(&missed.job.messages, 0).unwrap().topic;
    task.close(&topic, "it does not exist");
    task.keep(missed);
    assert!(task.parked.contains_key(&place));
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
async fn drained(task: &mut ProducerTask) {
    while let Some((write, failed)) = task.on_their_way.next().await {
        task.ended(write, failed);
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
    let (mut task, _jobs) = task(&cluster).await;
    let parked_done = closed_by(&mut task, 1, "missed");
    let (failed, failed_done) = write(2, &["failed"]);
    task.again.insert(2, failed);
    task.found(Some(there("missed")));
    assert!(task.parked.is_empty() && task.on_their_way.is_empty());
    let again: Vec<(u64, &[usize])> = task.again.values().map(|write| (write.place, &*write.wanted)).collect();
    assert_eq!(again, [(1, [0].as_slice()), (2, [0].as_slice())]);
    task.repeat().await;
    assert!(task.again.is_empty() && task.parked.is_empty());
    assert!(parked_done.await.unwrap().is_ok() && failed_done.await.unwrap().is_ok());
    drop_aside(task.client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_overtook_a_record_that_failed_is_sent_again_and_confirmed_after_it() {
    let cluster = cluster(&["t", "other"]);
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN;
    cluster.request_errors(RDKafkaApiKey::Produce, &[unknown]);
    let (mut task, _jobs) = task(&cluster).await;
    let (older, mut older_done) = write(1, &["t k older"]);
    let (newer, mut newer_done) = write(2, &["t k newer", "t other-key y", "other k z"]);
    task.launch(older);
    while task.failing.load(Ordering::Acquire) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The task has not processed the failure yet.
    task.launch(newer);
    drained(&mut task).await;
    assert!(task.again.contains_key(&1), "the first request failed");
    assert!(
        newer_done.try_recv().is_err(),
        "what may have to be sent again is not confirmed"
    );
    task.repeat().await;
    assert_eq!(values(&cluster, "t", 4), ["newer", "y", "older", "newer"]);
    assert!(older_done.try_recv().unwrap().is_ok() && newer_done.try_recv().unwrap().is_ok());
    assert!(task.held.is_empty() && task.again.is_empty());
    drop_aside(task.client).await;
}

#[tokio::test]
async fn what_overtook_a_record_of_a_missing_topic_waits_with_it() {
    let cluster = cluster(&["t"]);
    let (mut task, _jobs) = task(&cluster).await;
    task.place = 2;
    let _done = closed_by(&mut task, 1, "t k older");
    task.closed_at = 2;
    // It was sent before the topic was closed, and accepted.
    let (mut newer, mut newer_done) = write(2, &["t k newer", "t l x"]);
    newer.wanted.clear();
    task.keep(newer);
    assert_eq!(task.parked[&2].astray, [0]);
    task.found(Some(there("t")));
    drained(&mut task).await;
    assert_eq!(values(&cluster, "t", 2), ["older", "newer"]);
    assert!(newer_done.try_recv().unwrap().is_ok());
    drop_aside(task.client).await;
}

#[tokio::test]
async fn a_write_that_is_taken_is_confirmed_while_an_older_one_waits_that_has_nothing_to_do_with_it() {
    let cluster = cluster(&["t", "other"]);
    let (mut task, _jobs) = task(&cluster).await;
    task.order.enter(1, &BTreeSet::from(["t".into()]));
    let (later, mut later_done) = write(2, &["t k x"]);
    let (beside, mut beside_done) = write(3, &["other k x"]);
    task.launch(later);
    task.launch(beside);
    drained(&mut task).await;
    assert!(beside_done.try_recv().unwrap().is_ok());
    assert!(later_done.try_recv().is_err() && task.held.contains_key(&2));
    drop_aside(task.client).await;
}

#[tokio::test]
async fn nothing_new_is_sent_from_the_first_record_that_fails_until_all_of_its_write_have_an_answer() {
    let cluster = cluster(&["t"]);
    let (task, _jobs) = task(&cluster).await;
    let fails = |code| {
        let pending = PendingDeliveries::new(task.failing.clone(), true);
        pending.begun();
        pending.failed(0, KafkaError::MessageProduction(code));
        pending
    };
    let pending = fails(RDKafkaErrorCode::Unknown);
    pending.failed(1, KafkaError::MessageProduction(RDKafkaErrorCode::Unknown));
    assert!(!task.is_flowing());
    pending.ended();
    pending.ended();
    assert_eq!(pending.finished().await.len(), 2);
    assert!(task.is_flowing());
    fails(RDKafkaErrorCode::InvalidTopic);
    assert!(task.is_flowing(), "what is refused for good is not sent again");
    fails(RDKafkaErrorCode::UnknownTopic);
    assert!(task.is_flowing(), "a topic that is missing holds up no other");
    drop_aside(task.client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_there_again_opens_when_nothing_is_on_its_way() {
    let cluster = cluster(&["t", "other"]);
    cluster.broker_round_trip_time(-1, Duration::from_millis(100)).unwrap();
    let (mut task, _jobs) = task(&cluster).await;
    let _done = closed_by(&mut task, 1, "t k 1");
    // Its first record finds the topic closed, which shows when the second has a report.
    let (half, mut half_done) = write(2, &["t k 2", "other k x"]);
    task.place = 2;
    task.launch(half);
    task.found(Some(there("t")));
    assert!(
        !task.is_flowing(),
        "newer records of the topic wait until older ones can be sent"
    );
    assert!(matches!(task.topics.gate(&"t".into()), Gate::Closed));
    drained(&mut task).await;
    assert_eq!(task.parked.len(), 2);
    task.open_topics();
    assert!(task.is_flowing() && matches!(task.topics.gate(&"t".into()), Gate::Open));
    let (newer, _newer_done) = write(3, &["t k 3"]);
    task.launch(newer);
    drained(&mut task).await;
    assert!(
        matches!(task.topics.gate(&"t".into()), Gate::Open),
        "nobody has refused it again"
    );
    assert!(half_done.try_recv().unwrap().is_ok());
    assert_eq!(values(&cluster, "t", 3), ["1", "2", "3"]);
    drop_aside(task.client).await;
}

#[tokio::test]
async fn what_is_held_when_its_topic_opens_is_sent_before_anything_newer() {
    let cluster = cluster(&["t", "other"]);
    let (mut task, _jobs) = task(&cluster).await;
    let _done = closed_by(&mut task, 1, "t k 1");
    let (failed, _failed_done) = write(2, &["other k x"]);
    task.order.enter(2, &BTreeSet::from(["other".into()]));
    task.again.insert(2, failed);
    let (held, mut held_done) = write(3, &["t k 3", "other l y"]);
    task.launch(held);
    drained(&mut task).await;
    assert_eq!(task.held[&3].astray, [0]);
    task.found(Some(there("t")));
    task.repeat().await;
    assert!(task.parked.is_empty() && held_done.try_recv().unwrap().is_ok());
    assert_eq!(values(&cluster, "t", 2), ["1", "3"]);
    drop_aside(task.client).await;
}

#[tokio::test]
async fn all_that_the_client_copies_counts_as_being_on_its_way() {
    let cluster = cluster(&["t"]);
    let (mut task, _jobs) = task(&cluster).await;
    let header = "x".repeat(1000);
    let (write, _done) = write(1, &[&format!("t key value {header}")]);
    task.launch(write);
    assert_eq!(task.bytes, "key".len() + "value".len() + "h".len() + header.len());
    drained(&mut task).await;
    assert_eq!(task.bytes, 0);
    drop_aside(task.client).await;
}

#[tokio::test]
async fn what_waited_for_a_topic_is_sent_as_far_as_there_is_room() {
    let cluster = cluster(&["t"]);
    let (mut task, _jobs) = task(&cluster).await;
    task.bytes_max = 2;
    let _first = closed_by(&mut task, 1, "t k 1");
    let mut second_done = closed_by(&mut task, 2, "t k 2");
    task.found(Some(there("t")));
    assert_eq!((task.on_their_way.len(), task.again.len()), (1, 1));
    drained(&mut task).await;
    task.repeat().await;
    assert_eq!(values(&cluster, "t", 2), ["1", "2"]);
    assert!(second_done.try_recv().unwrap().is_ok());
    drop_aside(task.client).await;
}

#[tokio::test]
async fn a_topic_does_not_open_while_something_waits_for_an_answer_for_long() {
    let cluster = cluster(&["t"]);
    let (mut task, _jobs) = task(&cluster).await;
    let _done = closed_by(&mut task, 1, "t k 1");
    let stalled = InFlightWrite {
        since: Instant::now() - STALLED,
        messages: Arc::default(),
        bytes: 0,
    };
    task.begun.insert(2, stalled);
    task.found(Some(there("t")));
    assert!(
        task.is_flowing(),
        "that it opens when nothing is on its way would hold up all others"
    );
    assert!(matches!(task.topics.gate(&"t".into()), Gate::Closed));
    task.begun.clear();
    task.found(Some(there("t")));
    assert!(matches!(task.topics.gate(&"t".into()), Gate::Open));
    drop_aside(task.client).await;
}

#[test]
fn what_was_sent_again_and_is_given_up_is_told() {
    let overtaking = || {
        let (mut write, _) = write(1, &["t k newer"]);
        write.wanted.clear();
        let mut late = WaitingKeys::from([("t".into(), Some(RecordKey::Text("k".into())))]);
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
