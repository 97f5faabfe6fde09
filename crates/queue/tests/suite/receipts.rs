//! Receipts name one delivery for ever: after deletion, recreation, seeks, crashes and restarts, an old receipt settles
//! only what it was issued for. A generator mixes all of these; the model remembers every receipt. `THALWEG_SIM_SEEDS`
//! runs more histories, `THALWEG_SIM_SEED` others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Place, claim_http, claim_http_as, disk_of, files_of, log_options, nack_in, number, open_on, put, settings, up_to,
    work,
};
use thalweg_log::Durability;
use thalweg_log::disk::RamDisk;
use thalweg_log::disk::sim::Random;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings, RetentionMode};
use thalweg_queue::{Delivery, Queue, Receipt, SeekTo, SettleAction};

async fn start(disk: &Arc<RamDisk>, ahead: Duration) -> Place {
    open_on(disk.clone(), &log_options(1 << 20, 1 << 19), ahead, u64::MAX).await
}

/// The disk as `kill -9` leaves it: what was not written yet never is.
fn killed(place: Place, disk: &RamDisk) -> Arc<RamDisk> {
    let left = disk_of(&files_of(disk));
    place.kill();
    left
}

/// The code of the answer to one settlement, by the text of a receipt; `ok` if it is accepted.
async fn answer(queue: &Arc<Queue>, group: &str, receipt: &str, verdict: SettleAction) -> &'static str {
    let receipt: Receipt = receipt.parse().unwrap();
    assert_eq!(receipt.to_string().parse(), Ok(receipt.clone()));
    let group = queue.group(group).unwrap();
    let settled = queue.settle(&group, vec![(receipt, verdict)], true).await.unwrap();
    settled.failed.first().map_or("ok", |(_, error)| error.code())
}

fn text_of(queue: &Queue, delivery: &Delivery) -> String {
    queue.receipt(delivery).to_string()
}

async fn claim_one(queue: &Arc<Queue>, consumer: &str) -> String {
    text_of(queue, &claim_http_as(queue, "g", consumer, up_to(1)).await[0])
}

fn all_verdicts() -> [SettleAction; 4] {
    let reason = None;
    [
        SettleAction::Ack,
        nack_in(Duration::ZERO),
        SettleAction::Reject { reason },
        SettleAction::Extend { visibility: None },
    ]
}

/// The old receipt is rejected for every action, and the new one is accepted.
async fn only_the_new_one_counts(queue: &Arc<Queue>, old: &str, new: &str) {
    assert_ne!(old, new);
    for verdict in all_verdicts() {
        assert_eq!(answer(queue, "g", old, verdict).await, "gone", "{old}");
    }
    queue
        .ack_all(&queue.group("g").unwrap(), [old.parse().unwrap()].iter())
        .unwrap();
    queue
        .give_back(&queue.group("g").unwrap(), &[old.parse().unwrap()], true)
        .unwrap();
    assert_eq!(answer(queue, "g", new, SettleAction::Ack).await, "ok", "{new}");
}

#[tokio::test]
async fn a_queue_or_group_that_is_deleted_and_made_again_knows_no_receipts_of_before() {
    for durability in [Durability::Fsync, Durability::Memory] {
        let place = start(&Arc::new(RamDisk::new(64 << 20)), Duration::ZERO).await;
        let wanted = QueueSettings {
            durability: Some(durability),
            ..work(1)
        };
        let queue = place.queues.create("q", wanted.clone()).await.unwrap();
        put(&queue, &["a"]).await;
        let old = claim_one(&queue, "one").await;
        place.queues.remove("q", true).await.unwrap();
        let queue = place.queues.create("q", wanted).await.unwrap();
        assert_eq!(
            answer(&queue, "g", &old, SettleAction::Ack).await,
            "gone",
            "it is empty"
        );
        put(&queue, &["b"]).await;
        let group = queue.group("g").unwrap();
        let of_group = claim_one(&queue, "two").await;
        only_the_new_one_counts(&queue, &old, &of_group).await;

        put(&queue, &["c"]).await;
        let of_group = claim_one(&queue, "two").await;
        place.queues.remove_group(&queue, "g").await.unwrap();
        // A flow may still have a reference to the deleted group.
        let late = queue
            .settle(&group, vec![(of_group.parse().unwrap(), SettleAction::Ack)], true)
            .await
            .unwrap();
        assert_eq!(late.failed[0].1.code(), "gone");
        place
            .queues
            .create_group(&queue, GroupSettings::new("g", GroupMode::Work))
            .await
            .unwrap();
        let new = text_of(&queue, claim_http(&queue, "g", 10).await.last().unwrap());
        only_the_new_one_counts(&queue, &of_group, &new).await;
        place.stop().await;
    }
}

