//! Calls interrupted by other events: a claim sleeps only if something useful will wake it, a woken claim that may not
//! take the message wakes the next one, and a change of settings applies one of the two rules to each message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{begin, keyed, log_options, queues_in, reopened, until, up_to, waiting_for, work};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, Micros};
use thalweg_queue::members::MemberKind;
use thalweg_queue::message::TOPIC;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueOrdering as Order, QueueSettings, RetentionMode};
use thalweg_queue::{ClaimRequest, Clock, Group, NewMessage, Queue, Queues, SeekTo, SystemClock};

/// A call that waits this long was never woken.
const FOR_EVER: Duration = Duration::from_secs(3600);
const GIVEN_UP: Duration = Duration::from_secs(20);

fn settings() -> QueueSettings {
    QueueSettings {
        ordering: Order::None,
        max_in_flight: 1,
        durability: Some(Durability::Memory),
        ..work(1)
    }
}

type Then = Box<dyn FnOnce() + Send>;

/// Runs something in the middle of a call: when the time is read once more than this often.
#[derive(Default)]
struct Interrupting(Mutex<Option<(u32, Then)>>);

impl Clock for Interrupting {
    fn now(&self) -> Micros {
        let mut next = self.0.lock().unwrap();
        let then = match next.take() {
            Some((0, then)) => Some(then),
            Some((more, then)) => {
                *next = Some((more - 1, then));
                None
            }
            None => None,
        };
        drop(next);
        if let Some(then) = then {
            then();
        }
        SystemClock.now()
    }
}

async fn interrupted() -> (tempfile::TempDir, Arc<EmbeddedLog>, Arc<Interrupting>, Queues) {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(FolderDisk::open(folder.path()).unwrap());
    let log = Arc::new(EmbeddedLog::open(disk, 7, &log_options(4 << 20, 1 << 20)).unwrap());
    let clock = Arc::new(Interrupting::default());
    let queues = queues_in(log.clone(), clock.clone(), u64::MAX).await;
    (folder, log, clock, queues)
}

#[tokio::test]
async fn a_claim_whose_consumer_settles_while_it_begins_to_wait_gets_the_next_message() {
    for moment in 0..6 {
        let (_folder, log, clock, queues) = interrupted().await;
        let queue = queues.create("q", settings()).await.unwrap();
        let group = queue.group("g").unwrap();
        queue.produce(NewMessage::of("1")).await.unwrap();
        let want = waiting_for(FOR_EVER);
        let first = queue.claim(&group, "c", MemberKind::Pipeline, want).await.unwrap();
        // So that nothing else wakes it.
        until("the rebalance is over", async || group.stats().generation > 0).await;
        let (settling, of) = (queue.clone(), group.clone());
        let ack: Then = Box::new(move || settling.ack(&of, 0, first[0].message.offset, 1).unwrap());
        let waiting = async {
            *clock.0.lock().unwrap() = Some((moment, ack));
            queue.claim(&group, "c", MemberKind::Pipeline, want).await
        };
        let producing = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let not_yet = clock.0.lock().unwrap().take();
            if let Some((_, ack)) = not_yet {
                ack();
            }
            queue.produce(NewMessage::of("2")).await.unwrap();
        };
        let both = async { tokio::join!(waiting, producing).0 };
        let second = tokio::time::timeout(GIVEN_UP, both).await;
        let second = second.unwrap_or_else(|_| panic!("asked for the time {moment} times before"));
        assert_eq!(second.unwrap().len(), 1);
        queues.close().await;
        log.close();
    }
}

fn waiting_for_one(queue: &Arc<Queue>, group: &Arc<Group>, name: &'static str) -> tokio::task::JoinHandle<usize> {
    let (queue, group) = (queue.clone(), group.clone());
    tokio::spawn(async move {
        let taken = queue
            .claim(&group, name, MemberKind::Pipeline, waiting_for(FOR_EVER))
            .await;
        taken.unwrap().len()
    })
}

#[tokio::test]
async fn a_claim_that_is_called_but_may_take_no_more_calls_the_next() {
    let (_folder, place, queue) = begin(settings()).await;
    let group = queue.group("g").unwrap();
    let mut tasks = Vec::new();
    for name in ["c", "c", "d"] {
        tasks.push(waiting_for_one(&queue, &group, name));
    }
    // Until the rebalance is done and all of them wait.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        place.later(Duration::from_secs(1));
        queue.look_after_now().await;
    }
    for message in ["1", "2"] {
        tokio::time::sleep(Duration::from_millis(20)).await;
        queue.produce(NewMessage::of(message)).await.unwrap();
    }
    let idle = tasks.pop().unwrap();
    let taken = tokio::time::timeout(GIVEN_UP, idle).await;
    assert_eq!(taken.expect("the idle consumer is called").unwrap(), 1);
    place.stop().await;
}

