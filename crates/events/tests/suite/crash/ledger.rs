//! All replies so far, and what must therefore be stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thalweg_events::{
    CategoryRead, Direction, EmbeddedStore, EventsError, MessageId, Namespace, Store as _, StoredEvent, StreamPosition,
    StreamRead,
};

use super::work::{Answer, Asked, CUT, Part, Told, Written, append, id_of};

/// A message and its positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub global: u64,
    pub stream: String,
    pub position: u64,
    pub mark: u64,
    pub id: MessageId,
}

pub fn fact_of(stored: &StoredEvent) -> Fact {
    let event = stored.event();
    let mark = event
        .data
        .strip_prefix("{\"mark\":")
        .and_then(|rest| rest.strip_suffix('}'));
    Fact {
        global: event.global,
        stream: event.stream.to_owned(),
        position: event.position,
        mark: mark.unwrap().parse().unwrap(),
        id: MessageId::from(event.id),
    }
}

#[derive(Default)]
pub struct Ledger {
    /// By global position, including hidden ones.
    facts: BTreeMap<u64, Fact>,
    asked: Vec<Asked>,
    /// Appends of the previous life without a reply.
    unknown: Vec<Vec<Part>>,
    floors: HashMap<String, (u64, u64)>,
    documents: HashMap<String, Written>,
    /// Versions from replies.
    versions: HashMap<String, i64>,
    /// Data lost in a power cut may have been acknowledged.
    is_loose: bool,
}

impl Ledger {
    /// Adds the replies of a life that has ended.
    pub fn learn(&mut self, told: Told) {
        let may_be_hidden = |fact: &Fact| {
            told.floors
                .get(&fact.stream)
                .is_some_and(|(_, floor)| fact.position < *floor)
        };
        let mut acknowledged = Vec::new();
        for asked in &told.asked {
            match &asked.answer {
                Answer::Stored(places) => {
                    for (part, place) in asked.parts.iter().zip(places) {
                        assert_eq!((place.count, place.duplicate), (part.marks.len() as u64, false));
                        assert!(
                            part.expected.allows(place.first_position as i64 - 1),
                            "{part:?} is at {place:?}"
                        );
                        acknowledged.push((part.clone(), *place));
                    }
                }
                Answer::Refused { stream, actual } => {
                    let version = self.versions.entry(stream.clone()).or_insert(-1);
                    *version = (*version).max(*actual);
                }
                Answer::Unknown => self.unknown.push(asked.parts.clone()),
            }
        }
        for fact in &told.seen {
            let known = self.facts.insert(fact.global, fact.clone());
            assert!(known.is_none_or(|known| known == *fact), "{fact:?} was another message");
        }
        for (part, place) in acknowledged {
            for (n, mark) in (0..).zip(&part.marks) {
                let global = place.first_global + n;
                let (stream, position) = (part.stream.clone(), place.first_position + n);
                match self.facts.get(&global) {
                    Some(known) => assert_eq!((&known.stream, known.position, known.mark), (&stream, position, *mark)),
                    None => {
                        let id = if part.has_ids { id_of(*mark) } else { MessageId::of("") };
                        let fact = Fact {
                            global,
                            stream,
                            position,
                            mark: *mark,
                            id,
                        };
                        // A reader that has read everything up to a position has seen all messages there.
                        assert!(global > told.seen_to || may_be_hidden(&fact), "{fact:?} was not read");
                        self.facts.insert(global, fact);
                    }
                }
            }
        }
        for (stream, (surely, may_be)) in told.floors {
            let floor = self.floors.entry(stream).or_default();
            *floor = (floor.0.max(surely), floor.1.max(may_be));
        }
        self.documents.extend(told.documents);
        self.asked.extend(told.asked);
    }

    /// Records a power cut under a durability that does not sync before acknowledging.
    pub fn forget_what_may_be_lost(&mut self) {
        self.is_loose = true;
    }

    /// Checks that everything stored is as expected, and remembers it.
    pub async fn hold_against(&mut self, namespace: &dyn Namespace, store: &EmbeddedStore, what: &str) {
        let found = everything(namespace, None).await;
        if std::mem::take(&mut self.is_loose) {
            self.start_anew_from(&found, namespace.watch().borrow().last);
        }
        self.hold_messages(&found, what);
        let last = namespace.watch().borrow().last;
        assert_eq!(
            last,
            self.facts.keys().last().copied().unwrap_or(0),
            "{what}: the last position"
        );
        self.hold_appends(what);
        self.hold_streams(namespace, &found, what).await;
        self.hold_documents(namespace, what).await;
        assert_eq!(store.verify().await.unwrap().faults, [], "{what}");
    }

