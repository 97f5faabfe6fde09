//! The order of writes, through their failures.
//!
//! | state | new writes | what happens |
//! |---|---|---|
//! | flowing | are sent as they come | any number is on its way, and a client keeps the order of each partition |
//! | draining: some record failed for now | wait | the writes on their way are waited for; what fails of them joins |
//! | repeating: nothing is on its way | wait | after a pause, what failed is sent again in the order of its writes; then flowing |
//!
//! A record that is refused for good ends in any state. One whose topic is refused waits beside all of this ([`topics`]), unless there
//! is one topic only. To give failures back to the flow, which repeats writes too, was rejected: it repeats each write by itself, so
//! that two of them would change places.
//!
//! A broker refuses requests, and a client puts records of several writes into one. So a request that is too large says
//! nothing of its records: each is sent again with nothing else on its way, and only then it is refused by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _};
use thalweg_flow::{BoxFuture, Rejection, WriteError, all_but};
use thalweg_record::{DropReason, Message, Text};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::deliveries::{Pending, Place};
use super::fate::{Fate, fate};
use super::inquiry::{Findings, Inquiry, Stalled};
use super::topics::{Gate, Topics};
use super::{Client, Encode, Record, connect, drop_aside};
use crate::link::{Link, died_of};

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Whether something has to be asked of a broker is looked at so often.
const ASK: Duration = Duration::from_secs(1);
/// A write that is not confirmed for longer is told of.
const STALLED: Duration = Duration::from_secs(10);
/// To name its topics, so many of its messages are looked at.
const STALLED_MESSAGES: usize = 100;

/// A write that was called.
pub struct Job {
    pub messages: Arc<Vec<Message>>,
    pub done: oneshot::Sender<Result<(), WriteError>>,
}

struct Write {
    /// In the order.
    place: u64,
    job: Job,
    /// What is to be sent, by index, in order.
    wanted: Vec<usize>,
    /// What waits for its topic.
    astray: Vec<usize>,
    refused: Vec<Rejection>,
    /// That the client took.
    bytes: usize,
    /// Some request with its records was too large: each is sent with nothing else on its way.
    is_split: bool,
}

/// A write on its way, for those who wonder where it is.
struct Begun {
    since: Instant,
    messages: Arc<Vec<Message>>,
    bytes: usize,
}

type Failed = Vec<(usize, KafkaError)>;

pub struct Lane {
    client: Client,
    settings: ClientConfig,
    link: Arc<Link>,
    encode: Arc<dyn Encode>,
    topic: Option<String>,
    topics: Topics,
    bytes_max: usize,
    /// Of what is on its way.
    bytes: usize,
    jobs: mpsc::UnboundedReceiver<Job>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (Write, Failed)>>,
    begun: BTreeMap<u64, Begun>,
    /// Writes with records that are to be sent again.
    again: BTreeMap<u64, Write>,
    /// Writes of which all that is left waits for a topic.
    parked: BTreeMap<u64, Write>,
    /// One at most.
    inquiries: FuturesUnordered<BoxFuture<'static, Option<Findings>>>,
    place: u64,
    pause: Duration,
    is_client_lost: bool,
}

