//! Concurrent users of the store and the replies that they get.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_events::{
    Append, AppendOutcome, CategoryRead, Direction, EventsError, ExpectedVersion, MessageId, Namespace, NewEvent,
    Retention, RetentionTarget, Store as _, Uuid,
};
use thalweg_log::disk::sim::Random;

use super::ledger::{Fact, fact_of};
use super::world::{End, Running, World};

/// After this number of acknowledgements in a life, writers slow down.
const ACKS_FAST: u64 = 1000;
const WRITERS: u64 = 5;
/// Streams whose first messages are hidden while others are appended.
pub const CUT: [&str; 2] = ["t-0", "t-1"];

/// Messages for a stream, each with a unique mark.
#[derive(Clone, Debug)]
pub struct Part {
    pub stream: String,
    pub expected: ExpectedVersion,
    pub marks: Vec<u64>,
    /// Its messages have ids, so that the append can be retried.
    pub has_ids: bool,
}

#[derive(Clone, Debug)]
pub enum Answer {
    Stored(Vec<AppendOutcome>),
    Refused { stream: String, actual: i64 },
    Unknown,
}

/// An append and its reply.
#[derive(Clone, Debug)]
pub struct Asked {
    pub parts: Vec<Part>,
    pub answer: Answer,
}

#[derive(Default)]
pub struct Told {
    pub asked: Vec<Asked>,
    /// Messages that the reader has seen.
    pub seen: Vec<Fact>,
    /// The global position up to which it has seen everything.
    pub seen_to: u64,
    /// The first visible position of streams: the acknowledged one and the possible one.
    pub floors: HashMap<String, (u64, u64)>,
    /// Revision and content of documents, likewise.
    pub documents: HashMap<String, Written>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    pub revision: u64,
    pub content: u64,
    /// The content of a later change without a reply.
    pub unknown: Option<u64>,
}

struct Shared {
    namespace: Arc<dyn Namespace>,
    over: AtomicBool,
    acks: AtomicU64,
    /// Lower bounds.
    versions: Mutex<HashMap<String, i64>>,
    told: Mutex<Told>,
    /// The last error of a writer.
    error: Mutex<String>,
}

/// Runs until a crash at a random moment.
pub async fn until_the_end(running: &Running, world: &World, random: &mut Random, life: u64) -> (Told, End) {
    let shared = Arc::new(Shared {
        namespace: running.namespace.clone(),
        over: AtomicBool::new(false),
        acks: AtomicU64::new(0),
        versions: Mutex::default(),
        told: Mutex::default(),
        error: Mutex::default(),
    });
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let own = Random::new(random.number());
        tasks.push(tokio::spawn(write(shared.clone(), own, life << 32 | writer << 24)));
    }
    tasks.push(tokio::spawn(read(shared.clone())));
    tasks.push(tokio::spawn(cut(shared.clone(), Random::new(random.number()))));
    tasks.push(tokio::spawn(keep(shared.clone(), Random::new(random.number()))));
    let enough = 20 + random.below(300);
    let until_crash = async {
        while shared.acks.load(Ordering::SeqCst) < enough {
            let step = Duration::from_millis(1 + random.below(5));
            match random.below(4) {
                0 => drop(running.store.flush_indexes().await),
                1 => drop(running.store.scavenge().await),
                _ => tokio::time::sleep(step).await,
            }
        }
        world.crash(random).await
    };
    let end = tokio::time::timeout(Duration::from_secs(60), until_crash).await;
    let acks = shared.acks.load(Ordering::SeqCst);
    let end = end.unwrap_or_else(|_| panic!("{acks} of {enough} acks; the last error: {}", shared.error.lock()));
    shared.over.store(true, Ordering::SeqCst);
    for task in tasks {
        let done = tokio::time::timeout(Duration::from_secs(60), task).await;
        done.expect("everybody gets an answer").unwrap();
    }
    let told = std::mem::take(&mut *shared.told.lock());
    (told, end)
}

pub fn id_of(mark: u64) -> MessageId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mark.to_be_bytes());
    bytes[8] = 0x77;
    MessageId::Uuid(Uuid(bytes))
}

fn a_stream(random: &mut Random) -> String {
    match random.below(6) {
        0 => CUT[random.below(2) as usize].to_owned(),
        1 => format!("b-{}", random.below(30)),
        _ => format!("a-{}", random.below(6)),
    }
}

fn some_parts(shared: &Shared, random: &mut Random, next: &mut u64) -> Vec<Part> {
    let mut streams: Vec<String> = (0..1 + random.below(3)).map(|_| a_stream(random)).collect();
    streams.sort();
    streams.dedup();
    let has_ids = random.one_in(3);
    let parts = streams.into_iter().map(|stream| {
        let known = shared.versions.lock().get(&stream).copied();
        let count = if random.one_in(30) { 400 } else { 1 + random.below(4) };
        let marks = (*next..*next + count).collect();
        *next += count;
        let expected = match (random.below(5), known) {
            (0, Some(version)) => ExpectedVersion::Version(version),
            (1, _) => ExpectedVersion::NoStream,
            (2, _) => ExpectedVersion::Exists,
            _ => ExpectedVersion::Any,
        };
        Part {
            stream,
            expected,
            marks,
            has_ids,
        }
    });
    parts.collect()
}