    /// Only what is after the last message can be lost.
    fn start_anew_from(&mut self, found: &[Fact], last: u64) {
        let lost = self.facts.split_off(&(last + 1));
        let lost: BTreeSet<u64> = lost.values().map(|fact| fact.mark).collect();
        self.asked.retain(|asked| {
            let marks = asked.parts.iter().flat_map(|part| &part.marks);
            let (gone, count) = (marks.clone().filter(|mark| lost.contains(mark)).count(), marks.count());
            assert!(gone == 0 || gone == count, "a part of {asked:?} is lost");
            matches!(asked.answer, Answer::Unknown) || gone == 0
        });
        self.versions.clear();
        self.documents.clear();
        for (surely, _) in self.floors.values_mut() {
            *surely = 0;
        }
        assert!(found.last().is_none_or(|fact| fact.global <= last));
    }

    fn hold_messages(&mut self, found: &[Fact], what: &str) {
        for fact in found {
            let known = self.facts.insert(fact.global, fact.clone());
            let same = |known: &Fact| {
                (&known.stream, known.position, known.mark) == (&fact.stream, fact.position, fact.mark)
                    && (known.id == fact.id || known.id == MessageId::of(""))
            };
            assert!(
                known.as_ref().is_none_or(same),
                "{what}: {fact:?} stands in the place of {known:?}"
            );
            let floor = self.floors.get(&fact.stream).map_or(0, |(surely, _)| *surely);
            assert!(fact.position >= floor, "{what}: {fact:?} was hidden");
        }
        let shown: BTreeSet<u64> = found.iter().map(|fact| fact.global).collect();
        assert_eq!(shown.len(), found.len(), "{what}: a message comes twice");
        for ((global, fact), expected) in self.facts.iter().zip(1..) {
            assert_eq!(*global, expected, "{what}: a gap in the order of all");
            let floor = self.floors.get(&fact.stream).map_or(0, |(_, may_be)| *may_be);
            assert!(
                shown.contains(global) || fact.position < floor,
                "{what}: {fact:?} is lost"
            );
        }
        let mut next: HashMap<&str, u64> = HashMap::new();
        for fact in self.facts.values() {
            let next = next.entry(&fact.stream).or_default();
            assert_eq!(fact.position, *next, "{what}: a gap in the stream of {fact:?}");
            *next += 1;
        }
    }

    /// Each append is stored as a whole or not at all, once, at the expected position.
    fn hold_appends(&self, what: &str) {
        let mut by_mark = HashMap::new();
        for fact in self.facts.values() {
            let twice = by_mark.insert(fact.mark, fact);
            assert!(twice.is_none(), "{what}: {fact:?} is {twice:?}, too");
        }
        for asked in &self.asked {
            let marks = asked.parts.iter().flat_map(|part| &part.marks);
            let there: Vec<&Fact> = marks.clone().filter_map(|mark| by_mark.get(mark).copied()).collect();
            match asked.answer {
                Answer::Stored(_) => assert_eq!(there.len(), marks.count(), "{what}: {asked:?}"),
                Answer::Refused { .. } => assert!(there.is_empty(), "{what}: {asked:?} was refused"),
                Answer::Unknown => {
                    assert!(
                        there.is_empty() || there.len() == marks.count(),
                        "{what}: a part of {asked:?}"
                    );
                    if there.is_empty() {
                        continue;
                    }
                    for part in &asked.parts {
                        let first = by_mark[&part.marks[0]];
                        assert!(
                            part.expected.allows(first.position as i64 - 1),
                            "{what}: {first:?} of {part:?}"
                        );
                    }
                }
            }
            let together = there.windows(2).all(|pair| pair[0].global + 1 == pair[1].global);
            assert!(together, "{what}: others between those of {asked:?}");
        }
    }

