//! A machine with a queue, what its clients know, and which step comes next.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::ids::Ids;
use super::model::{Kept, Model, Rules, Told};
use crate::support::{DAY, HOUR, Machine, SECOND, TODAY, log_options, settings};
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_log::{LogOptions, Micros};
use thalweg_queue::settings::{GroupMode, QueueSettings, RetentionMode};
use thalweg_queue::{Delivery, Group, Queue, QueueError};

pub const DISK_BYTES: u64 = 64 << 20;
/// A call that waits this long waits for ever.
const FOR_EVER: Duration = Duration::from_secs(60);
pub const CONSUMERS: u64 = 3;
pub const DEDUP_WINDOW: Micros = 60 * SECOND;
/// Dead letters expire after 30 days; the duration of stops counts too.
const PASSES_AT_MOST: Micros = 20 * DAY;

/// Events beside calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Clients disconnect before they have an answer.
    pub clients_leave: bool,
    /// The process is stopped or killed, the power fails, the clock is set.
    pub ends: bool,
    /// Whole files are damaged, and a start gives up their content.
    pub damage: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub delivered: u64,
    pub settled: u64,
    /// Reads and commits of the stream group.
    pub read: u64,
    pub committed: u64,
    /// Messages whose id was known.
    pub repeated: u64,
    /// Messages that had expired at the end.
    pub expired: u64,
    /// Calls whose client disconnected before the answer.
    pub left: u64,
    /// Processes that ended.
    pub ended: u64,
    pub jumps: u64,
    pub booted_in_1970: u64,
    pub damaged: u64,
    pub deleted: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.read += other.read;
        self.committed += other.committed;
        self.repeated += other.repeated;
        self.expired += other.expired;
        self.left += other.left;
        self.ended += other.ended;
        self.jumps += other.jumps;
        self.booted_in_1970 += other.booted_in_1970;
        self.damaged += other.damaged;
        self.deleted += other.deleted;
    }
}

pub struct World {
    pub events: Events,
    pub rules: Rules,
    pub disk: SimDisk,
    pub machine: Option<Machine>,
    pub model: Model,
    pub ids: Ids,
    pub random: Random,
    /// Unsettled deliveries of the consumers, and those of the reader.
    pub held: Vec<Delivery>,
    pub read: Vec<Delivery>,
    /// Expected log time, and its value when something was last durably stored.
    pub expected_now: Micros,
    pub stored_at: Micros,
    passed: Micros,
    pub counts: Counts,
    /// What has happened, for debugging a failure.
    history: Vec<String>,
}

impl Drop for World {
    #[expect(clippy::print_stdout, reason = "of a case that fails")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.history.iter().for_each(|line| println!("{line}"));
        }
    }
}

fn rules(random: &mut Random) -> Rules {
    Rules {
        kept: match random.below(4) {
            0 => Kept::For(HOUR),
            1 => Kept::Newest(20),
            _ => Kept::UntilSettled,
        },
        expired_are_letters: random.one_in(3),
    }
}

pub fn queue_settings(rules: Rules) -> QueueSettings {
    let mut settings = settings(2, &[("g", GroupMode::Work), ("s", GroupMode::Stream)]);
    settings.ttl = Duration::ZERO;
    settings.max_depth = 0;
    settings.retry.max_retries = 1_000_000;
    settings.retry.total_timeout = Duration::ZERO;
    settings.retry.initial_backoff = Duration::from_millis(10);
    settings.retry.max_backoff = Duration::from_secs(1);
    settings.group_expiry = Duration::ZERO;
    settings.dedup_window = Duration::from_micros(DEDUP_WINDOW as u64);
    settings.dlq.on_expire = rules.expired_are_letters;
    let retention = &mut settings.retention;
    match rules.kept {
        Kept::UntilSettled => {}
        Kept::For(age) => {
            retention.mode = RetentionMode::Policy;
            retention.max_age = Duration::from_micros(age as u64);
        }
        Kept::Newest(messages) => {
            retention.mode = RetentionMode::Policy;
            retention.max_messages = messages;
            retention.protect_streams = true;
        }
    }
    settings
}

pub fn options() -> LogOptions {
    log_options(1 << 20, 1 << 19)
}

/// The outcome of a call by its answer. Some errors mean that nothing has happened.
pub fn told<T>(answer: &Option<thalweg_queue::Result<T>>) -> Told {
    match answer {
        Some(Ok(_)) => Told::Done,
        Some(Err(QueueError::Paused { .. } | QueueError::QueueNotFound { .. } | QueueError::GroupNotFound { .. })) => {
            Told::Refused
        }
        Some(Err(_)) | None => Told::Unknown,
    }
}

