//! The steps of a life, and its end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use thalweg_events::subscription::{DeliveryStrategy, Lease, Nack, SubscriptionSettings, SubscriptionSource};
use thalweg_events::{
    Append, AppendOutcome, CategoryRead, DEFAULT, Direction, EventsError, ExpectedVersion, FetchRequest, Namespace,
    NewEvent, Result, Retention, RetentionTarget, StartPosition, Store as _, StoredEvent, StreamRead,
};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::{Random, SimDisk};
use tokio::time::Instant;

use super::machine::{DAY, Machine, Process, SECOND, new_namespace};
use super::model::{Fate, Model, Settled, Told, id_of, text_of};

/// A call that takes longer counts as hanging.
const FOR_EVER: Duration = Duration::from_secs(90);
const OTHER: &str = "other";
const NAMESPACES: [&str; 2] = [DEFAULT, OTHER];
const STREAMS: [&str; 6] = ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1"];
/// Streams and a category that get rules; others never do.
const RULED: [&str; 3] = ["a-0", "a-1", "b"];
const SUBSCRIPTION: &str = "g";
const LEASE: i64 = 30 * SECOND;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub appended: u64,
    pub handed_out: u64,
    pub settled: u64,
    /// Calls whose client went away before the reply.
    pub left: u64,
    pub processes: u64,
    pub deleted: u64,
    pub erased: u64,
    /// Messages lost to damage.
    pub lost: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.appended += other.appended;
        self.handed_out += other.handed_out;
        self.settled += other.settled;
        self.left += other.left;
        self.processes += other.processes;
        self.deleted += other.deleted;
        self.erased += other.erased;
        self.lost += other.lost;
    }
}

