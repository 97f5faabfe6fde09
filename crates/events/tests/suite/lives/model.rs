//! The replies to clients and the expected state of each message.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_events::{AppendOutcome, MessageId, Retention, StoredEvent, Uuid, names};
use thalweg_log::Micros;

use super::machine::SECOND;

/// Whether a message may be visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was acknowledged or seen, so it is visible unless a rule hides it.
    Live,
    /// It is unknown whether it was stored, or whether it was scavenged.
    Maybe,
    /// It was deleted, scavenged or refused.
    Gone,
}

/// Whether the message was settled by the subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    No,
    Maybe,
    Yes,
}

/// The positions of a message in its stream and in its namespace.
pub type Place = (u64, u64);

#[derive(Clone, Debug)]
pub struct Known {
    pub namespace: String,
    /// Counts recreations and clearings of the namespace with this name.
    pub era: u64,
    pub stream: String,
    pub place: Option<Place>,
    pub fate: Fate,
    pub settled: Settled,
    /// A rule may have hidden it, so a subscription may have skipped it.
    pub was_ruled: bool,
    /// In log time.
    pub at: Micros,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Done,
    /// Refused without any effect.
    Refused,
    /// The client went away, or got an error that does not reveal the outcome.
    Unknown,
}

#[derive(Default)]
pub struct Model {
    pub messages: BTreeMap<String, Known>,
    places: HashMap<(String, u64, String, u64), String>,
    globals: HashMap<(String, u64, u64), String>,
    eras: HashMap<String, u64>,
    /// By namespace and stream or category.
    rules: HashMap<(String, String), Retention>,
    deleted_before: HashMap<(String, String), u64>,
    /// The streams and categories that ever had a rule or were deleted, including before a clearing.
    ever_hidden: HashSet<(String, String)>,
    next: u64,
    /// The clock was set back, so messages that are too old may be visible for a while.
    pub went_back: bool,
}

/// The text in a message's data.
pub fn text_of(stored: &StoredEvent) -> String {
    text_in(stored.event().data).to_owned()
}

pub fn text_in(data: &str) -> &str {
    let text = data
        .strip_prefix("{\"text\":\"")
        .and_then(|rest| rest.split('"').next());
    text.expect("a message that somebody appended")
}

/// The id that a client gives to a message.
pub fn id_of(text: &str) -> MessageId {
    let mut bytes = [0x5a; 16];
    let number: u64 = text
        .trim_matches(['<', '>'])
        .trim_start_matches("message ")
        .parse()
        .unwrap();
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    MessageId::Uuid(Uuid(bytes))
}

impl Model {
    /// A unique text.
    pub fn new_text(&mut self) -> String {
        self.next += 1;
        format!("<message {:09}>", self.next)
    }

    pub fn era(&self, namespace: &str) -> u64 {
        self.eras.get(namespace).copied().unwrap_or(0)
    }

    pub fn appended(&mut self, namespace: &str, stream: &str, texts: &[String], told: Told, at: Micros) {
        let fate = match told {
            Told::Done => Fate::Live,
            Told::Refused => Fate::Gone,
            Told::Unknown => Fate::Maybe,
        };
        for text in texts {
            let known = Known {
                namespace: namespace.to_owned(),
                era: self.era(namespace),
                stream: stream.to_owned(),
                place: None,
                fate,
                settled: Settled::No,
                was_ruled: false,
                at,
            };
            let before = self.messages.insert(text.clone(), known);
            assert!(
                before.is_none_or(|before| before.fate == Fate::Maybe),
                "{text} was there"
            );
        }
    }

    pub fn placed(&mut self, texts: &[String], appended: &AppendOutcome) {
        assert_eq!(appended.count, texts.len() as u64);
        for (n, text) in (0..).zip(texts) {
            self.is_at(text, (appended.first_position + n, appended.first_global + n));
        }
    }

    /// Records that it was acknowledged or seen at a position.
    fn is_at(&mut self, text: &str, place: Place) {
        let known = self.messages.get_mut(text);
        let known = known.unwrap_or_else(|| panic!("{text} was never asked for, and is there"));
        if let Some(before) = known.place {
            assert_eq!(before, place, "{text} is somewhere else now");
            return;
        }
        (known.place, known.fate) = (Some(place), Fate::Live);
        let (namespace, era, stream) = (known.namespace.clone(), known.era, known.stream.clone());
        let of_stream = (namespace.clone(), era, stream, place.0);
        let other = self.places.insert(of_stream, text.to_owned());
        assert_eq!(other, None, "position {} was given to {text}, too", place.0);
        let other = self.globals.insert((namespace, era, place.1), text.to_owned());
        assert_eq!(other, None, "global position {} was given to {text}, too", place.1);
    }

    /// Records that it was returned by a read.
    pub fn shown(&mut self, namespace: &str, stored: &StoredEvent) -> String {
        let (text, event) = (text_of(stored), stored.event());
        let era = self.era(namespace);
        let known = self.messages.get(&text);
        let known = known.unwrap_or_else(|| panic!("{text} was never asked for, and is there"));
        assert_ne!(known.fate, Fate::Gone, "{text} is gone, and is shown: {known:?}");
        assert_eq!(
            (&*known.namespace, known.era, &*known.stream),
            (namespace, era, event.stream),
            "{text}"
        );
        self.is_at(&text, (event.position, event.global));
        text
    }

    pub fn rule(&self, namespace: &str, of: &str) -> Option<Retention> {
        self.rules.get(&(namespace.to_owned(), of.to_owned())).copied()
    }

