//! Calls of clients and operators.

use std::time::Duration;

use super::ids::Expected;
use super::model::{Life, Told};
use super::world::{CONSUMERS, World, queue_settings, told};
use crate::support::{HOUR, SECOND, letters, nack_in, text, up_to};
use thalweg_log::Micros;
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{
    DeadLetterFilter, DeadLetterSelection, NewMessage, Pause, ProduceResult, QueueError, ResendTo, SeekTo, SettleAction,
};

/// One of this many dedup-ids is soon reused.
const IDS: u64 = 6;

/// A message as it is sent.
struct Sent {
    text: String,
    life: Life,
    id: Option<String>,
}

impl Sent {
    fn message(&self) -> NewMessage {
        NewMessage {
            ttl: self.life.ttl.map(|ttl| Duration::from_micros(ttl as u64)),
            not_before: self.life.not_before,
            deliver_at: self.life.deliver_at,
            dedup_id: self.id.as_deref().map(Into::into),
            ..NewMessage::of(self.text.clone())
        }
    }
}

impl World {
    pub async fn produce(&mut self) {
        let (queue, _) = self.queue();
        let count = 1 + self.random.below(3);
        let first_id = self.random.below(IDS);
        let sent: Vec<Sent> = (0..count).map(|n| self.new_message((first_id + n) % IDS)).collect();
        let messages: Vec<NewMessage> = sent.iter().map(Sent::message).collect();
        let answer = match <[NewMessage; 1]>::try_from(messages) {
            Ok([one]) => self.call(queue.produce(one)).await.map(|one| one.map(|one| vec![one])),
            Err(messages) => self.call(queue.produce_all(messages)).await,
        };
        let told = told(&answer);
        let shown: Vec<_> = sent.iter().map(|sent| (&sent.text, sent.life, &sent.id)).collect();
        self.happened(("produced", shown, told));
        let places = answer.and_then(Result::ok).unwrap_or_default();
        for (n, sent) in sent.into_iter().enumerate() {
            self.note_sent(sent, told, places.get(n));
        }
    }

    fn new_message(&mut self, id: u64) -> Sent {
        let (now, wall) = (self.expected_now, self.machine().wall());
        let mut one_of =
            |all: &[Option<Micros>]| all.get(self.random.below(all.len() as u64) as usize).copied().flatten();
        let ttl = one_of(&[None, None, None, Some(45 * SECOND), Some(HOUR), Some(480 * HOUR)]);
        let delay = one_of(&[
            None,
            None,
            None,
            None,
            Some(2 * SECOND),
            Some(45 * SECOND),
            Some(2 * HOUR),
        ]);
        let (by_wall, has_id) = (self.random.one_in(2), self.random.one_in(3));
        let past = if self.random.one_in(4) { -HOUR } else { 0 };
        Sent {
            text: self.model.new_text(),
            life: Life {
                ttl,
                not_before: delay.filter(|_| !by_wall).map(|delay| now + delay),
                deliver_at: delay.filter(|_| by_wall).map(|delay| wall + past + delay),
            },
            id: has_id.then(|| format!("id {id}")),
        }
    }

    fn note_sent(&mut self, sent: Sent, told: Told, produced: Option<&ProduceResult>) {
        let place = produced.map(|produced| (produced.partition, produced.offset));
        let Some(id) = &sent.id else {
            assert!(
                produced.is_none_or(|produced| !produced.repeated),
                "{} has no id",
                sent.text
            );
            return self.model.produced(sent.text, sent.life, place, told);
        };
        let (now, latest) = (self.expected_now, self.model.latest());
        let expected = self.ids.expected(id, now, latest);
        match (produced, expected) {
            (None, Expected::Repeated(_)) => {}
            (None, _) => {
                if told == Told::Unknown {
                    self.ids.may_be_stored(id);
                }
                self.model.produced(sent.text, sent.life, None, told);
            }
            (Some(produced), expected) => {
                let place = (produced.partition, produced.offset);
                match expected {
                    Expected::First => assert!(!produced.repeated, "{}: {id} is not known any more", sent.text),
                    Expected::Repeated(first) => {
                        assert!(
                            produced.repeated,
                            "{}: {id} is known, and it is stored again",
                            sent.text
                        );
                        assert_eq!(place, first, "{}: the place of {id}", sent.text);
                    }
                    Expected::Either => {}
                }
                if produced.repeated {
                    self.counts.repeated += 1;
                } else {
                    self.note_stored();
                    self.ids.stored(id, place, now);
                    self.model.produced(sent.text, sent.life, Some(place), told);
                }
            }
        }
    }