/// Idempotent operations that are retried if their outcome is unknown.
#[derive(Clone, Debug)]
enum Op {
    DeleteStream(&'static str, &'static str),
    SetRule(&'static str, &'static str, Option<Retention>),
    Clear(&'static str),
    Scavenge,
    Erase,
    MakeNamespaceAgain,
    MakeSubscriptionAgain(&'static str, DeliveryStrategy),
    Reset(&'static str),
    Replay(&'static str),
}

/// A message leased to a consumer.
#[derive(Clone, Debug)]
struct Delivery {
    namespace: &'static str,
    lease: Lease,
    text: String,
    deadline: i64,
}

pub struct World {
    pub(super) machine: Machine,
    pub(super) process: Option<Arc<Process>>,
    pub(super) model: Model,
    pub(super) random: Random,
    pub(super) counts: Counts,
    held: Vec<Delivery>,
    /// The power will be cut during the next disk changes.
    power_goes: bool,
    /// An operation whose outcome is unknown since the power cut.
    again: Option<Op>,
    /// The steps so far, for debugging a failure.
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

fn told<T>(answer: &Option<Result<T>>) -> Told {
    match answer {
        Some(Ok(_)) => Told::Done,
        Some(Err(EventsError::VersionConflict { .. })) => Told::Refused,
        Some(Err(_)) | None => Told::Unknown,
    }
}

fn retention_of(of: &str) -> RetentionTarget<'_> {
    match of.contains('-') {
        true => RetentionTarget::Stream(of),
        false => RetentionTarget::Category(of),
    }
}

/// All visible messages, page by page.
pub async fn everything(namespace: &dyn Namespace, category: Option<&str>) -> Vec<StoredEvent> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let read = CategoryRead {
            category,
            from,
            direction: Direction::Forward,
            max: 100,
            correlation: None,
            member: None,
            types: &[],
        };
        let page = namespace.read_category(read).await.unwrap();
        found.extend(page.events);
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

async fn of_stream(namespace: &dyn Namespace, stream: &str) -> Vec<StoredEvent> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let read = StreamRead {
            stream,
            from: from.map(thalweg_events::StreamPosition::Position),
            direction: Direction::Forward,
            max: 50,
            types: &[],
        };
        let page = namespace.read_stream(read).await.unwrap();
        found.extend(page.events);
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

async fn append(
    process: &Process,
    name: &str,
    parts: &[(&'static str, Vec<String>)],
    with_ids: bool,
    filler: usize,
) -> Result<Vec<AppendOutcome>> {
    let namespace = process.store.namespace(name).await?;
    let filler = ".".repeat(filler);
    let data: Vec<Vec<String>> = parts
        .iter()
        .map(|(_, texts)| {
            let of = |text: &String| format!("{{\"text\":\"{text}\",\"x\":\"{filler}\"}}");
            texts.iter().map(of).collect()
        })
        .collect();
    let appends: Vec<Append<'_>> = parts
        .iter()
        .zip(&data)
        .map(|((stream, texts), data)| Append {
            stream,
            expected: ExpectedVersion::Any,
            events: texts
                .iter()
                .zip(data)
                .map(|(text, data)| NewEvent {
                    id: with_ids.then(|| id_of(text)),
                    kind: "T",
                    data,
                    metadata: None,
                })
                .collect(),
        })
        .collect();
    namespace.append(&appends).await
}

fn settings(strategy: DeliveryStrategy) -> SubscriptionSettings {
    SubscriptionSettings {
        source: SubscriptionSource::All,
        from: 1,
        strategy,
        ack_timeout: LEASE,
        max_attempts: 1_000_000,
        max_in_flight: 1000,
        types: Vec::new(),
        correlation: None,
    }
}

/// Performs an idempotent operation.
async fn perform(process: &Process, op: &Op) -> Result<()> {
    let gone_or = |done: Result<()>| match done {
        Err(EventsError::NamespaceNotFound(_) | EventsError::NamespaceExists(_)) => Ok(()),
        Err(EventsError::SubscriptionNotFound(_) | EventsError::SubscriptionExists(_)) => Ok(()),
        done => done,
    };
    let (store, subscriptions) = (&process.store, &process.subscriptions);
    match op {
        Op::DeleteStream(name, stream) => {
            let namespace = store.namespace(name).await?;
            namespace.delete_stream(stream, ExpectedVersion::Any, false).await
        }
        Op::SetRule(name, of, rule) => {
            let namespace = store.namespace(name).await?;
            namespace.set_retention(retention_of(of), *rule).await
        }
        Op::Clear(name) => store.namespace(name).await?.clear().await,
        Op::Scavenge => store.scavenge().await.map(drop),
        Op::Erase => store.erase().await.map(drop),
        Op::MakeNamespaceAgain => {
            gone_or(store.delete(OTHER).await.map(drop))?;
            gone_or(store.create(new_namespace(OTHER)).await.map(drop))
        }
        Op::MakeSubscriptionAgain(name, strategy) => {
            let namespace = store.namespace(name).await?;
            gone_or(subscriptions.delete(&namespace, SUBSCRIPTION).await)?;
            gone_or(
                subscriptions
                    .create(&namespace, SUBSCRIPTION, settings(*strategy))
                    .await,
            )
        }
        Op::Reset(name) => {
            let namespace = store.namespace(name).await?;
            let done = subscriptions
                .reset(&namespace, SUBSCRIPTION, StartPosition::Start)
                .await;
            gone_or(done.map(drop))
        }
        Op::Replay(name) => {
            let namespace = store.namespace(name).await?;
            let done = subscriptions
                .replay(&namespace, SUBSCRIPTION, Vec::new(), 10_000, false)
                .await;
            gone_or(done.map(drop))
        }
    }
}

impl World {
    pub async fn new(seed: u64) -> World {
        let machine = Machine::new(seed);
        let process = machine.boot().await;
        let world = World {
            machine,
            process: Some(Arc::new(process)),
            model: Model::default(),
            random: Random::new(seed),
            counts: Counts::default(),
            held: Vec::new(),
            power_goes: false,
            again: None,
            history: Vec::new(),
        };
        perform(&world.process(), &Op::MakeNamespaceAgain).await.unwrap();
        for name in NAMESPACES {
            let op = Op::MakeSubscriptionAgain(name, DeliveryStrategy::ByStream);
            perform(&world.process(), &op).await.unwrap();
        }
        world
    }

    pub(super) fn process(&self) -> Arc<Process> {
        self.process.clone().unwrap()
    }

    pub(super) fn happened(&mut self, what: impl std::fmt::Debug) {
        self.history.push(format!("{what:?}"));
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len() as u64) as usize]
    }

    /// The reply of a call; `None` if its client went away after a random number of polls.
    async fn call<T>(&mut self, call: impl Future<Output = T>) -> Option<T> {
        let leaves = self.random.one_in(2);
        let mut polls = if leaves { self.random.below(8) } else { u64::MAX };
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

    /// Errors are expected only while the power is failing.
    fn expects<T: std::fmt::Debug>(&self, answer: &Option<Result<T>>) {
        if let Some(Err(error)) = answer {
            assert!(
                self.power_goes || matches!(error, EventsError::VersionConflict { .. }),
                "{error}"
            );
        }
    }

    pub async fn step(&mut self) {
        self.model.note_rules();
        match self.random.below(64) {
            0..20 => self.append().await,
            20..28 => self.fetch().await,
            28..38 => self.settle().await,
            38..50 => {
                let op = self.an_op();
                self.carry_out(op).await;
            }
            50..53 => self.time_goes_by().await,
            53 => self.flush().await,
            54..58 => self.check().await,
            58 => self.end_process(true).await,
            59 | 60 => self.end_process(false).await,
            61 => self.power_goes().await,
            _ => self.read().await,
        }
        self.model.note_rules();
    }

    fn an_op(&mut self) -> Op {
        let name = self.one_of(&NAMESPACES);
        match self.random.below(22) {
            0..4 => Op::DeleteStream(name, self.one_of(&STREAMS)),
            4..9 => {
                let of = self.one_of(&RULED);
                let rule = self.a_rule();
                Op::SetRule(name, of, rule)
            }
            9 => Op::Clear(name),
            10..13 => Op::Scavenge,
            13..16 => Op::Erase,
            16 => Op::MakeNamespaceAgain,
            17 => {
                let strategy = self.one_of(&[DeliveryStrategy::ByStream, DeliveryStrategy::RoundRobin]);
                Op::MakeSubscriptionAgain(name, strategy)
            }
            18 => Op::Reset(name),
            _ => Op::Replay(name),
        }
    }

    fn a_rule(&mut self) -> Option<Retention> {
        let mut rule = Retention::default();
        match self.random.below(4) {
            0 => return None,
            1 => rule.max_count = Some(1 + self.random.below(5)),
            2 => rule.truncate_before = Some(self.random.below(20)),
            _ => rule.max_age = Some(self.one_of(&[60 * SECOND, 3600 * SECOND, 3 * DAY])),
        }
        Some(rule)
    }

    async fn append(&mut self) {
        let name = self.one_of(&NAMESPACES);
        let streams: BTreeSet<&'static str> = (0..1 + self.random.below(2)).map(|_| self.one_of(&STREAMS)).collect();
        let parts: Vec<(&'static str, Vec<String>)> = streams
            .into_iter()
            .map(|stream| {
                let count = 1 + self.random.below(4);
                (stream, (0..count).map(|_| self.model.new_text()).collect())
            })
            .collect();
        let with_ids = self.random.one_in(2);
        let filler = if self.random.one_in(4) { 12_000 } else { 20 };
        let (process, at) = (self.process(), self.process().now());
        let mut answer = self.call(append(&process, name, &parts, with_ids, filler)).await;
        if answer.is_none() && with_ids && self.random.one_in(2) {
            // A retry with the same ids reveals the outcome.
            answer = Some(append(&process, name, &parts, with_ids, filler).await);
            // Unless a rule has hidden part of it since: then the retry shows only that an id is taken.
            if matches!(answer, Some(Err(EventsError::IdConflict { .. }))) {
                assert!(
                    parts.iter().any(|(stream, _)| self.model.has_rule(name, stream)),
                    "{parts:?}"
                );
                answer = None;
            }
        }
        self.expects(&answer);
        let told = told(&answer);
        self.happened(("appended", name, &parts, told));
        for (n, (stream, texts)) in parts.iter().enumerate() {
            self.model.appended(name, stream, texts, told, at);
            if let Some(Ok(places)) = &answer {
                self.model.placed(texts, &places[n]);
                self.counts.appended += texts.len() as u64;
            }
        }
    }

    async fn read(&mut self) {
        let (process, name) = (self.process(), self.one_of(&NAMESPACES));
        let stream = self.one_of(&STREAMS);
        let namespace = process.namespace(name).await;
        let read = StreamRead {
            stream,
            from: None,
            direction: Direction::Backward,
            max: 10,
            types: &[],
        };
        if let Some(page) = self.call(namespace.read_stream(read)).await {
            for stored in &page.unwrap().events {
                self.model.shown(name, stored);
            }
        }
    }

    async fn fetch(&mut self) {
        let (process, name) = (self.process(), self.one_of(&NAMESPACES));
        let namespace = process.namespace(name).await;
        let ask = FetchRequest {
            consumer: format!("c{}", self.random.below(3)).into(),
            max: 1 + self.random.below(4) as usize,
            held: Vec::new(),
        };
        // What hides a message before the fetch applies to it; concurrent changes may hide more.
        let versions = self.versions().await;
        let fetched = process
            .subscriptions
            .fetch(&namespace, SUBSCRIPTION, ask, Instant::now());
        let answer = self.call(fetched).await;
        self.expects(
            &answer
                .as_ref()
                .map(|answer| answer.as_ref().map(drop).map_err(Clone::clone)),
        );
        let Some(Ok(fetched)) = answer else { return };
        for message in fetched.messages {
            let text = self.model.shown(name, &message.stored);
            self.happened(("handed out", name, &text, message.lease));
            let (now, known) = (process.now(), &self.model.messages[&text]);
            assert_ne!(known.settled, Settled::Yes, "{text} was settled, and is handed out");
            let key = (name.to_owned(), known.stream.clone());
            let (is_hidden, _) = self.model.hidden(known, versions.get(&key).copied().unwrap_or(-1), now);
            assert!(!is_hidden, "{text} is hidden by a rule, and is handed out");
            let other = self.held.iter().find(|held| held.text == text && held.deadline > now);
            assert!(other.is_none(), "{text} is with another consumer: {other:?}");
            self.held.retain(|held| held.text != text);
            self.counts.handed_out += 1;
            self.held.push(Delivery {
                namespace: name,
                lease: message.lease,
                text,
                deadline: now + LEASE,
            });
        }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let delivery = self.held.swap_remove(at);
        let (process, text) = (self.process(), delivery.text.clone());
        let namespace = process.namespace(delivery.namespace).await;
        let reason = "it failed".to_owned();
        let nack = match self.random.below(8) {
            0..4 => None,
            4 => Some(Nack::Skip),
            5 => Some(Nack::Park { reason }),
            6 => Some(Nack::Back),
            _ => Some(Nack::Retry {
                delay: self.one_of(&[0, 10 * SECOND]),
                reason,
            }),
        };
        let (subscriptions, leases) = (&process.subscriptions, vec![delivery.lease]);
        let answer = match nack.clone() {
            None => self.call(subscriptions.ack(&namespace, SUBSCRIPTION, leases)).await,
            Some(nack) => {
                self.call(subscriptions.nack(&namespace, SUBSCRIPTION, leases, nack))
                    .await
            }
        };
        self.expects(&answer);
        let told = match &answer {
            // The message was leased to another consumer since, or was settled.
            Some(Ok(settled)) if settled.settled == 0 => {
                let is_live = self.model.messages[&text].fate == Fate::Live;
                assert!(
                    delivery.deadline <= process.now() || !is_live,
                    "the lease of {text} was not over"
                );
                Told::Refused
            }
            answer => told(answer),
        };
        self.happened(("settled", &text, &nack, told));
        self.counts.settled += u64::from(told == Told::Done);
        if matches!(nack, None | Some(Nack::Skip)) {
            self.model.settle(&text, told);
        }
    }

    /// Performs an operation. If its client goes away, it is retried until it succeeds; after an error, the next
    /// process retries it.
    async fn carry_out(&mut self, op: Op) {
        let process = self.process();
        let mut answer = self.call(perform(&process, &op)).await;
        if answer.is_none() {
            // By then the abandoned operation is queued.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let again = tokio::time::timeout(FOR_EVER, perform(&process, &op)).await;
            answer = Some(again.expect("a call hangs"));
        }
        self.happened((&op, &answer));
        match answer {
            Some(Ok(())) => self.carried_out(op).await,
            Some(Err(error)) => {
                assert!(self.power_goes, "{op:?}: {error}");
                self.again = Some(op);
            }
            None => {}
        }
    }

    async fn carried_out(&mut self, op: Op) {
        match op {
            Op::DeleteStream(name, stream) => {
                let version = self.process().namespace(name).await.version(stream).await.unwrap();
                self.model.deleted(name, stream, version);
                self.counts.deleted += 1;
            }
            Op::SetRule(name, of, rule) => self.model.set_rule(name, of, rule),
            Op::Clear(name) => {
                self.model.emptied(name);
                self.model.reset(name);
                self.held.retain(|held| held.namespace != name);
            }
            Op::Scavenge | Op::Erase => {
                let versions = self.versions().await;
                self.model.scavenged(&versions, self.process().now());
                if matches!(op, Op::Erase) {
                    self.is_erased();
                }
            }
            Op::MakeNamespaceAgain => {
                self.model.made_again(OTHER);
                self.held.retain(|held| held.namespace != OTHER);
                self.counts.deleted += 1;
                self.carry_out_wholly(Op::MakeSubscriptionAgain(OTHER, DeliveryStrategy::RoundRobin))
                    .await;
            }
            Op::MakeSubscriptionAgain(name, _) | Op::Reset(name) => {
                self.model.reset(name);
                self.held.retain(|held| held.namespace != name);
            }
            Op::Replay(_) => {}
        }
    }

    /// Performs an operation whose client stays.
    async fn carry_out_wholly(&mut self, op: Op) {
        let process = self.process();
        match perform(&process, &op).await {
            Ok(()) => Box::pin(self.carried_out(op)).await,
            Err(error) => {
                assert!(self.power_goes, "{op:?}: {error}");
                self.again = Some(op);
            }
        }
    }

    async fn versions(&self) -> HashMap<(String, String), i64> {
        let (process, mut versions) = (self.process(), HashMap::new());
        for name in NAMESPACES {
            let namespace = process.namespace(name).await;
            for stream in STREAMS {
                // Unknown while the power is failing, when nothing depends on it.
                let version = namespace.version(stream).await.unwrap_or(-1);
                versions.insert((name.to_owned(), stream.to_owned()), version);
            }
        }
        versions
    }

    /// Checks that removed messages are in no file.
    fn is_erased(&mut self) {
        let mut there = BTreeSet::new();
        for disk in [&self.machine.log, &self.machine.indexes] {
            texts_on(disk, &mut there);
        }
        let left: Vec<&String> = self.model.gone().filter(|text| there.contains(*text)).collect();
        assert!(left.is_empty(), "erased, and still on a disk: {left:?}");
        self.counts.erased += 1;
    }

    async fn flush(&mut self) {
        let process = self.process();
        drop(self.call(process.store.flush_indexes()).await);
    }

    async fn time_goes_by(&mut self) {
        let process = self.process();
        match self.random.below(8) {
            0 => {
                let wall = process.wall() + self.one_of(&[8 * DAY, -3 * DAY, 3600 * SECOND, -3600 * SECOND]);
                self.happened(("clock is set", wall));
                self.model.went_back |= wall < process.wall();
                process.set(wall);
            }
            1 => process.pass(3600 * SECOND),
            2 | 3 => process.pass(31 * SECOND),
            _ => process.pass(SECOND),
        }
        self.happened(("time", process.now()));
        process.look().await.unwrap();
    }

    async fn end_process(&mut self, clean: bool) {
        self.happened(("process ends", clean));
        if !clean {
            self.machine.kill();
        }
        self.is_gone().await;
        self.start_again().await;
    }

    /// Cuts the power during some of the following operations.
    async fn power_goes(&mut self) {
        self.happened("power goes");
        self.power_goes = true;
        self.machine.log.cut_power_in(self.random.below(30));
        for _ in 0..self.random.below(8) {
            match self.random.below(8) {
                0..3 => self.append().await,
                3 => self.fetch().await,
                4 => self.settle().await,
                5 => self.flush().await,
                _ => {
                    let op = self.an_op();
                    self.carry_out(op).await;
                }
            }
            if self.again.is_some() {
                break;
            }
        }
        self.machine.power_cut();
        self.is_gone().await;
        self.machine.power_cut();
        self.power_goes = false;
        self.start_again().await;
    }

    /// Ends the process and waits for all its operations.
    pub(super) async fn is_gone(&mut self) {
        let process = self.process.take().unwrap();
        self.machine.wall = process.wall();
        let process = Arc::into_inner(process).expect("nobody asks for anything any more");
        process.gone().await;
    }

    pub(super) async fn start_again(&mut self) {
        match self.random.below(8) {
            0 => self.machine.wall += 5 * SECOND,
            1 => self.machine.wall += 8 * DAY,
            2 => {
                self.machine.wall -= 3 * DAY;
                self.model.went_back = true;
            }
            3 => {
                // A machine without a battery.
                self.machine.wall = 20 * SECOND;
                self.model.went_back = true;
            }
            _ => {}
        }
        if self.random.one_in(4) {
            self.machine.lose_indexes();
        }
        self.process = Some(Arc::new(self.machine.boot().await));
        self.counts.processes += 1;
        self.happened(("starts at", self.process().now()));
        if let Some(op) = self.again.take() {
            self.happened(("again", &op));
            // An interrupted scavenge may have run with earlier rules and at an earlier time.
            perform(&self.process(), &op).await.unwrap();
            self.carried_out(op).await;
        }
        self.check().await;
    }

    /// Checks that the visible messages are the expected ones.
    pub(super) async fn check(&mut self) {
        for name in NAMESPACES {
            // An abandoned operation may be stored meanwhile.
            while !self.check_one(name).await {}
        }
        let verified = self.process().store.verify().await.unwrap();
        assert_eq!(verified.faults, []);
    }

    /// Returns false if something changed meanwhile.
    async fn check_one(&mut self, name: &'static str) -> bool {
        let process = self.process();
        let namespace = process.namespace(name).await;
        let change = || namespace.watch().borrow().change;
        let (before, versions) = (change(), self.versions().await);
        let all = everything(namespace.as_ref(), None).await;
        let messages = namespace.info().await.unwrap().messages;
        let mut by_stream = Vec::new();
        for stream in STREAMS {
            by_stream.push((stream, of_stream(namespace.as_ref(), stream).await));
        }
        if change() != before {
            return false;
        }
        let shown: Vec<String> = all.iter().map(|stored| self.model.shown(name, stored)).collect();
        let set: BTreeSet<&String> = shown.iter().collect();
        assert_eq!(set.len(), shown.len(), "{name}: a message comes twice");
        for (text, known) in &self.model.messages {
            if (&*known.namespace, known.era) != (name, self.model.era(name)) {
                continue;
            }
            let key = (name.to_owned(), known.stream.clone());
            let (is_hidden, may_be) = self.model.hidden(known, versions[&key], process.now());
            let is_shown = set.contains(text);
            assert!(!(is_hidden && is_shown), "{text} is hidden, and is shown: {known:?}");
            assert!(
                is_shown || may_be || known.fate != Fate::Live,
                "{text} is lost: {known:?}"
            );
        }
        assert_eq!(messages, all.len() as u64, "{name}");
        for (stream, own) in by_stream {
            let wanted = all.iter().filter(|stored| stored.event().stream == stream);
            let own: Vec<String> = own.iter().map(text_of).collect();
            assert_eq!(own, wanted.map(text_of).collect::<Vec<_>>(), "{name}: {stream}");
        }
        true
    }

    /// Consumes everything that is left, compares it with the model, and repeats that after a crash.
    pub async fn drain(mut self) -> Counts {
        self.check().await;
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        for name in NAMESPACES {
            perform(&self.process(), &Op::Replay(name)).await.unwrap();
            for text in self.take_all(name).await {
                *found.entry(text).or_default() += 1;
            }
        }
        for (text, known) in &self.model.messages {
            let times = found.get(text).copied().unwrap_or(0);
            let is_of_now = known.era == self.model.era(&known.namespace);
            let must = known.fate == Fate::Live && known.settled == Settled::No && !known.was_ruled;
            let may = known.fate != Fate::Gone && known.settled != Settled::Yes;
            let is_right = match (must && is_of_now, may && is_of_now) {
                (true, _) => times == 1,
                (false, true) => times <= 1,
                (false, false) => times == 0,
            };
            assert!(is_right, "{text}: {known:?}, and it was handed out {times} times");
        }
        self.machine.kill();
        self.is_gone().await;
        self.start_again().await;
        for name in NAMESPACES {
            let again = self.take_all(name).await;
            assert!(again.is_empty(), "settled, and handed out again: {again:?}");
        }
        self.is_gone().await;
        self.counts
    }

    async fn take_all(&mut self, name: &'static str) -> Vec<String> {
        let (process, mut taken) = (self.process(), Vec::new());
        let namespace = process.namespace(name).await;
        // Leases and delays expire.
        for _ in 0..3 {
            process.pass(LEASE + SECOND);
            loop {
                let ask = FetchRequest {
                    consumer: "last".into(),
                    max: 100,
                    held: Vec::new(),
                };
                let fetched = process
                    .subscriptions
                    .fetch(&namespace, SUBSCRIPTION, ask, Instant::now());
                let fetched = fetched.await.unwrap();
                if fetched.messages.is_empty() {
                    break;
                }
                let leases: Vec<Lease> = fetched.messages.iter().map(|message| message.lease).collect();
                taken.extend(fetched.messages.iter().map(|message| text_of(&message.stored)));
                let count = leases.len();
                let settled = process
                    .subscriptions
                    .ack(&namespace, SUBSCRIPTION, leases)
                    .await
                    .unwrap();
                assert_eq!(settled.settled, count);
            }
        }
        taken
    }
}

/// Finds texts of messages in the files of a disk.
pub(super) fn texts_on(disk: &SimDisk, found: &mut BTreeSet<String>) {
    const MARK: &[u8] = b"<message ";
    for name in disk.names().unwrap() {
        // A file may be removed meanwhile.
        let Ok(file) = disk.open(&name) else { continue };
        let mut bytes = vec![0; file.len().unwrap_or_default() as usize];
        if file.read_at(&mut bytes, 0).is_err() {
            continue;
        }
        for at in memchr::memmem::find_iter(&bytes, MARK) {
            let text = bytes
                .get(at..at + MARK.len() + 10)
                .and_then(|text| std::str::from_utf8(text).ok());
            found.extend(text.map(str::to_owned));
        }
    }
}
