//! What clients were told, and so what must be true of each message: in the work group, in the stream group, and by the
//! time that has passed.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::Micros;

use crate::support::SECOND;

/// How often a message may still be delivered by the work group or be a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Once: it was acknowledged, and is not settled.
    Live,
    /// At most once: it is unknown whether it was stored, or whether it was settled.
    Maybe,
    /// Not at all.
    Settled,
    /// Unknown: it may exist as a dead letter, and again because its group sought back.
    Any,
}

/// Whether the stream group has yet to read a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It will be read, and more than once if it is not committed.
    Unread,
    Maybe,
    /// Committed: it is not read again.
    Done,
}

/// The times of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Life {
    pub ttl: Option<Micros>,
    /// In log time.
    pub not_before: Option<Micros>,
    /// By the wall clock.
    pub deliver_at: Option<Micros>,
}

/// Which messages the queue retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Until both groups are done with it.
    UntilSettled,
    /// For this long, whoever has read it.
    For(Micros),
    /// The newest, and what a group has yet to read.
    Newest(u64),
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub kept: Kept,
    /// Expired messages become dead letters.
    pub expired_are_letters: bool,
}

#[derive(Clone, Debug)]
struct Known {
    fate: Fate,
    reading: Reading,
    /// It may have been rejected.
    may_be_letter: bool,
    /// It may have been resent, without its times.
    may_be_resent: bool,
    /// Number of its queue among those that had the name one after the other.
    queue: u64,
    place: Option<(u32, u64)>,
    life: Life,
    /// In log time; if its producer disconnected, it may be later.
    produced: Micros,
    is_exact: bool,
    /// The latest wall-clock time seen since.
    shown: Micros,
}

impl Known {
    /// It lives at least until then.
    fn least_end(&self) -> Option<Micros> {
        let begins = self.life.not_before.map_or(self.produced, |at| at.max(self.produced));
        Some(begins + self.life.ttl?)
    }

    fn may_have_expired(&self, latest: Micros) -> bool {
        self.least_end().is_some_and(|end| end <= latest)
    }

    fn has_expired(&self, now: Micros) -> bool {
        let is_known = self.is_exact && self.life.deliver_at.is_none();
        is_known && self.least_end().is_some_and(|end| end <= now)
    }

    /// Or has been due.
    fn is_due(&self, latest: Micros) -> bool {
        let by_log = self.life.not_before.is_none_or(|at| at <= latest);
        // A wall clock that is off by less than a second was not set.
        let by_wall = self.life.deliver_at.is_none_or(|at| at < self.shown + SECOND);
        by_log && by_wall
    }
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Done,
    /// For a reason that means that nothing has happened.
    Refused,
    /// The client has disconnected, or got an error after which the outcome is unknown.
    Unknown,
}

pub struct Model {
    rules: Rules,
    messages: BTreeMap<String, Known>,
    queue: u64,
    next: u64,
    /// Log time, and its maximum so far: a crash may lose some of it.
    now: Micros,
    latest: Micros,
    wall: Micros,
}

impl Model {
    pub fn new(rules: Rules) -> Model {
        Model {
            rules,
            messages: BTreeMap::new(),
            queue: 0,
            next: 0,
            now: 0,
            latest: 0,
            wall: 0,
        }
    }

    /// A text that no message has had.
    pub fn new_text(&mut self) -> String {
        self.next += 1;
        format!("message {}", self.next)
    }

    pub fn time_is(&mut self, now: Micros, wall: Micros) {
        (self.now, self.wall) = (now, wall);
        self.latest = self.latest.max(now);
        let (latest, letters) = (self.latest, self.rules.expired_are_letters);
        self.each(|_, known| {
            known.shown = known.shown.max(wall);
            known.may_be_letter |= letters && known.may_have_expired(latest);
        });
    }

    /// The latest log time.
    pub fn latest(&self) -> Micros {
        self.latest
    }

    pub fn produced(&mut self, text: String, life: Life, place: Option<(u32, u64)>, told: Told) {
        let (fate, reading) = match told {
            Told::Done => (Fate::Live, Reading::Unread),
            Told::Unknown => (Fate::Maybe, Reading::Maybe),
            Told::Refused => return,
        };
        let known = Known {
            fate,
            reading,
            may_be_letter: false,
            may_be_resent: false,
            queue: self.queue,
            place,
            life,
            produced: self.now,
            is_exact: told == Told::Done,
            shown: self.wall,
        };
        assert!(self.messages.insert(text, known).is_none());
    }

    /// It was delivered to a consumer of the work group.
    pub fn handed_out(&self, text: &str) {
        let known = self.of_this_queue(text);
        assert_ne!(known.fate, Fate::Settled, "{text} was settled, and is handed out");
        if !known.may_be_resent {
            self.comes_in_time(text, known);
        }
    }

    /// It was delivered to a reader of the stream group.
    pub fn read(&mut self, text: &str, place: (u32, u64)) {
        let known = self.of_this_queue(text);
        assert_ne!(known.reading, Reading::Done, "{text} was committed, and is read again");
        self.comes_in_time(text, known);
        if let Some(known) = self.messages.get_mut(text) {
            assert!(
                known.place.is_none_or(|known| known == place),
                "{text} has moved to {place:?}"
            );
            known.place = Some(place);
        }
    }

    fn of_this_queue(&self, text: &str) -> &Known {
        let known = self.messages.get(text);
        let known = known.unwrap_or_else(|| panic!("{text} was refused, and is there"));
        assert_eq!(known.queue, self.queue, "{text} is of a queue that was deleted");
        known
    }

    fn comes_in_time(&self, text: &str, known: &Known) {
        assert!(
            !known.has_expired(self.now),
            "{text} has expired, and is handed out: {known:?}"
        );
        assert!(known.is_due(self.latest), "{text} is handed out too early: {known:?}");
    }

