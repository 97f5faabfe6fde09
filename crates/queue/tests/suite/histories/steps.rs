//! What happens in a history, and how it ends.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::model::{Model, Told};
use crate::support::{Place, files_of, letters, log_options, nack_in, open_on, start_skipping, text, up_to, work};
use thalweg_log::disk::Disk;
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
use thalweg_queue::{
    DeadFilter, DeadSelect, Delivery, Group, NewMessage, Pause, Queue, QueueError, ResendTo, SeekTo, Verdict,
};

const DISK_BYTES: u64 = 64 << 20;
/// Whoever waits so long waits for ever.
const FOR_EVER: Duration = Duration::from_secs(60);
const CONSUMERS: u64 = 3;
const DAY: i64 = 86_400;

/// What happens beside calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Clients leave before they have an answer.
    pub clients_leave: bool,
    /// The process is stopped or killed, the power goes, the clock jumps.
    pub ends: bool,
    /// Whole files are damaged, and a start gives up what was in them.
    pub damage: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub delivered: u64,
    pub settled: u64,
    /// Calls whose client left before the answer.
    pub left: u64,
    /// Processes.
    pub ended: u64,
    pub damaged: u64,
    pub deleted: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.left += other.left;
        self.ended += other.ended;
        self.damaged += other.damaged;
        self.deleted += other.deleted;
    }
}

pub struct World {
    events: Events,
    disk: SimDisk,
    place: Option<Place>,
    ahead: i64,
    model: Model,
    random: Random,
    /// What consumers have and have not settled.
    held: Vec<Delivery>,
    counts: Counts,
    /// What has happened, for whoever has to find out why something is wrong.
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

fn queue_settings() -> QueueSettings {
    let mut settings = work(2);
    settings.ttl = Duration::ZERO;
    settings.max_depth = 0;
    settings.retry.max_retries = 1_000_000;
    settings.retry.total_timeout = Duration::ZERO;
    settings.retry.initial_backoff = Duration::from_millis(10);
    settings.retry.max_backoff = Duration::from_secs(1);
    settings.group_expiry = Duration::ZERO;
    settings
}

async fn start(disk: &SimDisk, ahead: i64) -> Place {
    let place = open_on(
        Arc::new(disk.clone()),
        &log_options(1 << 20, 1 << 19),
        Duration::ZERO,
        u64::MAX,
    )
    .await;
    place.clock.jump(ahead);
    place
}

/// What a call came to by its answer. Some errors say that nothing has happened.
fn told<T>(answer: &Option<thalweg_queue::Result<T>>) -> Told {
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
        let place = start(&disk, 0).await;
        place.queues.create("q", queue_settings()).await.unwrap();
        World {
            events,
            disk,
            place: Some(place),
            ahead: 0,
            model: Model::default(),
            random: Random::new(seed),
            held: Vec::new(),
            counts: Counts::default(),
            history: Vec::new(),
        }
    }

    fn happened(&mut self, what: impl std::fmt::Debug) {
        self.history.push(format!("{what:?}"));
    }

    fn place(&self) -> &Place {
        self.place.as_ref().unwrap()
    }

    fn queue(&self) -> (Arc<Queue>, Arc<Group>) {
        let queue = self.place().queue();
        let group = queue.group("g").unwrap();
        (queue, group)
    }

    /// The answer of a call; `None` if its client has left before, after any number of awaits.
    async fn call<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
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

    /// What was begun and goes on without its client stands in line by then.
    async fn others_have_their_turn() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    pub async fn step(&mut self) {
        match self.random.below(64) {
            0..18 => self.produce().await,
            18..30 => self.claim().await,
            30..44 => self.settle().await,
            44..46 => self.seek().await,
            46 => self.purge().await,
            47 => self.resend().await,
            48 => self.purge_letters().await,
            49 => self.make_queue_again().await,
            50 => self.make_group_again().await,
            51..53 => self.pause().await,
            53 => self.configure().await,
            54 => self.look().await,
            55..58 => self.time_goes_by().await,
            58..60 if self.events.ends => self.end_process(true).await,
            60..62 if self.events.ends => self.end_process(false).await,
            62 if self.events.ends => self.power_goes().await,
            63 if self.events.damage && self.random.one_in(3) => self.damage().await,
            _ => {}
        }
    }