#[tokio::test]
async fn a_lease_that_a_crash_has_lost_is_not_taken_for_the_next_one() {
    let disk = Arc::new(RamDisk::new(64 << 20));
    let place = start(&disk, Duration::ZERO).await;
    let queue = place.queues.create("q", work(1)).await.unwrap();
    put(&queue, &["a", "b"]).await;
    let kept = claim_one(&queue, "one").await;
    // A durable produce stores this lease too.
    put(&queue, &["c"]).await;
    place.log.sync().await.unwrap();
    let lost = claim_one(&queue, "one").await;
    let disk = killed(place, &disk);
    let place = start(&disk, Duration::ZERO).await;
    let queue = place.queue();
    assert_eq!(
        answer(&queue, "g", &lost, SettleAction::Ack).await,
        "gone",
        "it is ready again"
    );
    let again = claim_one(&queue, "two").await;
    only_the_new_one_counts(&queue, &lost, &again).await;
    assert_eq!(
        answer(&queue, "g", &kept, SettleAction::Ack).await,
        "ok",
        "it was stored"
    );
    assert_eq!(
        answer(&queue, "g", &kept, SettleAction::Ack).await,
        "ok",
        "and may be repeated"
    );
    place.stop().await;
    let place = start(&disk, Duration::ZERO).await;
    assert_eq!(
        answer(&place.queue(), "g", &again, SettleAction::Ack).await,
        "ok",
        "also after a start"
    );
    assert_eq!(answer(&place.queue(), "g", &lost, SettleAction::Ack).await, "gone");
    place.stop().await;
}

#[tokio::test]
async fn an_ack_from_before_a_start_is_known_as_a_repetition_as_the_documentation_says() {
    const REMEMBERED: usize = 4096;
    let disk = Arc::new(RamDisk::new(64 << 20));
    let place = start(&disk, Duration::ZERO).await;
    let mut wanted = work(1);
    wanted.max_in_flight = 20_000;
    let queue = place.queues.create("q", wanted).await.unwrap();
    let count = 2 * REMEMBERED + 100;
    let messages = (0..count).map(|_| thalweg_queue::NewMessage::of("x")).collect();
    queue.produce_all(messages).await.unwrap();
    let receipts: Vec<String> = claim_http(&queue, "g", count as u32)
        .await
        .iter()
        .map(|delivery| text_of(&queue, delivery))
        .collect();
    assert_eq!(receipts.len(), count);
    let (before, after) = receipts.split_at(count / 2);
    for receipt in before {
        assert_eq!(answer(&queue, "g", receipt, SettleAction::Ack).await, "ok");
    }
    place.stop().await;
    let place = start(&disk, Duration::ZERO).await;
    let queue = place.queue();
    for receipt in after {
        assert_eq!(answer(&queue, "g", receipt, SettleAction::Ack).await, "ok");
    }
    for receipt in before {
        assert_eq!(
            answer(&queue, "g", receipt, SettleAction::Ack).await,
            "ok",
            "settled before the start"
        );
    }
    let (forgotten, last) = after.split_at(after.len() - REMEMBERED);
    for receipt in last {
        assert_eq!(
            answer(&queue, "g", receipt, SettleAction::Ack).await,
            "ok",
            "one of the last 4,096"
        );
    }
    for receipt in forgotten {
        assert_eq!(
            answer(&queue, "g", receipt, SettleAction::Ack).await,
            "gone",
            "there is nothing left to do"
        );
    }
    place.stop().await;
}