    pub async fn claim(&mut self) {
        let (queue, group) = self.queue();
        let consumer = format!("c{}", self.random.below(CONSUMERS));
        let kind = match self.random.one_in(2) {
            true => MemberKind::Http,
            false => MemberKind::Pipeline,
        };
        let want = up_to(1 + self.random.below(4) as u32);
        let claimed = self.call(queue.claim(&group, &consumer, kind, want)).await;
        for delivery in claimed.and_then(Result::ok).unwrap_or_default() {
            let (text, receipt) = (text(&delivery.message), queue.receipt(&delivery).to_string());
            self.happened(("handed out", &text, receipt));
            self.model.handed_out(&text);
            self.counts.delivered += 1;
            self.held.push(delivery);
        }
    }

    pub async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (queue, group) = self.queue();
        let delivery = self
            .held
            .swap_remove(self.random.below(self.held.len() as u64) as usize);
        let text = text(&delivery.message);
        let verdict = match self.random.below(8) {
            0..5 => SettleAction::Ack,
            5 => nack_in(Duration::ZERO),
            6 => SettleAction::Reject { reason: None },
            _ => SettleAction::Extend { visibility: None },
        };
        let receipt = queue.receipt(&delivery);
        let settled = self
            .call(queue.settle(&group, vec![(receipt, verdict.clone())], true))
            .await;
        let told = match &settled {
            // Another consumer has it by now, or it was settled.
            Some(Ok(settled)) if settled.settled == 0 => Told::Refused,
            settled => told(settled),
        };
        self.happened(("settled", &text, &verdict, told));
        if told == Told::Done {
            self.note_stored();
        }
        self.counts.settled += u64::from(told == Told::Done);
        match verdict {
            SettleAction::Ack => self.model.acked(&text, told),
            SettleAction::Reject { .. } => self.model.rejected(&text, told),
            SettleAction::Nack { .. } | SettleAction::Extend { .. } => {}
        }
    }

    /// One of two readers of the stream, which alternate as they time out.
    pub async fn read_on(&mut self) {
        let (queue, group) = self.stream();
        let reader = format!("r{}", self.random.below(2));
        let want = up_to(1 + self.random.below(6) as u32);
        let read = self.call(queue.claim(&group, &reader, MemberKind::Http, want)).await;
        self.happened(("read", &reader, read.as_ref().map(|read| read.as_ref().map(Vec::len))));
        for delivery in read.and_then(Result::ok).unwrap_or_default() {
            let (text, place) = (text(&delivery.message), (delivery.partition, delivery.message.offset));
            self.happened(("is read", &text, place));
            self.model.read(&text, place);
            self.counts.read += 1;
            self.read.push(delivery);
        }
    }

    pub async fn settle_read(&mut self) {
        if self.read.is_empty() {
            return;
        }
        let (queue, group) = self.stream();
        // Usually the oldest that it has, so that there is something to commit.
        let at = match self.random.one_in(4) {
            true => self.random.below(self.read.len() as u64) as usize,
            false => 0,
        };
        let delivery = self.read.remove(at);
        let text = text(&delivery.message);
        let verdict = if self.random.one_in(8) {
            nack_in(Duration::ZERO)
        } else {
            SettleAction::Ack
        };
        let receipt = queue.receipt(&delivery);
        let settled = self
            .call(queue.settle(&group, vec![(receipt, verdict.clone())], true))
            .await;
        let told = match &settled {
            Some(Ok(settled)) if settled.settled == 0 => Told::Refused,
            settled => told(settled),
        };
        self.happened(("settled what was read", &text, &verdict, told));
        if verdict == SettleAction::Ack {
            self.model.read_acked(&text, told);
        }
        if told == Told::Done {
            self.note_committed(delivery.partition);
        }
    }

    /// What a call has waited for in a partition is stored.
    fn note_committed(&mut self, partition: u32) {
        let (_, group) = self.stream();
        let committed = group.stats().positions.get(partition as usize).copied().unwrap();
        self.happened(("committed", partition, committed));
        self.counts.committed += 1;
        self.model.committed(partition, committed);
    }

    /// Like a reader that tracks offsets: everything that it has of one partition.
    pub async fn commit(&mut self) {
        let Some(newest) = self.read.last() else { return };
        let (queue, group) = self.stream();
        let (partition, offset) = (newest.partition, newest.message.offset + 1);
        let is_newest = offset > group.in_flight(partition).start && offset <= group.in_flight(partition).end;
        if !is_newest {
            return;
        }
        let answer = self.call(queue.commit(&group, partition, offset)).await;
        let told = told(&answer);
        self.happened(("commits", partition, offset, told));
        match told {
            Told::Done => self.note_committed(partition),
            // Up to this offset it may be committed.
            _ => self.model.stream_skipped(told),
        }
    }

    pub async fn seek(&mut self) {
        let (queue, group) = self.queue();
        let to = self.somewhere();
        let told = told(&self.call(queue.seek(&group, to)).await);
        self.happened(("seek", to, told));
        match to {
            SeekTo::Latest => self.model.dropped(told),
            SeekTo::Earliest => self.model.set_back(told),
            // Back in one partition, forward in the other.
            _ => {
                self.model.dropped(partly(told));
                self.model.set_back(told);
            }
        }
    }

    pub async fn seek_stream(&mut self) {
        let (queue, group) = self.stream();
        let to = self.somewhere();
        let told = told(&self.call(queue.seek(&group, to)).await);
        self.happened(("seek of the stream", to, told));
        match to {
            SeekTo::Latest => self.model.stream_skipped(told),
            SeekTo::Earliest => self.model.stream_set_back(told),
            _ => {
                self.model.stream_skipped(partly(told));
                self.model.stream_set_back(told);
            }
        }
    }

    fn somewhere(&mut self) -> SeekTo {
        match self.random.below(4) {
            0 => SeekTo::Latest,
            1 => SeekTo::Earliest,
            2 => SeekTo::Time(self.machine().wall() - self.random.below(3600) as Micros * SECOND),
            _ => SeekTo::Offset {
                partition: None,
                offset: self.random.below(20),
            },
        }
    }

    pub async fn purge(&mut self) {
        let (queue, _) = self.queue();
        let told = told(&self.call(queue.purge()).await);
        self.happened(("purge", told));
        self.model.dropped(told);
        self.model.stream_skipped(told);
    }

    pub async fn resend(&mut self) {
        let (queue, _) = self.queue();
        let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
        let resent = self.call(queue.resend(&all, ResendTo::Source, None)).await;
        self.happened(("sent again", resent));
        self.model.resent();
    }

    pub async fn purge_letters(&mut self) {
        let (queue, _) = self.queue();
        let seen: Vec<String> = letters(&queue).await.iter().map(text).collect();
        let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
        let told = told(&self.call(queue.purge_dead(&all)).await);
        self.happened(("letters purged", &seen, told));
        self.model.letters_purged(&seen, told);
    }

    /// A disconnected client repeats the call until it succeeds.
    pub async fn make_queue_again(&mut self) {
        self.happened("queue made again");
        let queues = self.machine().place.queues.clone();
        // Messages that expire meanwhile become dead letters, so those are removed last.
        for name in ["q", "dlq.q"] {
            drop(self.call(queues.remove(name, true)).await);
            Self::others_have_their_turn().await;
            match queues.remove(name, true).await {
                Ok(()) | Err(QueueError::QueueNotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.model.made_again();
        self.ids = super::ids::Ids::new(super::world::DEDUP_WINDOW);
        let rules = self.rules;
        drop(self.call(queues.create("q", queue_settings(rules))).await);
        Self::others_have_their_turn().await;
        match queues.create("q", queue_settings(rules)).await {
            Ok(_) | Err(QueueError::QueueExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.counts.deleted += 1;
    }

    pub async fn make_group_again(&mut self) {
        self.happened("group made again");
        let (queue, _) = self.queue();
        let queues = self.machine().place.queues.clone();
        drop(self.call(queues.remove_group(&queue, "g")).await);
        Self::others_have_their_turn().await;
        match queues.remove_group(&queue, "g").await {
            Ok(()) | Err(QueueError::GroupNotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.model.group_made_again();
        let group = || GroupSettings::new("g", GroupMode::Work);
        drop(self.call(queues.create_group(&queue, group())).await);
        Self::others_have_their_turn().await;
        match queues.create_group(&queue, group()).await {
            Ok(_) | Err(QueueError::GroupExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn pause(&mut self) {
        let (queue, group) = self.queue();
        let queues = self.machine().place.queues.clone();
        let paused = self.random.one_in(3);
        let what = match self.random.below(3) {
            0 => Pause::Produce,
            1 => Pause::Group(group.clone()),
            _ => Pause::Both,
        };
        let answer = self.call(queues.pause(&queue, what, paused)).await;
        if answer.is_none() || self.random.one_in(2) {
            Self::others_have_their_turn().await;
            for what in [Pause::Both, Pause::Group(group)] {
                queues.pause(&queue, what, false).await.unwrap();
            }
        }
    }

    pub async fn configure(&mut self) {
        let queues = self.machine().place.queues.clone();
        let (queue, _) = self.queue();
        let settings = QueueSettings {
            max_pending: 100 + self.random.below(1000) as u32,
            ..(*queue.settings()).clone()
        };
        drop(self.call(queues.configure("q", settings)).await);
    }

    pub async fn look(&mut self) {
        let (queue, _) = self.queue();
        drop(self.call(queue.browse(None, None, 100)).await);
        drop(self.call(queue.dead_page(&DeadLetterFilter::default(), None, 10)).await);
    }
}

/// It was done, in part.
fn partly(told: Told) -> Told {
    if told == Told::Done { Told::Unknown } else { told }
}