    async fn produce(&mut self) {
        let (queue, _) = self.queue();
        let texts: Vec<String> = (0..1 + self.random.below(3)).map(|_| self.model.new_text()).collect();
        let messages: Vec<NewMessage> = texts.iter().map(|text| NewMessage::of(text.clone())).collect();
        let told = match <[NewMessage; 1]>::try_from(messages) {
            Ok([one]) => told(&self.call(queue.produce(one)).await),
            Err(messages) => told(&self.call(queue.produce_all(messages)).await),
        };
        self.happened(("produced", &texts, told));
        texts.into_iter().for_each(|text| self.model.produced(text, told));
    }

    async fn claim(&mut self) {
        let (queue, group) = self.queue();
        let consumer = format!("c{}", self.random.below(CONSUMERS));
        let kind = match self.random.one_in(2) {
            true => MemberKind::Http,
            false => MemberKind::Pipeline,
        };
        let want = up_to(1 + self.random.below(4) as u32);
        let claimed = self.call(queue.claim(&group, &consumer, kind, want)).await;
        for delivery in claimed.and_then(Result::ok).unwrap_or_default() {
            self.happened((
                "handed out",
                text(&delivery.message),
                queue.receipt(&delivery).to_string(),
            ));
            self.model.handed_out(&text(&delivery.message));
            self.counts.delivered += 1;
            self.held.push(delivery);
        }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (queue, group) = self.queue();
        let delivery = self
            .held
            .swap_remove(self.random.below(self.held.len() as u64) as usize);
        let text = text(&delivery.message);
        let verdict = match self.random.below(8) {
            0..5 => Verdict::Ack,
            5 => nack_in(Duration::ZERO),
            6 => Verdict::Reject { reason: None },
            _ => Verdict::Extend { visibility: None },
        };
        let receipt = queue.receipt(&delivery);
        let settled = self
            .call(queue.settle(&group, vec![(receipt, verdict.clone())], true))
            .await;
        let told = match &settled {
            // Somebody else has it by now, or it was settled.
            Some(Ok(settled)) if settled.settled == 0 => Told::Refused,
            settled => told(settled),
        };
        self.happened(("settled", &text, &verdict, told));
        self.counts.settled += u64::from(told == Told::Done);
        match verdict {
            Verdict::Ack => self.model.acked(&text, told),
            Verdict::Reject { .. } => self.model.rejected(&text, told),
            Verdict::Nack { .. } | Verdict::Extend { .. } => {}
        }
    }

    async fn seek(&mut self) {
        let (queue, group) = self.queue();
        let to = match self.random.below(3) {
            0 => SeekTo::Latest,
            1 => SeekTo::Earliest,
            _ => SeekTo::Offset {
                partition: None,
                offset: self.random.below(20),
            },
        };
        let told = told(&self.call(queue.seek(&group, to)).await);
        self.happened(("seek", to, told));
        match to {
            SeekTo::Latest => self.model.purged(told),
            SeekTo::Earliest => self.model.set_back(told),
            // Back in one partition, forward in the other.
            _ => {
                self.model.purged(if told == Told::Done { Told::Unknown } else { told });
                self.model.set_back(told);
            }
        }
    }

    async fn purge(&mut self) {
        let (queue, _) = self.queue();
        let told = told(&self.call(queue.purge()).await);
        self.happened(("purge", told));
        self.model.purged(told);
    }

    async fn resend(&mut self) {
        let (queue, _) = self.queue();
        let all = DeadSelect::Filter(DeadFilter::default());
        let resent = self.call(queue.resend(&all, ResendTo::Source, None)).await;
        self.happened(("sent again", resent));
    }