#[tokio::test]
async fn what_is_read_again_after_a_seek_has_receipts_of_its_own() {
    let disk = Arc::new(RamDisk::new(64 << 20));
    let place = start(&disk, Duration::ZERO).await;
    let wanted = settings(1, &[("g", GroupMode::Work), ("keeps", GroupMode::Work)]);
    let queue = place.queues.create("q", wanted).await.unwrap();
    put(&queue, &["a"]).await;
    let old = claim_one(&queue, "one").await;
    assert_eq!(answer(&queue, "g", &old, SettleAction::Ack).await, "ok");
    queue.seek(&queue.group("g").unwrap(), SeekTo::Earliest).await.unwrap();
    let new = claim_one(&queue, "two").await;
    only_the_new_one_counts(&queue, &old, &new).await;
    place.stop().await;
}

/// Leased messages are redelivered first after a seek back, so there may be leases after the position at which the
/// group reads on.
#[tokio::test]
async fn a_seek_to_where_the_group_is_or_beyond_is_one_back_for_what_was_handed_out_after_it() {
    // The first is read again, or passed over; the second was given back or acked.
    for (offset, is_acked) in [(0, false), (0, true), (1, false), (1, true)] {
        let place = start(&Arc::new(RamDisk::new(64 << 20)), Duration::ZERO).await;
        // Without an order both consumers may take everything, whatever the shares are meanwhile.
        let settings = thalweg_queue::settings::QueueSettings {
            ordering: thalweg_queue::settings::QueueOrdering::None,
            ..work(1)
        };
        let queue = place.queues.create("q", settings).await.unwrap();
        let group = queue.group("g").unwrap();
        put(&queue, &["a", "b"]).await;
        let a = claim_one(&queue, "one").await;
        let b = claim_one(&queue, "one").await;
        assert_eq!(answer(&queue, "g", &a, SettleAction::Ack).await, "ok");
        queue.seek(&group, SeekTo::Earliest).await.unwrap();
        let old = claim_one(&queue, "one").await;
        let number = |receipt: &str| receipt.parse::<Receipt>().unwrap().delivery;
        assert_eq!((number(&b), number(&old)), (1, 2));
        let verdict = if is_acked {
            SettleAction::Ack
        } else {
            nack_in(Duration::from_secs(60))
        };
        assert_eq!(answer(&queue, "g", &old, verdict).await, "ok");
        let to = SeekTo::Offset {
            partition: None,
            offset,
        };
        queue.seek(&group, to).await.unwrap();
        // Until it is delivered as often as before.
        let new = loop {
            let claimed = claim_http_as(&queue, "g", "two", up_to(2)).await;
            // It may be due a moment after the other one.
            let of_b = claimed.iter().find(|delivery| delivery.message.offset == 1);
            let receipt = of_b.map(|delivery| text_of(&queue, delivery));
            if let Some(receipt) = receipt.filter(|receipt| number(receipt) >= 2) {
                break receipt;
            }
            for delivery in &claimed {
                answer(&queue, "g", &text_of(&queue, delivery), nack_in(Duration::ZERO)).await;
            }
        };
        only_the_new_one_counts(&queue, &old, &new).await;
        place.stop().await;
    }
}

#[tokio::test]
async fn a_receipt_of_a_stream_counts_for_its_place_until_somebody_seeks() {
    let disk = Arc::new(RamDisk::new(64 << 20));
    let place = start(&disk, Duration::ZERO).await;
    let mut kept = settings(1, &[("g", GroupMode::Stream)]);
    kept.retention.mode = RetentionMode::Policy;
    let queue = place.queues.create("q", kept).await.unwrap();
    put(&queue, &["a", "b", "c"]).await;
    let read = claim_http(&queue, "g", 3).await;
    let [a, b, c] = [0, 1, 2].map(|n| text_of(&queue, &read[n]));
    assert_eq!(answer(&queue, "g", &a, SettleAction::Ack).await, "ok");
    place.stop().await;
    let place = start(&disk, Duration::ZERO).await;
    let queue = place.queue();
    let again = claim_http(&queue, "g", 3).await;
    assert_eq!(again.len(), 2);
    assert_eq!(
        answer(&queue, "g", &b, SettleAction::Reject { reason: None }).await,
        "gone",
        "another reads"
    );
    assert_eq!(answer(&queue, "g", &b, SettleAction::Ack).await, "ok");
    let to = SeekTo::Offset {
        partition: None,
        offset: 1,
    };
    queue.seek(&queue.group("g").unwrap(), to).await.unwrap();
    claim_http(&queue, "g", 3).await;
    for old in [&b, &c, &text_of(&queue, &again[1])] {
        assert_eq!(answer(&queue, "g", old, SettleAction::Ack).await, "gone");
    }
    place.stop().await;
}