/// Appends these parts.
pub async fn append(namespace: &dyn Namespace, parts: &[Part]) -> Result<Vec<AppendOutcome>, EventsError> {
    let texts: Vec<Vec<String>> = parts
        .iter()
        .map(|part| part.marks.iter().map(|mark| format!("{{\"mark\":{mark}}}")).collect())
        .collect();
    let appends: Vec<Append<'_>> = parts
        .iter()
        .zip(&texts)
        .map(|(part, texts)| Append {
            stream: &part.stream,
            expected: part.expected,
            events: part
                .marks
                .iter()
                .zip(texts)
                .map(|(mark, data)| NewEvent {
                    id: part.has_ids.then(|| id_of(*mark)),
                    kind: "T",
                    data,
                    metadata: None,
                })
                .collect(),
        })
        .collect();
    namespace.append(&appends).await
}

async fn write(shared: Arc<Shared>, mut random: Random, mut next: u64) {
    loop {
        // Scavenging is throttled, and concurrent appends must leave room on the disk.
        if shared.acks.load(Ordering::SeqCst) > ACKS_FAST {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let parts = some_parts(&shared, &mut random, &mut next);
        let before = shared.versions.lock().clone();
        let answer = match append(&*shared.namespace, &parts).await {
            Ok(places) => {
                shared.acks.fetch_add(1, Ordering::SeqCst);
                let mut versions = shared.versions.lock();
                for (part, place) in parts.iter().zip(&places) {
                    let version = versions.entry(part.stream.clone()).or_insert(-1);
                    *version = (*version).max(place.last_position() as i64);
                }
                Answer::Stored(places)
            }
            Err(EventsError::VersionConflict {
                stream,
                expected,
                actual,
            }) => {
                let least = before.get(&stream).copied().unwrap_or(-1);
                assert!(
                    actual >= least && !expected.allows(actual),
                    "{stream}: {actual} is told to one who expects {expected}, after {least} was acknowledged"
                );
                Answer::Refused { stream, actual }
            }
            // The process is gone with its files, or will be.
            Err(error @ (EventsError::Unavailable(_) | EventsError::Storage(_) | EventsError::Damaged(_))) => {
                *shared.error.lock() = error.to_string();
                Answer::Unknown
            }
            Err(other) => panic!("{other}"),
        };
        let is_unknown = matches!(answer, Answer::Unknown);
        shared.told.lock().asked.push(Asked { parts, answer });
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        if is_unknown {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Follows the whole namespace like a subscriber.
async fn read(shared: Arc<Shared>) {
    let mut watch = shared.namespace.watch();
    let mut from = 1;
    while !shared.over.load(Ordering::SeqCst) {
        let visible = *watch.borrow_and_update();
        while from <= visible.last {
            let read = CategoryRead {
                category: None,
                from: Some(from),
                direction: Direction::Forward,
                max: 100,
                correlation: None,
                member: None,
                types: &[],
            };
            // The process may be gone.
            let Ok(page) = shared.namespace.read_category(read).await else {
                return;
            };
            let mut told = shared.told.lock();
            told.seen.extend(page.events.iter().map(fact_of));
            from = match page.next {
                Some(next) => next,
                None => {
                    page.events
                        .last()
                        .map_or(visible.last, |last| last.event().global)
                        .max(visible.last)
                        + 1
                }
            };
            told.seen_to = from - 1;
        }
        let _ = tokio::time::timeout(Duration::from_millis(5), watch.changed()).await;
    }
}

/// Hides the first messages of streams, up to what is acknowledged.
async fn cut(shared: Arc<Shared>, mut random: Random) {
    while !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(random.below(8))).await;
        let stream = CUT[random.below(2) as usize];
        let Some(version) = shared.versions.lock().get(stream).copied() else {
            continue;
        };
        let floor = random.below(version as u64 + 2);
        let Ok(rule) = shared.namespace.retention(RetentionTarget::Stream(stream)).await else {
            return;
        };
        // Hidden messages must not become visible again.
        if floor <= rule.and_then(|rule| rule.truncate_before).unwrap_or(0) {
            continue;
        }
        shared.told.lock().floors.entry(stream.to_owned()).or_default().1 = floor;
        let rule = Retention {
            truncate_before: Some(floor),
            ..Retention::default()
        };
        let done = shared
            .namespace
            .set_retention(RetentionTarget::Stream(stream), Some(rule));
        if done.await.is_err() {
            return;
        }
        shared.told.lock().floors.entry(stream.to_owned()).or_default().0 = floor;
    }
}

/// Updates its own document like a persistent subscription.
async fn keep(shared: Arc<Shared>, mut random: Random) {
    let name = "progress";
    let found = shared.namespace.document(name).await;
    let Ok(found) = found else { return };
    let mut written = found.map_or_else(Written::default, |found| Written {
        revision: found.revision,
        content: u64::from_be_bytes(found.content.as_ref().try_into().unwrap()),
        unknown: None,
    });
    while !shared.over.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(random.below(4))).await;
        let content = written.content + 1;
        let bytes = content.to_be_bytes();
        let done = shared.namespace.put_document(name, Some(&bytes), written.revision);
        match done.await {
            Ok(revision) => {
                let revision = revision.expect("nobody else writes it");
                assert!(revision > written.revision, "{revision} behind {written:?}");
                written = Written {
                    revision,
                    content,
                    unknown: None,
                };
            }
            Err(_) => written.unknown = Some(content),
        }
        shared.told.lock().documents.insert(name.to_owned(), written);
        if written.unknown.is_some() {
            return;
        }
    }
}