    fn rule_of(&self, namespace: &str, stream: &str) -> Option<Retention> {
        let own = self.rule(namespace, stream);
        own.or_else(|| self.rule(namespace, names::category(stream)))
    }

    pub fn has_rule(&self, namespace: &str, stream: &str) -> bool {
        self.rule_of(namespace, stream).is_some()
    }

    pub fn set_rule(&mut self, namespace: &str, of: &str, rule: Option<Retention>) {
        let key = (namespace.to_owned(), of.to_owned());
        self.ever_hidden.insert(key.clone());
        match rule {
            Some(rule) => self.rules.insert(key, rule),
            None => self.rules.remove(&key),
        };
    }

    /// Whether a rule certainly hides a message, and whether it may.
    pub fn hidden(&self, known: &Known, version: i64, now: Micros) -> (bool, bool) {
        let (Some(rule), Some((position, _))) = (self.rule_of(&known.namespace, &known.stream), known.place) else {
            return (false, false);
        };
        let of_count = rule
            .max_count
            .map_or(0, |count| (version + 1).unsigned_abs().saturating_sub(count));
        let floor = of_count.max(rule.truncate_before.unwrap_or(0));
        // Time does not advance within a step, so a margin of a second suffices.
        let age = now - known.at;
        let (surely_old, maybe_old) = match rule.max_age {
            Some(max) => (age > max + SECOND && !self.went_back, age > max - SECOND),
            None => (false, false),
        };
        (position < floor || surely_old, position < floor || maybe_old)
    }

    /// Whether an earlier rule may hide a message if the removal of that rule is lost.
    pub fn was_ever_hidden(&self, known: &Known) -> bool {
        let has = |of: &str| self.ever_hidden.contains(&(known.namespace.clone(), of.to_owned()));
        has(&known.stream) || has(names::category(&known.stream))
    }

    /// Notes which messages a subscription may have skipped because of current rules.
    pub fn note_rules(&mut self) {
        let rules = &self.rules;
        for known in self.messages.values_mut() {
            let has = |of: &str| rules.contains_key(&(known.namespace.clone(), of.to_owned()));
            known.was_ruled |= has(&known.stream) || has(names::category(&known.stream));
        }
    }

    pub fn deleted(&mut self, namespace: &str, stream: &str, version: i64) {
        let key = (namespace.to_owned(), stream.to_owned());
        self.ever_hidden.insert(key.clone());
        self.deleted_before.insert(key, (version + 1).unsigned_abs());
        let era = self.era(namespace);
        for known in self.messages.values_mut() {
            let is_of_it = (&*known.namespace, known.era, &*known.stream) == (namespace, era, stream);
            if is_of_it && known.place.is_some() {
                known.fate = Fate::Gone;
            }
        }
    }

    /// Records that a namespace was emptied and its positions start again.
    pub fn emptied(&mut self, namespace: &str) {
        let era = self.era(namespace);
        let own = |known: &&mut Known| (&*known.namespace, known.era) == (namespace, era);
        for known in self.messages.values_mut().filter(own) {
            if known.place.is_some() {
                known.fate = Fate::Gone;
            } else if known.fate == Fate::Maybe {
                // An abandoned append may still be stored.
                known.era += 1;
            }
        }
        self.deleted_before.retain(|(own, _), _| own != namespace);
        *self.eras.entry(namespace.to_owned()).or_default() += 1;
    }

    /// Records that the namespace was recreated.
    pub fn made_again(&mut self, namespace: &str) {
        let era = self.era(namespace);
        let own = |known: &&mut Known| (&*known.namespace, known.era) == (namespace, era);
        self.messages
            .values_mut()
            .filter(own)
            .for_each(|known| known.fate = Fate::Gone);
        self.emptied(namespace);
        self.rules.retain(|(own, _), _| own != namespace);
    }

    /// Records that hidden messages are gone, except for the last of each stream, which has its version.
    pub fn scavenged(&mut self, versions: &HashMap<(String, String), i64>, now: Micros) {
        let decided: Vec<(String, Fate)> = self
            .messages
            .iter()
            .filter(|(_, known)| known.fate == Fate::Live && known.era == self.era(&known.namespace))
            .filter_map(|(text, known)| {
                let key = (known.namespace.clone(), known.stream.clone());
                let version = versions.get(&key).copied().unwrap_or(-1);
                let (position, _) = known.place?;
                let is_last = position.cast_signed() == version;
                match self.hidden(known, version, now) {
                    (true, _) if !is_last => Some((text.clone(), Fate::Gone)),
                    (false, true) if !is_last => Some((text.clone(), Fate::Maybe)),
                    _ => None,
                }
            })
            .collect();
        for (text, fate) in decided {
            if let Some(known) = self.messages.get_mut(&text) {
                known.fate = fate;
            }
        }
    }

    /// Messages that must be in no file any more.
    pub fn gone(&self) -> impl Iterator<Item = &String> {
        let gone = self.messages.iter().filter(|(_, known)| known.fate == Fate::Gone);
        gone.map(|(text, _)| text)
    }

    pub fn settle(&mut self, text: &str, told: Told) {
        if let Some(known) = self.messages.get_mut(text) {
            known.settled = match (told, known.settled) {
                (Told::Done, _) => Settled::Yes,
                (Told::Unknown, Settled::No) => Settled::Maybe,
                (_, before) => before,
            };
        }
    }

    /// Records that the subscription restarts at the first message.
    pub fn reset(&mut self, namespace: &str) {
        for known in self.messages.values_mut().filter(|known| known.namespace == namespace) {
            known.settled = Settled::No;
        }
    }
}