impl World {
    pub async fn new(seed: u64, events: Events) -> World {
        let disk = SimDisk::new(seed, DISK_BYTES);
        let mut random = Random::new(seed);
        let rules = rules(&mut random);
        let machine = Machine::boot_on(Arc::new(disk.clone()), options(), TODAY)
            .await
            .unwrap();
        machine.queue(queue_settings(rules)).await;
        let mut world = World {
            events,
            rules,
            disk,
            expected_now: machine.now(),
            stored_at: machine.now(),
            machine: Some(machine),
            model: Model::new(rules),
            ids: Ids::new(DEDUP_WINDOW),
            random,
            held: Vec::new(),
            read: Vec::new(),
            passed: 0,
            counts: Counts::default(),
            history: Vec::new(),
        };
        world.happened(rules);
        world.see_the_time();
        world
    }

    pub fn happened(&mut self, what: impl std::fmt::Debug) {
        self.history.push(format!("{what:?}"));
    }

    pub fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap()
    }

    /// The work group and its queue.
    pub fn queue(&self) -> (Arc<Queue>, Arc<Group>) {
        self.queue_and("g")
    }

    /// The stream group and its queue.
    pub fn stream(&self) -> (Arc<Queue>, Arc<Group>) {
        self.queue_and("s")
    }

    fn queue_and(&self, group: &str) -> (Arc<Queue>, Arc<Group>) {
        let queue = self.machine().place.queue();
        let group = queue.group(group).unwrap();
        (queue, group)
    }

    /// Log time is the time that has passed, whatever the wall clock shows.
    pub fn see_the_time(&mut self) {
        let (now, wall) = (self.machine().now(), self.machine().wall());
        assert_eq!(
            now, self.expected_now,
            "time went on by something else than what has passed"
        );
        self.model.time_is(now, wall);
    }

    /// Something was stored that survives a power failure.
    pub fn note_stored(&mut self) {
        self.stored_at = self.expected_now;
    }

    /// The answer of a call; `None` if its client disconnected before, after a random number of polls.
    pub async fn call<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let leaves = self.events.clients_leave && self.random.one_in(2);
        let mut polls = if leaves { self.random.below(7) } else { u64::MAX };
        let mut call = Box::pin(call);
        let answer = poll_fn(|context| {
            if polls == 0 {
                return Poll::Ready(None);
            }
            polls -= 1;
            match call.as_mut().poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending if polls == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        let answer = tokio::time::timeout(FOR_EVER, answer).await.expect("a call hangs");
        drop(call);
        self.counts.left += u64::from(answer.is_none());
        answer
    }

    /// By then, calls that continue without their client are in the wait queue.
    pub async fn others_have_their_turn() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn step(&mut self) {
        match self.random.below(96) {
            0..20 => self.produce().await,
            20..34 => self.claim().await,
            34..48 => self.settle().await,
            48..56 => self.read_on().await,
            56..62 => self.settle_read().await,
            62 => self.commit().await,
            63..65 => self.seek_stream().await,
            65..67 => self.seek().await,
            67 => self.purge().await,
            68 => self.resend().await,
            69 => self.purge_letters().await,
            70 => self.make_queue_again().await,
            71 => self.make_group_again().await,
            72..74 => self.pause().await,
            74 => self.configure().await,
            75 => self.look().await,
            76..83 => self.time_goes_by().await,
            83..87 if self.events.ends => self.clock_is_set().await,
            87..90 if self.events.ends => self.end_process(true).await,
            90..93 if self.events.ends => self.end_process(false).await,
            93..95 if self.events.ends => self.power_goes().await,
            95 if self.events.damage && self.random.one_in(3) => self.damage().await,
            _ => {}
        }
    }

    async fn time_goes_by(&mut self) {
        let seconds = match self.random.below(10) {
            0 => 2 * 3600,
            1 => 600,
            2 | 3 => 61,
            4 | 5 => 31,
            _ => 1,
        };
        self.happened(("seconds go by", seconds));
        self.pass(seconds * SECOND);
        let (queue, _) = self.queue();
        self.call(queue.look_after_now()).await;
    }

    /// Time passes for the machine and for its users.
    pub fn pass(&mut self, time: Micros) {
        if self.passed + time < PASSES_AT_MOST {
            self.passed += time;
            self.machine().time.pass(time);
            self.expected_now += time;
            self.see_the_time();
        }
    }

    /// Sets the wall clock; the process notices it within a second.
    async fn clock_is_set(&mut self) {
        let wall = self.machine().wall();
        let by = match self.random.below(8) {
            0 => 8 * DAY,
            1 => -8 * DAY,
            2 => -HOUR,
            3 => 30 * SECOND,
            // Too little to be noticed.
            4 => SECOND / 2 - self.random.below(SECOND as u64) as Micros,
            5 => 30 * SECOND - wall,
            _ => TODAY + self.random.below(400) as Micros * DAY - wall,
        };
        self.happened(("the clock is set by", by));
        self.counts.jumps += 1;
        let (queue, _) = self.queue();
        let machine = self.machine();
        machine.time.set(by);
        machine.place.clock.look(machine.place.log.as_ref()).await.unwrap();
        if by.abs() >= SECOND {
            self.note_stored();
        }
        self.see_the_time();
        self.call(queue.look_after_now()).await;
    }
}