    /// The indexes agree with reading everything.
    async fn hold_streams(&self, namespace: &dyn Namespace, found: &[Fact], what: &str) {
        let mut streams: BTreeMap<&str, i64> = BTreeMap::new();
        for fact in self.facts.values() {
            streams.insert(&fact.stream, fact.position as i64);
        }
        for (stream, version) in &self.versions {
            let known = streams.get(stream.as_str()).copied().unwrap_or(-1);
            assert!(
                known >= *version,
                "{what}: {stream} had version {version} for somebody, and has {known}"
            );
        }
        for (stream, version) in &streams {
            assert_eq!(namespace.version(stream).await.unwrap(), *version, "{what}: {stream}");
            let own: Vec<&Fact> = found.iter().filter(|fact| fact.stream == *stream).collect();
            assert_eq!(
                of_stream(namespace, stream).await.iter().collect::<Vec<_>>(),
                own,
                "{what}: {stream}"
            );
        }
        for category in ["a", "b", "t"] {
            let own = found.iter().filter(|fact| fact.stream.starts_with(category));
            let read = everything(namespace, Some(category)).await;
            assert_eq!(
                read.iter().collect::<Vec<_>>(),
                own.collect::<Vec<_>>(),
                "{what}: category {category}"
            );
        }
        for fact in found.iter().step_by(1 + found.len() / 50) {
            let stored = namespace.by_id(&fact.id).await.unwrap();
            assert_eq!(stored.as_ref().map(fact_of).as_ref(), Some(fact), "{what}: by its id");
        }
        let info = namespace.info().await.unwrap();
        assert_eq!(info.messages, found.len() as u64, "{what}");
    }

    async fn hold_documents(&mut self, namespace: &dyn Namespace, what: &str) {
        for (name, written) in &mut self.documents {
            let found = namespace.document(name).await.unwrap();
            let content = found.map_or(0, |found| {
                u64::from_be_bytes(found.content.as_ref().try_into().unwrap())
            });
            assert!(
                content == written.content || Some(content) == written.unknown,
                "{what}: {content} in place of {written:?}"
            );
            written.content = content;
            written.unknown = None;
        }
    }

    /// Retries appends without a reply, which must reveal their outcome.
    pub async fn ask_again(&mut self, namespace: &dyn Namespace, what: &str) {
        for parts in std::mem::take(&mut self.unknown) {
            if !parts.iter().all(|part| part.has_ids) {
                continue;
            }
            let first = parts.iter().map(|part| part.marks[0]);
            let first: Vec<Option<&Fact>> = first
                .map(|mark| self.facts.values().find(|fact| fact.mark == mark))
                .collect();
            let hidden = |fact: &Fact| CUT.contains(&fact.stream.as_str());
            if first.iter().flatten().any(|fact| hidden(fact)) {
                // An id is free again once its message is hidden.
                continue;
            }
            let answer = append(namespace, &parts).await;
            if first.iter().all(Option::is_some) {
                for (place, first) in answer.unwrap().iter().zip(first.iter().flatten()) {
                    assert_eq!(
                        (place.duplicate, place.first_position, place.first_global),
                        (true, first.position, first.global),
                        "{what}"
                    );
                }
                continue;
            }
            match answer {
                Ok(places) => self.learn(Told {
                    asked: vec![Asked {
                        parts,
                        answer: Answer::Stored(places),
                    }],
                    ..Told::default()
                }),
                Err(EventsError::VersionConflict { .. }) => {}
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
}

async fn everything(namespace: &dyn Namespace, category: Option<&str>) -> Vec<Fact> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let read = CategoryRead {
            category,
            from,
            direction: Direction::Forward,
            max: 1000,
            correlation: None,
            member: None,
            types: &[],
        };
        let page = namespace.read_category(read).await.unwrap();
        found.extend(page.events.iter().map(fact_of));
        from = page.next;
        if from.is_none() {
            return found;
        }
    }
}

/// Reads backward and reverses the result.
async fn of_stream(namespace: &dyn Namespace, stream: &str) -> Vec<Fact> {
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let read = StreamRead {
            stream,
            from: from.map(StreamPosition::Position),
            direction: Direction::Backward,
            max: 300,
            types: &[],
        };
        let page = namespace.read_stream(read).await.unwrap();
        found.extend(page.events.iter().map(fact_of));
        from = page.next;
        if from.is_none() {
            found.reverse();
            return found;
        }
    }
}