#[tokio::test]
async fn receipts_of_earlier_versions_are_gone() {
    let place = start(&Arc::new(RamDisk::new(64 << 20)), Duration::ZERO).await;
    let queue = place.queues.create("q", work(1)).await.unwrap();
    put(&queue, &["a"]).await;
    let new = claim_one(&queue, "one").await;
    only_the_new_one_counts(&queue, "q:0:0:1", &new).await;
    place.stop().await;
}

/// What the model knows about a receipt.
#[derive(Clone, Debug)]
struct Given {
    /// Which of the queues and groups that had these names.
    queue: u64,
    group: u64,
    /// The text of the message, which no other has.
    message: String,
    /// The process in which it was acked. This process and the next must recognise a repeated ack.
    acked_in: Option<u64>,
    /// It was acked at some time. Beyond the promised time this may be forgotten.
    was_acked: bool,
}

#[derive(Default)]
struct Model {
    /// In the order of delivery.
    given: Vec<(String, Given)>,
    /// The last receipt for a message in a group, as indexes into `given`. After a crash it may be an earlier one,
    /// because the leases of the last block are lost.
    last: BTreeMap<(u64, u64, String), Vec<usize>>,
    incarnations: u64,
    /// The current queue `q` and its group `g`.
    queue: u64,
    group: u64,
    messages: u64,
    process: u64,
}

impl Model {
    fn handed_out(&mut self, receipt: String, message: String) {
        let known = self.given.iter().find(|(known, _)| *known == receipt);
        assert!(known.is_none(), "{receipt} was given twice: {known:?}");
        let (queue, group) = (self.queue, self.group);
        self.last
            .insert((queue, group, message.clone()), vec![self.given.len()]);
        let given = Given {
            queue,
            group,
            message: message.clone(),
            acked_in: None,
            was_acked: false,
        };
        self.given.push((receipt, given));
    }

    fn crashed(&mut self) {
        for (at, (_, given)) in self.given.iter_mut().enumerate() {
            given.acked_in = None;
            let key = (given.queue, given.group, given.message.clone());
            self.last.entry(key).or_default().push(at);
        }
    }

    /// A settlement with any receipt ever issued.
    fn settled(&mut self, at: usize, verdict: &SettleAction, code: &str) {
        let (receipt, given) = &self.given[at];
        let key = (given.queue, given.group, given.message.clone());
        let is_alive = (given.queue, given.group) == (self.queue, self.group);
        let is_last = self.last.get(&key).is_some_and(|last| last.contains(&at));
        match code {
            "ok" => assert!(
                is_alive && is_last,
                "{receipt} settled what it was not given for: {given:?}, but {verdict:?}, the last is {:?}",
                self.last.get(&key)
            ),
            "gone" => {}
            _ => assert!(is_alive, "{receipt} of what is deleted got {code}"),
        }
        if code == "ok" && *verdict == SettleAction::Ack {
            let process = self.process;
            let given = &mut self.given[at].1;
            if !std::mem::replace(&mut given.was_acked, true) {
                given.acked_in = Some(process);
            }
        } else if *verdict == SettleAction::Ack && is_alive && is_last {
            let is_known = given.acked_in.is_some_and(|process| process + 1 >= self.process);
            assert!(!is_known, "{receipt} was acked and now is {code}");
        }
    }
}

struct World {
    disk: Arc<RamDisk>,
    place: Place,
    model: Model,
    random: Random,
    ahead: Duration,
    durability: Durability,
}