impl Lane {
    pub fn new(
        client: Client,
        settings: ClientConfig,
        link: Arc<Link>,
        encode: Arc<dyn Encode>,
        topic: Option<String>,
        bytes_max: usize,
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Lane {
        Lane {
            client,
            settings,
            link,
            encode,
            topics: Topics::new(topic.is_none()),
            topic,
            bytes_max,
            bytes: 0,
            jobs,
            on_their_way: FuturesUnordered::new(),
            begun: BTreeMap::new(),
            again: BTreeMap::new(),
            parked: BTreeMap::new(),
            inquiries: FuturesUnordered::new(),
            place: 0,
            pause: PAUSE,
            is_client_lost: false,
        }
    }

    /// Ends when nobody can write any more; what is on its way then is nobody's.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let has_room = self.bytes == 0 || self.bytes < self.bytes_max;
            let is_flowing = self.again.is_empty() && has_room;
            // The ticks are always waited for, so that one branch is whatever the others wait for.
            tokio::select! {
                Some((write, failed)) = self.on_their_way.next() => self.ended(write, failed),
                Some(findings) = self.inquiries.next() => self.found(findings),
                job = self.jobs.recv(), if is_flowing => match job {
                    Some(job) => self.begin(job).await,
                    None => break,
                },
                _ = ticks.tick() => match self.jobs.is_closed() {
                    true => break,
                    false => self.look(),
                },
            }
            while self.on_their_way.is_empty() && !self.again.is_empty() && !self.jobs.is_closed() {
                self.repeat().await;
            }
        }
        drop_aside(self.client).await;
    }

    async fn begin(&mut self, job: Job) {
        self.encode.prepare(&job.messages).await;
        self.place += 1;
        self.launch(Write {
            place: self.place,
            wanted: (0..job.messages.len()).collect(),
            job,
            astray: Vec::new(),
            refused: Vec::new(),
            bytes: 0,
            is_split: false,
        });
    }

    /// Sends what is wanted of a write, together with whatever else is sent.
    fn launch(&mut self, mut write: Write) {
        let wanted = std::mem::take(&mut write.wanted);
        write.bytes = 0;
        let sent = self.send(&mut write, &wanted);
        let begun = Begun {
            since: Instant::now(),
            messages: write.job.messages.clone(),
            bytes: write.bytes,
        };
        self.bytes += begun.bytes;
        self.begun.insert(write.place, begun);
        self.on_their_way.push(Box::pin(async move {
            let failed = sent.finished().await;
            (write, failed)
        }));
    }

    /// Gives records to the client, which sends them in this order.
    fn send(&mut self, write: &mut Write, indexes: &[usize]) -> Arc<Pending> {
        let pending = Pending::new();
        let mut stopped: Option<KafkaError> = None;
        for &index in indexes {
            // What is behind a record that has to wait waits, too.
            if let Some(error) = &stopped {
                pending.failed(index, error.clone());
                continue;
            }
            let record = match self.encode.record(&write.job.messages, index) {
                Ok(record) => record,
                Err(rejection) => {
                    write.refused.push(rejection);
                    continue;
                }
            };
            match self.topics.gate(&record.topic) {
                Gate::Open => stopped = self.hand_over(record, index, write, &pending),
                Gate::Closed(error) => pending.failed(index, error),
                Gate::Over(why) => write.refuse(index, DropReason::OutputRejected, why),
            }
        }
        pending.ended();
        pending
    }

    /// Returns the error if the records behind it have to wait.
    fn hand_over(
        &mut self,
        record: Record,
        index: usize,
        write: &mut Write,
        pending: &Arc<Pending>,
    ) -> Option<KafkaError> {
        pending.begun();
        let place = Box::new(Place {
            write: pending.clone(),
            index,
        });
        let mut out = BaseRecord::with_opaque_to(&record.topic, place).headers(record.headers);
        out.payload = record.value.as_deref();
        out.key = record.key.as_ref().map(|key| key.as_bytes());
        let bytes = out.payload.map_or(0, <[u8]>::len) + out.key.map_or(0, <[u8]>::len);
        let Err((error, _)) = self.client.send(out) else {
            write.bytes += bytes;
            return None;
        };
        pending.ended();
        match fate(&error) {
            // It is larger than this client is allowed to send, by itself.
            Fate::TooLarge(why) => write.refuse(index, DropReason::TooLarge, why),
            Fate::Topic(why) if self.topics.is_many() => {
                self.topics.failed(&record.topic, &why);
                pending.failed(index, error);
            }
            Fate::Refused(..) => pending.failed(index, error),
            Fate::Again(_) | Fate::Topic(_) | Fate::ClientLost(_) => {
                pending.failed(index, error.clone());
                return Some(error);
            }
        }
        None
    }

    /// All records of a write have an answer.
    fn ended(&mut self, mut write: Write, mut failed: Failed) {
        if let Some(begun) = self.begun.remove(&write.place) {
            self.bytes = self.bytes.saturating_sub(begun.bytes);
        }
        failed.sort_by_key(|(index, _)| *index);
        write.wanted.clear();
        let was_alone = write.is_split;
        let mut why_again = None;
        for (index, error) in failed {
            match fate(&error) {
                Fate::Refused(reason, why) => write.refuse(index, reason, why),
                Fate::TooLarge(why) if was_alone => write.refuse(index, DropReason::TooLarge, why),
                Fate::TooLarge(_) => {
                    write.is_split = true;
                    write.wanted.push(index);
                }
                Fate::Topic(why) if self.topics.is_many() => self.leave_aside(&mut write, index, &why),
                Fate::Again(why) | Fate::Topic(why) => {
                    why_again = Some(why);
                    write.wanted.push(index);
                }
                Fate::ClientLost(why) => {
                    self.is_client_lost = true;
                    why_again = Some(died_of(self.client.client(), &why));
                    write.wanted.push(index);
                }
            }
        }
        if let Some(why) = why_again {
            self.link
                .down(&format!("records are not taken for now, and sent again: {why}"));
        } else {
            self.pause = PAUSE;
        }
        self.keep(write);
    }

    /// What is left of a write waits where it has to.
    fn keep(&mut self, mut write: Write) {
        if !write.wanted.is_empty() {
            write.wanted.append(&mut write.astray);
            write.wanted.sort_unstable();
            self.again.insert(write.place, write);
        } else if !write.astray.is_empty() {
            // Next time it is not alone.
            write.is_split = false;
            self.parked.insert(write.place, write);
        } else {
            let _ = write.job.done.send(all_but(write.refused));
        }
    }

    /// The topic of a record is refused.
    fn leave_aside(&mut self, write: &mut Write, index: usize, why: &str) {
        let record = match self.encode.record(&write.job.messages, index) {
            Ok(record) => record,
            Err(rejection) => return write.refused.push(rejection),
        };
        self.topics.failed(&record.topic, why);
        match self.topics.gate(&record.topic) {
            Gate::Over(why) => write.refuse(index, DropReason::OutputRejected, why),
            Gate::Open | Gate::Closed(_) => write.astray.push(index),
        }
        let topic = &record.topic;
        self.link.component.warn_limited("topic", 1, || {
            format!("records to the topic {topic} wait, and are refused in the end if it does not take them: {why}")
        });
    }

    /// Sends what failed again, in order, and before anything newer.
    async fn repeat(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if std::mem::take(&mut self.is_client_lost) {
            match connect(&self.settings, &self.link).await {
                Ok(client) => drop_aside(std::mem::replace(&mut self.client, client)).await,
                Err(why) => {
                    self.is_client_lost = true;
                    return self.link.down(&why);
                }
            }
        }
        let mut rest = std::mem::take(&mut self.again).into_iter();
        while let Some((_, mut write)) = rest.next() {
            let wanted = write.wanted.clone();
            let failed = match write.is_split {
                true => self.send_each(&mut write, &wanted).await,
                false => {
                    let sent = self.send(&mut write, &wanted);
                    self.wait_for(&write, &wanted, &sent).await
                }
            };
            self.ended(write, failed);
            if !self.again.is_empty() {
                self.again.extend(rest.by_ref());
            }
        }
    }

    /// Sends each record by itself, up to one that has to wait.
    async fn send_each(&mut self, write: &mut Write, wanted: &[usize]) -> Failed {
        let mut failed = Failed::new();
        let mut rest = wanted.iter();
        while let Some(index) = rest.next() {
            let one = std::slice::from_ref(index);
            let sent = self.send(write, one);
            let of_one = self.wait_for(write, one, &sent).await;
            if let Some((_, error)) = of_one.iter().find(|(_, error)| self.holds_up(error)) {
                failed.extend(rest.by_ref().map(|index| (*index, error.clone())));
            }
            failed.extend(of_one);
        }
        failed
    }

    /// Whether what is behind a record with this error has to wait.
    fn holds_up(&self, error: &KafkaError) -> bool {
        match fate(error) {
            Fate::Again(_) | Fate::ClientLost(_) => true,
            Fate::Topic(_) => !self.topics.is_many(),
            Fate::TooLarge(_) | Fate::Refused(..) => false,
        }
    }

    /// Waits for the answers to what was sent while nothing else is, and tells when none comes.
    async fn wait_for(&mut self, write: &Write, indexes: &[usize], sent: &Arc<Pending>) -> Failed {
        let since = Instant::now();
        loop {
            if let Ok(failed) = tokio::time::timeout(STALLED, sent.finished()).await {
                return failed;
            }
            if self.jobs.is_closed() {
                // Nobody waits for it; the lane is about to end.
                let gone = KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue);
                return indexes.iter().map(|index| (*index, gone.clone())).collect();
            }
            let stalled = Some(self.stalled(write.place, since, &write.job.messages));
            let inquiry = Inquiry {
                is_there: true,
                stalled,
                ..Inquiry::default()
            };
            if let Some(findings) = self.inquire(inquiry).await {
                self.tell(&findings);
            }
        }
    }

    /// Asks a broker, if there is doubt that one is there, a write that is not confirmed, or a topic that is refused.
    fn look(&mut self) {
        if !self.inquiries.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut begun = self.begun.iter();
        let oldest = begun.find(|(_, begun)| now.saturating_duration_since(begun.since) >= STALLED);
        let stalled = oldest.map(|(place, begun)| self.stalled(*place, begun.since, &begun.messages));
        let inquiry = Inquiry {
            is_there: self.link.is_doubtful() || stalled.is_some(),
            stalled,
            refused: self.topics.due(now),
        };
        if inquiry.is_needless() {
            // Their topic may have been forgotten for others.
            return self.unpark();
        }
        let asked = self.inquire(inquiry);
        self.inquiries.push(asked);
    }

    fn stalled(&self, place: u64, since: Instant, messages: &[Message]) -> Stalled {
        let topics = match &self.topic {
            Some(topic) => BTreeSet::from([Text::from(topic.as_str())]),
            None => {
                let looked_at = 0..messages.len().min(STALLED_MESSAGES);
                let topic = |index| Some(self.encode.record(messages, index).ok()?.topic);
                looked_at.filter_map(topic).collect()
            }
        };
        Stalled {
            place,
            since,
            topics: topics.into_iter().collect(),
        }
    }

    fn inquire(&self, inquiry: Inquiry) -> BoxFuture<'static, Option<Findings>> {
        let (link, client, own) = (self.link.clone(), self.client.clone(), self.topic.clone());
        let asked = tokio::task::spawn_blocking(move || inquiry.ask(&link, &client, own.as_deref()));
        // `None` while the process stops.
        Box::pin(async move { asked.await.ok() })
    }

    fn found(&mut self, findings: Option<Findings>) {
        let Some(mut findings) = findings else { return };
        for (topic, why) in findings.refused.drain(..) {
            self.topics.heard(&topic, why);
        }
        // In their order, and before anything newer: topics open here and nowhere else.
        self.unpark();
        if findings
            .stalled
            .as_ref()
            .is_some_and(|(place, _)| !self.begun.contains_key(place))
        {
            findings.stalled = None;
        }
        self.tell(&findings);
    }

    /// Tries what waits for its topic: with what is sent again, if there is any, since that comes before anything newer.
    fn unpark(&mut self) {
        for (place, mut write) in std::mem::take(&mut self.parked) {
            write.wanted = std::mem::take(&mut write.astray);
            if self.again.is_empty() {
                self.launch(write);
            } else {
                self.again.insert(place, write);
            }
        }
    }

    /// Shows whether data can flow.
    fn tell(&self, findings: &Findings) {
        match (&findings.broker, &findings.stalled) {
            (Some(Err(why)), _) | (_, Some((_, why))) => self.link.down(why),
            (Some(Ok(())), None) if self.again.is_empty() => self.link.connection.up(),
            _ => {}
        }
    }
}

