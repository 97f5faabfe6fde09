//! Random concurrent writers. Their replies are compared with what can be read, using a model that knows only the
//! rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Suite, all, append, event, of_stream, stream_pages};
use crate::error::EventsError;
use crate::store::{ExpectedVersion, Namespace};

const WRITERS: u64 = 5;
const ROUNDS: u64 = 3;
const STEPS: u64 = 40;
const STREAMS: u64 = 4;

/// By global position: stream, position, content.
type ExpectedEvents = BTreeMap<u64, (String, u64, String)>;

/// A deterministic random generator.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Rules 1, 2, 3, 5 and 15.
pub async fn run(suite: &Suite) {
    let mut store = suite.open().await;
    let mut namespace = suite.namespace(&store).await;
    let name = namespace.name().to_owned();
    let mut answered = ExpectedEvents::new();
    for round in 0..ROUNDS {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let namespace = namespace.clone();
            let chance = SeededRandom(1 + round * WRITERS + writer);
            writers.push(tokio::spawn(work(namespace, format!("{round}.{writer}"), chance)));
        }
        for writer in writers {
            for (global, what) in writer.await.unwrap() {
                let twice = answered.insert(global, what);
                assert!(twice.is_none(), "1: global position {global} was given twice");
            }
        }
        drop(namespace);
        store = suite.again(store).await;
        namespace = store.namespace(&name).await.unwrap();
        compare(&namespace, &answered).await;
    }
}

/// Appends to one or two streams with every kind of expected version.
async fn work(
    namespace: Arc<dyn Namespace>,
    name: String,
    mut chance: SeededRandom,
) -> Vec<(u64, (String, u64, String))> {
    let mut answered = Vec::new();
    for step in 0..STEPS {
        let first = chance.below(STREAMS);
        let second = (first + 1 + chance.below(STREAMS - 1)) % STREAMS;
        let streams: Vec<String> = [first, second][..1 + chance.below(2) as usize]
            .iter()
            .map(|stream| format!("m-{stream}"))
            .collect();
        let mut contents = Vec::new();
        let mut expectations = Vec::new();
        for stream in &streams {
            let count = 1 + chance.below(3);
            contents.push(
                (0..count)
                    .map(|n| format!("\"{name} {step} {stream} {n}\""))
                    .collect::<Vec<_>>(),
            );
            let version = namespace.version(stream).await.unwrap();
            expectations.push(match chance.below(5) {
                0 => ExpectedVersion::Version(version),
                1 => ExpectedVersion::Version(version + 1),
                2 => ExpectedVersion::Exists,
                3 => ExpectedVersion::NoStream,
                _ => ExpectedVersion::Any,
            });
        }
        let appends: Vec<_> = (0..streams.len())
            .map(|n| {
                let events = contents[n].iter().map(|content| event("T", content)).collect();
                append(&streams[n], expectations[n], events)
            })
            .collect();
        match namespace.append(&appends).await {
            Ok(places) => {
                for (n, place) in places.iter().enumerate() {
                    assert_eq!(place.count as usize, contents[n].len(), "2: all of it is stored");
                    if let ExpectedVersion::Version(version) = expectations[n] {
                        assert_eq!(
                            place.first_position as i64,
                            version + 1,
                            "3: it follows what was expected"
                        );
                    }
                    for (content, at) in contents[n].iter().zip(0..) {
                        let (position, global) = (place.first_position + at, place.first_global + at);
                        answered.push((global, (streams[n].clone(), position, content.clone())));
                    }
                }
            }
            Err(EventsError::VersionConflict { expected, actual, .. }) => {
                assert!(
                    !expected.allows(actual),
                    "3: {expected} was refused at version {actual}"
                );
            }
            Err(other) => panic!("2: {other}"),
        }
    }
    answered
}

async fn compare(namespace: &Arc<dyn Namespace>, answered: &ExpectedEvents) {
    let globals: Vec<u64> = answered.keys().copied().collect();
    assert_eq!(
        globals,
        (1..=answered.len() as u64).collect::<Vec<_>>(),
        "1: no gap, and nothing that was refused"
    );
    let found: ExpectedEvents = all(namespace)
        .await
        .iter()
        .map(|stored| stored.event())
        .map(|event| {
            (
                event.global,
                (event.stream.to_owned(), event.position, event.data.to_owned()),
            )
        })
        .collect();
    assert_eq!(&found, answered, "5: what is read is what was answered");
    let mut streams: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (stream, position, content) in answered.values() {
        let contents = streams.entry(stream).or_default();
        assert_eq!(*position, contents.len() as u64, "1: positions of {stream} have no gap");
        contents.push(content);
    }
    for (stream, contents) in &streams {
        assert_eq!(
            super::data(&stream_pages(namespace, of_stream(stream)).await),
            *contents,
            "6: {stream}"
        );
        assert_eq!(namespace.version(stream).await.unwrap(), contents.len() as i64 - 1, "5");
    }
    let info = namespace.info().await.unwrap();
    assert_eq!(
        (info.messages, info.streams),
        (answered.len() as u64, streams.len() as u64),
        "9"
    );
}