impl World {
    fn settings(&mut self) -> QueueSettings {
        let mut settings = settings(
            1 + self.random.below(3) as u32,
            &[("g", GroupMode::Work), ("keeps", GroupMode::Work)],
        );
        settings.durability = Some(self.durability);
        settings.retry.max_retries = 3;
        settings
    }

    async fn make_queue(&mut self) {
        let settings = self.settings();
        self.place.queues.create("q", settings).await.unwrap();
        self.model.incarnations += 2;
        (self.model.queue, self.model.group) = (self.model.incarnations, self.model.incarnations + 1);
    }

    async fn restart(&mut self, clean: bool) {
        let (disk, ahead) = (self.disk.clone(), self.ahead);
        let fresh = start(&Arc::new(RamDisk::new(1 << 20)), Duration::ZERO).await;
        let place = std::mem::replace(&mut self.place, fresh);
        if clean {
            place.stop().await;
        } else {
            self.disk = killed(place, &disk);
        }
        let fresh = std::mem::replace(&mut self.place, start(&self.disk, ahead).await);
        fresh.kill();
        self.model.process += 1;
        if !clean {
            self.model.crashed();
        }
        if self.durability == Durability::Memory {
            // All are gone.
            self.model.last.clear();
        }
    }

    async fn step(&mut self) {
        let queue = self.place.queue();
        let group = queue.group("g").unwrap();
        match self.random.below(40) {
            0 => {
                self.place.queues.remove("q", true).await.unwrap();
                self.make_queue().await;
            }
            1 => {
                self.place.queues.remove_group(&queue, "g").await.unwrap();
                self.place
                    .queues
                    .create_group(&queue, GroupSettings::new("g", GroupMode::Work))
                    .await
                    .unwrap();
                self.model.incarnations += 2;
                self.model.group = self.model.incarnations;
            }
            2 => {
                queue.seek(&group, SeekTo::Earliest).await.unwrap();
                self.model.given.iter_mut().for_each(|(_, given)| given.acked_in = None);
            }
            3 => drop(queue.purge().await.unwrap()),
            4 => self.restart(true).await,
            5 | 6 => self.restart(false).await,
            7 => {
                self.ahead += Duration::from_secs(31);
                self.place.later(Duration::from_secs(31));
                queue.look_after_now().await;
            }
            8 => queue.leave(&group, "c0"),
            9..16 => {
                let text = format!("message {}", self.model.messages);
                self.model.messages += 1;
                put(&queue, &[&text]).await;
            }
            16..26 => {
                let consumer = format!("c{}", self.random.below(3));
                let want = up_to(1 + self.random.below(4) as u32);
                for delivery in claim_http_as(&queue, "g", &consumer, want).await {
                    let text = String::from_utf8(delivery.message.payload.to_vec()).unwrap();
                    self.model.handed_out(text_of(&queue, &delivery), text);
                }
            }
            _ if self.model.given.is_empty() => {}
            _ => {
                let count = self.model.given.len() as u64;
                // Mostly recent ones.
                let back = if self.random.one_in(2) { count } else { count.min(8) };
                let at = (count - 1 - self.random.below(back)) as usize;
                let verdict = all_verdicts()[self.random.below(4) as usize].clone();
                let receipt = self.model.given[at].0.clone();
                let code = answer(&queue, "g", &receipt, verdict.clone()).await;
                self.model.settled(at, &verdict, code);
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
#[tokio::test]
async fn whatever_happens_no_receipt_settles_what_it_was_not_given_for() {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 25));
    for seed in first..first + count {
        println!("seed {seed}");
        let disk = Arc::new(RamDisk::new(64 << 20));
        let mut world = World {
            place: start(&disk, Duration::ZERO).await,
            disk,
            model: Model::default(),
            random: Random::new(seed),
            ahead: Duration::ZERO,
            durability: if seed % 4 == 0 {
                Durability::Memory
            } else {
                Durability::Fsync
            },
        };
        world.make_queue().await;
        for _ in 0..200 {
            world.step().await;
        }
        world.place.kill();
    }
}
