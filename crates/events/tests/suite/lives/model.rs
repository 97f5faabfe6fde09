//! What clients were told, and so what must be true of each message.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_events::{AppendOutcome, MessageId, Retention, StoredEvent, Uuid, names};
use thalweg_log::Micros;

use super::machine::SECOND;

/// Whether a message may be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was acknowledged or seen: it is shown unless a rule hides it.
    Live,
    /// Nobody knows whether it was stored, or whether it was scavenged.
    Maybe,
    /// It was deleted or scavenged, or refused.
    Gone,
}

/// Whether the subscription may hand it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    No,
    Maybe,
    Yes,
}

/// Where a message is, in its stream and in its namespace.
pub type Place = (u64, u64);

#[derive(Clone, Debug)]
pub struct Known {
    pub namespace: String,
    /// Which of the namespaces that had the name one after the other, and how often that was cleared.
    pub era: u64,
    pub stream: String,
    pub place: Option<Place>,
    pub fate: Fate,
    pub settled: Settled,
    /// A rule may have hidden it, so a subscription may have passed it over.
    pub was_ruled: bool,
    /// In log time.
    pub at: Micros,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Done,
    /// For a reason by which nothing has happened.
    Refused,
    /// The client has left, or got an error after which it does not know.
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
    /// The streams and categories that ever had a rule or were deleted, also before their namespace was cleared.
    ever_hidden: HashSet<(String, String)>,
    next: u64,
    /// The clock was set back: what is too old may be shown for some time.
    pub went_back: bool,
}

/// Of a message's data.
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
    /// A text that no message has had.
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

    /// It was acknowledged or seen there.
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

    /// It was shown to somebody.
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

    /// Whether a rule hides a message surely, and whether it may.
    pub fn hidden(&self, known: &Known, version: i64, now: Micros) -> (bool, bool) {
        let (Some(rule), Some((position, _))) = (self.rule_of(&known.namespace, &known.stream), known.place) else {
            return (false, false);
        };
        let of_count = rule
            .max_count
            .map_or(0, |count| (version + 1).unsigned_abs().saturating_sub(count));
        let floor = of_count.max(rule.truncate_before.unwrap_or(0));
        // Time stands still within a step, so nothing is at the limit but what is within a second of it.
        let age = now - known.at;
        let (surely_old, maybe_old) = match rule.max_age {
            Some(max) => (age > max + SECOND && !self.went_back, age > max - SECOND),
            None => (false, false),
        };
        (position < floor || surely_old, position < floor || maybe_old)
    }

    /// Whether a rule of before may hide a message once what took the rule back is lost.
    pub fn was_ever_hidden(&self, known: &Known) -> bool {
        let has = |of: &str| self.ever_hidden.contains(&(known.namespace.clone(), of.to_owned()));
        has(&known.stream) || has(names::category(&known.stream))
    }

    /// A subscription may have passed over what a rule hides now.
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

    /// Everything in a namespace is gone, and positions begin anew.
    pub fn emptied(&mut self, namespace: &str) {
        let era = self.era(namespace);
        let own = |known: &&mut Known| (&*known.namespace, known.era) == (namespace, era);
        for known in self.messages.values_mut().filter(own) {
            if known.place.is_some() {
                known.fate = Fate::Gone;
            } else if known.fate == Fate::Maybe {
                // What its client left behind may come yet.
                known.era += 1;
            }
        }
        self.deleted_before.retain(|(own, _), _| own != namespace);
        *self.eras.entry(namespace.to_owned()).or_default() += 1;
    }

    /// The namespace itself was made again.
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

    /// What was hidden is gone, but the last message of a stream, which says its version.
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

    /// Those that must be in no file any more.
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

    /// The subscription of a namespace begins at its first message.
    pub fn reset(&mut self, namespace: &str) {
        for known in self.messages.values_mut().filter(|known| known.namespace == namespace) {
            known.settled = Settled::No;
        }
    }
}
