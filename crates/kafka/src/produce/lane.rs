//! The order of writes, through their failures.
//!
//! | state | new writes | what happens |
//! |---|---|---|
//! | flowing | are sent as they come | any number is on its way, and a client keeps the order of each partition |
//! | draining: some record failed for now | wait | the writes on their way are waited for; what fails of them joins |
//! | repeating: nothing is on its way | wait | after a pause, what failed is sent again in the order of its writes; then flowing |
//!
//! A record that is refused for good ends in any state. To give failures back to the flow, which repeats writes too, was rejected: it
//! repeats each write by itself, so that two of them would change places.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseRecord;
use thalweg_flow::{BoxFuture, Rejection, WriteError, all_but};
use thalweg_record::{DropReason, Message};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::deliveries::{Pending, Place};
use super::fate::{Fate, fate};
use super::{Client, Encode, Record, ask, connect};
use crate::link::Link;

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// While no broker answers, one is asked so often.
const ASK: Duration = Duration::from_secs(1);

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
    refused: Vec<Rejection>,
    /// Its records were too large together: each is sent by itself.
    is_split: bool,
}

type Failed = Vec<(usize, KafkaError)>;

pub struct Lane {
    client: Client,
    settings: ClientConfig,
    link: Arc<Link>,
    encode: Arc<dyn Encode>,
    topic: Option<String>,
    jobs: mpsc::UnboundedReceiver<Job>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (Write, Failed)>>,
    /// Writes with records that are to be sent again.
    again: BTreeMap<u64, Write>,
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
        jobs: mpsc::UnboundedReceiver<Job>,
    ) -> Lane {
        Lane {
            client,
            settings,
            link,
            encode,
            topic,
            jobs,
            on_their_way: FuturesUnordered::new(),
            again: BTreeMap::new(),
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
            let is_flowing = self.again.is_empty();
            tokio::select! {
                Some((write, failed)) = self.on_their_way.next() => self.ended(write, failed),
                job = self.jobs.recv(), if is_flowing => match job {
                    Some(job) => self.begin(job).await,
                    None => break,
                },
                _ = ticks.tick(), if is_flowing => self.look().await,
            }
            while self.on_their_way.is_empty() && !self.again.is_empty() && !self.jobs.is_closed() {
                self.repeat().await;
            }
        }
        // It waits for its thread.
        let _ = tokio::task::spawn_blocking(move || drop(self.client)).await;
    }

    async fn begin(&mut self, job: Job) {
        self.encode.prepare(&job.messages).await;
        self.place += 1;
        let mut write = Write {
            place: self.place,
            wanted: (0..job.messages.len()).collect(),
            job,
            refused: Vec::new(),
            is_split: false,
        };
        let wanted = write.wanted.clone();
        let sent = self.send(&mut write, &wanted);
        self.on_their_way.push(Box::pin(async move {
            let failed = sent.finished().await;
            (write, failed)
        }));
    }

    /// Gives records to the client, which sends them in this order.
    fn send(&self, write: &mut Write, indexes: &[usize]) -> Arc<Pending> {
        let pending = Pending::new();
        let mut stopped: Option<KafkaError> = None;
        for &index in indexes {
            // What is behind a record that has to wait waits, too.
            if let Some(error) = &stopped {
                pending.failed(index, error.clone());
                continue;
            }
            match self.encode.record(&write.job.messages, index) {
                Ok(record) => stopped = self.hand_over(record, index, &pending),
                Err(rejection) => write.refused.push(rejection),
            }
        }
        pending.ended();
        pending
    }

    /// Returns the error if the record has to wait.
    fn hand_over(&self, record: Record, index: usize, pending: &Arc<Pending>) -> Option<KafkaError> {
        pending.begun();
        let place = Box::new(Place {
            write: pending.clone(),
            index,
        });
        let mut out = BaseRecord::with_opaque_to(&record.topic, place)
            .payload(&*record.value)
            .headers(record.headers);
        out.key = record.key.as_ref().map(|key| key.as_bytes());
        let (error, _) = self.client.send(out).err()?;
        pending.failed(index, error.clone());
        pending.ended();
        matches!(fate(&error), Fate::Again(_) | Fate::ClientLost(_)).then_some(error)
    }

    /// All records of a write have an answer.
    fn ended(&mut self, mut write: Write, mut failed: Failed) {
        failed.sort_by_key(|(index, _)| *index);
        write.wanted.clear();
        let was_alone = write.is_split || write.job.messages.len() == 1;
        let mut why_again = None;
        for (index, error) in failed {
            match fate(&error) {
                Fate::Refused(reason, why) => write.refused.push(Rejection::permanent(index, reason, why)),
                Fate::TooLarge(why) if was_alone => {
                    write
                        .refused
                        .push(Rejection::permanent(index, DropReason::TooLarge, why));
                }
                Fate::TooLarge(_) => {
                    write.is_split = true;
                    write.wanted.push(index);
                }
                Fate::Again(why) => {
                    why_again = Some(why);
                    write.wanted.push(index);
                }
                Fate::ClientLost(why) => {
                    self.is_client_lost = true;
                    why_again = Some(why);
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
        if write.wanted.is_empty() {
            let _ = write.job.done.send(all_but(write.refused));
        } else {
            self.again.insert(write.place, write);
        }
    }

    /// Sends what failed again, in order, and before anything newer.
    async fn repeat(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if std::mem::take(&mut self.is_client_lost) {
            match connect(&self.settings, &self.link) {
                Ok(client) => self.client = client,
                Err(why) => return self.link.down(&why),
            }
        }
        let mut rest = std::mem::take(&mut self.again).into_iter();
        while let Some((_, mut write)) = rest.next() {
            let failed = match write.is_split {
                true => self.send_each(&mut write).await,
                false => {
                    let wanted = write.wanted.clone();
                    self.send(&mut write, &wanted).finished().await
                }
            };
            self.ended(write, failed);
            if !self.again.is_empty() {
                self.again.extend(rest.by_ref());
            }
        }
    }

    /// Sends each record by itself, up to one that has to wait.
    async fn send_each(&mut self, write: &mut Write) -> Failed {
        let mut failed = Failed::new();
        let wanted = write.wanted.clone();
        let mut rest = wanted.iter();
        while let Some(index) = rest.next() {
            let one = self.send(write, std::slice::from_ref(index)).finished().await;
            let waits = one
                .iter()
                .find(|(_, error)| matches!(fate(error), Fate::Again(_) | Fate::ClientLost(_)));
            if let Some((_, error)) = waits {
                let error = error.clone();
                failed.extend(rest.by_ref().map(|index| (*index, error.clone())));
            }
            failed.extend(one);
        }
        failed
    }

    /// Asks a broker, if there is doubt that one is there.
    async fn look(&mut self) {
        if !self.link.is_doubtful() {
            return;
        }
        match ask(&self.link, &self.client, self.topic.as_deref()).await {
            Ok(()) => self.link.connection.up(),
            Err(why) => self.link.down(&why),
        }
    }
}