    async fn purge_letters(&mut self) {
        let (queue, _) = self.queue();
        let seen: Vec<String> = letters(&queue).await.iter().map(text).collect();
        let all = DeadSelect::Filter(DeadFilter::default());
        let told = told(&self.call(queue.purge_dead(&all)).await);
        self.happened(("letters purged", &seen, told));
        self.model.letters_purged(&seen, told);
    }

    /// Whoever leaves asks again, until it is so.
    async fn make_queue_again(&mut self) {
        self.happened("queue made again");
        let queues = self.place().queues.clone();
        for name in ["dlq.q", "q"] {
            drop(self.call(queues.remove(name, true)).await);
            Self::others_have_their_turn().await;
            match queues.remove(name, true).await {
                Ok(()) | Err(QueueError::QueueNotFound { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.model.made_again();
        drop(self.call(queues.create("q", queue_settings())).await);
        Self::others_have_their_turn().await;
        match queues.create("q", queue_settings()).await {
            Ok(_) | Err(QueueError::QueueExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.counts.deleted += 1;
    }

    async fn make_group_again(&mut self) {
        self.happened("group made again");
        let (queue, _) = self.queue();
        let queues = self.place().queues.clone();
        drop(self.call(queues.remove_group(&queue, "g")).await);
        Self::others_have_their_turn().await;
        match queues.remove_group(&queue, "g").await {
            Ok(()) | Err(QueueError::GroupNotFound { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.model.set_back(Told::Done);
        let group = || GroupSettings::new("g", GroupMode::Work);
        drop(self.call(queues.create_group(&queue, group())).await);
        Self::others_have_their_turn().await;
        match queues.create_group(&queue, group()).await {
            Ok(_) | Err(QueueError::GroupExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn pause(&mut self) {
        let (queue, group) = self.queue();
        let queues = self.place().queues.clone();
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

    async fn configure(&mut self) {
        let queues = self.place().queues.clone();
        let (queue, _) = self.queue();
        let settings = QueueSettings {
            max_pending: 100 + self.random.below(1000) as u32,
            ..(*queue.settings()).clone()
        };
        drop(self.call(queues.configure("q", settings)).await);
    }

    async fn look(&mut self) {
        let (queue, _) = self.queue();
        drop(self.call(queue.browse(None, None, 100)).await);
        drop(self.call(queue.dead_page(&DeadFilter::default(), None, 10)).await);
    }

    async fn time_goes_by(&mut self) {
        let (queue, _) = self.queue();
        let seconds = match self.random.below(8) {
            0 if self.events.ends => *[8 * DAY, -3 * DAY, 3600, -3600]
                .get(self.random.below(4) as usize)
                .unwrap_or(&0),
            1 => 31,
            _ => 1,
        };
        // Dead letters expire after 30 days.
        self.happened(("seconds go by", seconds));
        if self.ahead + seconds < 20 * DAY {
            self.ahead += seconds;
            self.place().clock.jump(seconds);
        }
        self.call(queue.look_after_now()).await;
    }

    async fn end_process(&mut self, clean: bool) {
        self.happened(("process ends", clean));
        let place = self.place.take().unwrap();
        if clean {
            place.stop().await;
        } else {
            self.disk.kill();
            place.kill();
        }
        self.start_again().await;
    }

    /// Soon, and some calls are under way then.
    async fn power_goes(&mut self) {
        self.happened("power goes");
        self.disk.cut_power_in(self.random.below(30));
        for _ in 0..self.random.below(6) {
            match self.random.below(4) {
                0 => self.produce().await,
                1 => self.claim().await,
                2 => self.settle().await,
                _ => self.purge().await,
            }
        }
        self.disk.power_cut();
        self.place.take().unwrap().kill();
        self.disk.power_cut();
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        self.held.clear();
        self.counts.ended += 1;
        self.place = Some(start(&self.disk, self.ahead).await);
    }

    /// Of one file, which is cut short, filled with zeros or gone.
    async fn damage(&mut self) {
        self.happened("damage");
        self.disk.kill();
        self.place.take().unwrap().kill();
        let mut files = files_of(&self.disk);
        let names: Vec<String> = files.keys().filter(|name| name.ends_with(".log")).cloned().collect();
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        match self.random.below(3) {
            0 => drop(files.remove(&name)),
            1 => files.entry(name).or_default().fill(0),
            _ => files.entry(name).or_default().clear(),
        }
        self.disk = SimDisk::new(self.random.below(u64::MAX), DISK_BYTES);
        for (name, bytes) in &files {
            let file = self.disk.create(name).unwrap();
            file.write_at(bytes, 0).unwrap();
            file.sync().unwrap();
        }
        self.disk.sync_names().unwrap();
        let place = start_skipping(Arc::new(self.disk.clone())).await;
        place.clock.jump(self.ahead);
        self.model.damaged();
        self.counts.damaged += 1;
        self.held.clear();
        // Whatever is left of it, an operator goes on with queues of these names.
        for queue in place.queues.all() {
            if !["q", "dlq.q"].contains(&queue.name().as_str()) {
                place.queues.remove(queue.name(), true).await.unwrap();
            }
        }
        match place.queues.create("q", queue_settings()).await {
            Ok(_) | Err(QueueError::QueueExists { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        let queue = place.queue();
        let group = GroupSettings::new("g", GroupMode::Work);
        place.queues.join_group(&queue, group).await.unwrap();
        place.queues.pause(&queue, Pause::Both, false).await.unwrap();
        self.place = Some(place);
    }

    /// Takes out all that is there, which is what the model says, and once more after a crash.
    pub async fn end(mut self) -> Counts {
        Self::others_have_their_turn().await;
        let (queue, group) = self.queue();
        let queues = self.place().queues.clone();
        for what in [Pause::Both, Pause::Group(group.clone())] {
            queues.pause(&queue, what, false).await.unwrap();
        }
        let mut found = BTreeMap::new();
        for text in self.take_all(&queue, &group).await {
            *found.entry(text).or_default() += 1;
        }
        let dead: Vec<String> = letters(&queue).await.iter().map(text).collect();
        dead.iter()
            .for_each(|text| *found.entry(text.clone()).or_default() += 1);
        self.model.check(&found);
        self.disk.kill();
        self.place.take().unwrap().kill();

        self.start_again().await;
        let (queue, group) = self.queue();
        let again = self.take_all(&queue, &group).await;
        assert!(again.is_empty(), "settled, and handed out again: {again:?}");
        let still: Vec<String> = letters(&queue).await.iter().map(text).collect();
        assert_eq!(still, dead);
        self.place.take().unwrap().stop().await;
        self.counts
    }

    async fn take_all(&self, queue: &Arc<Queue>, group: &Arc<Group>) -> Vec<String> {
        let mut texts = Vec::new();
        // Those of a pipeline have their partitions until they leave.
        (0..CONSUMERS).for_each(|n| queue.leave(group, &format!("c{n}")));
        // Leases end, also those that were made before the clock went back, and what has failed is tried again.
        for days in [0, 0, 5, 1] {
            self.place().clock.jump(days * DAY + 3600);
            queue.look_after_now().await;
            loop {
                let claimed = queue
                    .claim(group, "last", MemberKind::Pipeline, up_to(1000))
                    .await
                    .unwrap();
                if claimed.is_empty() {
                    break;
                }
                texts.extend(claimed.iter().map(|delivery| text(&delivery.message)));
                let verdicts = claimed.iter().map(|delivery| (queue.receipt(delivery), Verdict::Ack));
                let settled = queue.settle(group, verdicts.collect(), true).await.unwrap();
                assert!(settled.failed.is_empty(), "{:?}", settled.failed);
            }
        }
        texts
    }
}