impl Write {
    fn refuse(&mut self, index: usize, reason: DropReason, why: String) {
        self.refused.push(Rejection::permanent(index, reason, why));
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::OwnedHeaders;
    use rdkafka::mocking::MockCluster;
    use thalweg_flow::OutputContext;

    use super::*;

    type Done = oneshot::Receiver<Result<(), WriteError>>;

    /// A message is the topic that it goes to.
    struct ByText;

    impl Encode for ByText {
        fn record(&self, messages: &[Message], index: usize) -> Result<Record, Rejection> {
            let topic = String::from_utf8(messages[index].bytes().into_owned()).unwrap();
            Ok(Record {
                topic: topic.into(),
                key: None,
                headers: OwnedHeaders::new(),
                value: None,
            })
        }
    }

    async fn lane(addresses: String) -> (Lane, mpsc::UnboundedSender<Job>) {
        let OutputContext {
            component, connection, ..
        } = OutputContext::for_tests("kafka");
        let mut settings = ClientConfig::new();
        settings.set("bootstrap.servers", &addresses);
        super::super::settle(&mut settings);
        let link = Arc::new(Link::new(component, connection, addresses));
        let client = connect(&settings, &link).await.unwrap();
        let (jobs, received) = mpsc::unbounded_channel();
        let lane = Lane::new(client, settings, link, Arc::new(ByText), None, 1 << 20, received);
        (lane, jobs)
    }

    /// A write of one record.
    fn write(place: u64, topic: &str) -> (Write, Done) {
        let (done, answer) = oneshot::channel();
        let messages = Arc::new(vec![Message::raw(topic.to_owned())]);
        let write = Write {
            place,
            job: Job { messages, done },
            wanted: Vec::new(),
            astray: Vec::new(),
            refused: Vec::new(),
            bytes: 0,
            is_split: false,
        };
        (write, answer)
    }

    #[tokio::test]
    async fn what_waits_for_its_topic_is_sent_with_what_failed_and_so_before_anything_newer() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("missed", 1, 1).unwrap();
        cluster.create_topic("failed", 1, 1).unwrap();
        let (mut lane, _jobs) = lane(cluster.bootstrap_servers()).await;
        lane.topics.failed(&"missed".into(), "it does not exist");
        let (mut parked, parked_done) = write(1, "missed");
        parked.astray.push(0);
        lane.parked.insert(1, parked);
        let (mut failed, failed_done) = write(2, "failed");
        failed.wanted.push(0);
        lane.again.insert(2, failed);
        lane.found(Some(Findings {
            broker: None,
            stalled: None,
            refused: vec![("missed".into(), None)],
        }));
        assert!(lane.parked.is_empty() && lane.on_their_way.is_empty());
        let again: Vec<(u64, &[usize])> = lane.again.values().map(|write| (write.place, &*write.wanted)).collect();
        assert_eq!(again, [(1, [0].as_slice()), (2, [0].as_slice())]);
        lane.repeat().await;
        assert!(lane.again.is_empty() && lane.parked.is_empty());
        assert!(parked_done.await.unwrap().is_ok() && failed_done.await.unwrap().is_ok());
        drop_aside(lane.client).await;
    }
}