fn of_topic(topic: &str) -> NewMessage {
    NewMessage {
        properties: [(TOPIC, topic)].into_iter().collect(),
        ..NewMessage::of("1")
    }
}

/// Everything is on one thread, so a claim that scans to the end blocks all others.
#[tokio::test]
async fn a_claim_that_passes_over_very_many_messages_lets_a_producer_in_between_and_gets_what_it_stores() {
    for mode in [GroupMode::Work, GroupMode::Stream] {
        let mut group = GroupSettings::new("g", mode);
        group.filter = Some("wanted/#".into());
        let (_folder, place, queue) = begin(QueueSettings {
            groups: vec![group],
            max_in_flight: 10,
            ..settings()
        })
        .await;
        let group = queue.group("g").unwrap();
        for round in 0..2 {
            for _ in 0..20_000 {
                queue.produce(of_topic("other/1")).await.unwrap();
            }
            let order = Mutex::new(Vec::new());
            let claiming = async {
                let got = queue.claim(&group, "c", MemberKind::Pipeline, up_to(10)).await;
                order.lock().unwrap().push("claimed");
                got.unwrap()
            };
            let producing = async {
                queue.produce(of_topic("wanted/1")).await.unwrap();
                order.lock().unwrap().push("stored");
            };
            let (got, ()) = tokio::join!(claiming, producing);
            assert_eq!(*order.lock().unwrap(), ["stored", "claimed"], "{mode:?}, round {round}");
            assert_eq!(got.len(), 1, "{mode:?}, round {round}");
            let settled = queue.ack(&group, 0, got[0].message.offset, 1);
            assert!(settled.is_ok() && group.backlog() == 0, "{mode:?}, {settled:?}");
        }
        // A claim that does not wait gets the message after them too.
        for topic in ["other/1"].repeat(20_000).into_iter().chain(["wanted/1"]) {
            queue.produce(of_topic(topic)).await.unwrap();
        }
        let (mut asking, mut out) = (queue.ask(&group, "c", MemberKind::Pipeline).unwrap(), Vec::new());
        asking.claim_now(ClaimRequest::default(), &mut out).unwrap();
        assert_eq!(out.len(), 1, "{mode:?}");
        place.kill();
    }
}

#[tokio::test]
async fn what_comes_while_the_order_becomes_stricter_is_in_that_order() {
    let keyed = |text: &'static str| keyed("k", text);
    let want = up_to(10);
    let mut changed = 0;
    for moment in 0..6 {
        let (_folder, log, clock, queues) = interrupted().await;
        let mut settings = settings();
        settings.max_in_flight = 10;
        let queue = queues.create("q", settings.clone()).await.unwrap();
        let group = queue.group("g").unwrap();
        // The tasks of the new queue read the clock, too, until they sleep, which nothing shows.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let taken = Arc::new(Mutex::new(0));
        let mut asking = queue.ask(&group, "early", MemberKind::Pipeline).unwrap();
        let then: Then = Box::new({
            let (queue, taken) = (queue.clone(), taken.clone());
            move || {
                if queue.try_produce(keyed("1")).is_ok() {
                    let mut out = Vec::new();
                    asking.claim_now(want, &mut out).unwrap();
                    *taken.lock().unwrap() += out.len();
                }
            }
        });
        *clock.0.lock().unwrap() = Some((moment, then));
        settings.ordering = Order::Partition;
        let configured = queues.configure("q", settings).await;
        // The clock may not have been read that often; what is left reads it once more when it is dropped.
        let left = clock.0.lock().unwrap().take();
        drop(left);
        if configured.is_ok() {
            changed += 1;
            queue.produce(keyed("2")).await.unwrap();
            queue.produce(keyed("3")).await.unwrap();
            let late = queue.claim(&group, "late", MemberKind::Pipeline, want).await.unwrap();
            let in_hand = *taken.lock().unwrap() + late.len();
            assert!(
                in_hand <= 1,
                "{in_hand} of one key; asked for the time {moment} times before"
            );
        }
        queues.close().await;
        log.close();
    }
    assert!(changed > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_seeks_at_once_one_counts_in_all_partitions_also_after_a_crash() {
    let mut settings = work(4);
    settings.retention.mode = RetentionMode::Policy;
    let (folder, mut place, mut queue) = begin(settings).await;
    for n in 0..40 {
        queue.produce(keyed(format!("key {n}"), "x")).await.unwrap();
    }
    let backlog = |queue: &Queue| queue.group("g").unwrap().backlog();
    for round in 0..60 {
        let seeks = [SeekTo::Earliest, SeekTo::Latest].map(|to| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.seek(&queue.group("g").unwrap(), to).await })
        });
        for seek in seeks {
            seek.await.unwrap().unwrap();
        }
        let left = backlog(&queue);
        assert!([0, 40].contains(&left), "a part of both: {left}");
        if round % 10 == 0 {
            (place, queue) = reopened(place, folder.path()).await;
            assert_eq!(backlog(&queue), left);
        }
    }
    place.kill();
}