    pub fn acked(&mut self, text: &str, told: Told) {
        self.each(|name, known| match (told, known.fate) {
            _ if name != text => {}
            (Told::Done, Fate::Live | Fate::Maybe) => known.fate = Fate::Settled,
            (Told::Unknown, Fate::Live) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// It is a dead letter or is redelivered.
    pub fn rejected(&mut self, text: &str, told: Told) {
        if let Some(known) = self.messages.get_mut(text).filter(|_| told != Told::Refused) {
            known.may_be_letter = true;
        }
    }

    pub fn resent(&mut self) {
        self.each(|_, known| known.may_be_resent |= known.may_be_letter);
    }

    /// All waiting messages of the work group were dropped; dead letters stay.
    pub fn dropped(&mut self, told: Told) {
        self.each(|_, known| match (told, known.fate) {
            (Told::Done, Fate::Live) if !known.may_be_letter => known.fate = Fate::Settled,
            (Told::Done | Told::Unknown, Fate::Live) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// The work group reads everything that still exists again, or is a new one that begins there.
    pub fn set_back(&mut self, told: Told) {
        self.each(|_, known| match (told, known.fate) {
            (Told::Refused, _) => {}
            _ if known.may_be_letter => known.fate = Fate::Any,
            (_, Fate::Settled) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// The work group is deleted, and with it the retention of messages that no other group needs; the next one begins
    /// with what is left.
    pub fn group_made_again(&mut self) {
        let (rules, latest) = (self.rules, self.latest);
        self.set_back(Told::Done);
        self.each(|_, known| {
            let stays = match rules.kept {
                Kept::For(age) => latest <= known.produced + age,
                Kept::UntilSettled | Kept::Newest(_) => known.reading == Reading::Unread,
            };
            if known.fate == Fate::Live && !stays {
                known.fate = Fate::Maybe;
            }
        });
    }

    /// The reader acked a message: it is read again only if the ack was not confirmed, or is not committed.
    pub fn read_acked(&mut self, text: &str, told: Told) {
        if let Some(known) = self.messages.get_mut(text).filter(|_| told != Told::Refused)
            && known.reading == Reading::Unread
        {
            known.reading = Reading::Maybe;
        }
    }

    /// Messages of a partition before an offset are committed for good.
    pub fn committed(&mut self, partition: u32, offset: u64) {
        self.each(|_, known| {
            if known.place.is_some_and(|(at, place)| at == partition && place < offset) {
                known.reading = Reading::Done;
            }
        });
    }

    /// The stream group continues at the end.
    pub fn stream_skipped(&mut self, told: Told) {
        self.each(|_, known| match (told, known.reading) {
            (Told::Done, Reading::Unread) => known.reading = Reading::Done,
            (Told::Unknown, Reading::Unread) => known.reading = Reading::Maybe,
            _ => {}
        });
    }

    /// The stream group continues with the oldest message.
    pub fn stream_set_back(&mut self, told: Told) {
        self.each(|_, known| {
            if told != Told::Refused && known.reading == Reading::Done {
                known.reading = Reading::Maybe;
            }
        });
    }

    /// Dead letters were discarded: those seen before, if the call was done.
    pub fn letters_purged(&mut self, seen: &[String], told: Told) {
        self.each(|name, known| match (told, known.fate) {
            (Told::Refused, _) | (_, Fate::Any) => {}
            (Told::Done, Fate::Live) if seen.contains(name) => known.fate = Fate::Settled,
            (_, Fate::Live) if known.may_be_letter => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// The queue was recreated.
    pub fn made_again(&mut self) {
        self.queue += 1;
    }

    /// Files were damaged, and their content given up.
    pub fn damaged(&mut self) {
        self.each(|_, known| {
            known.fate = Fate::Any;
            known.reading = Reading::Maybe;
            // Offsets may be reused, and log time may be shifted.
            known.place = None;
            known.is_exact = false;
        });
    }

    /// Compares how often each message existed at the end, delivered by the work group and as a dead letter, and what
    /// was read.
    pub fn check(&self, found: &BTreeMap<String, u32>, read: &BTreeSet<String>) -> u64 {
        for text in found.keys().chain(read) {
            self.of_this_queue(text);
        }
        let mut expired = 0;
        for (text, known) in self.messages.iter().filter(|(_, known)| known.queue == self.queue) {
            let times = found.get(text).copied().unwrap_or(0);
            let may_be_gone = known.may_have_expired(self.latest);
            let is_right = match known.fate {
                Fate::Live if may_be_gone && !self.rules.expired_are_letters => times <= 1,
                Fate::Live => times == 1,
                Fate::Maybe => times <= 1,
                Fate::Settled => times == 0,
                Fate::Any => true,
            };
            assert!(is_right, "{text}: {known:?}, and it is there {times} times");
            let is_lost = known.reading == Reading::Unread && !may_be_gone && !self.may_be_let_go(known);
            assert!(!is_lost || read.contains(text), "{text} is not read: {known:?}");
            expired += u64::from(known.has_expired(self.latest));
        }
        expired
    }

    /// By its age alone: the newest are retained, and so are those that the stream group has not read.
    fn may_be_let_go(&self, known: &Known) -> bool {
        match self.rules.kept {
            Kept::For(age) => known.produced + age < self.latest,
            Kept::UntilSettled | Kept::Newest(_) => false,
        }
    }

    fn each(&mut self, mut change: impl FnMut(&String, &mut Known)) {
        let own = self.messages.iter_mut().filter(|(_, known)| known.queue == self.queue);
        own.for_each(|(text, known)| change(text, known));
    }
}
