//! What clients were told, and so what must be true of each message.

use std::collections::BTreeMap;

/// How often a message may still be handed out or be a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Once: it was acknowledged, and is not settled.
    Live,
    /// Once or not at all: nobody knows whether it was stored, or whether it was settled.
    Maybe,
    /// Not at all.
    Settled,
    /// Nothing is known any more: it may be there as a dead letter, and again since its group was set back.
    Any,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    fate: Fate,
    /// Somebody may have rejected it.
    may_be_letter: bool,
    /// Of which of the queues that had the name one after the other.
    queue: u64,
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
    messages: BTreeMap<String, Known>,
    queue: u64,
    next: u64,
}

impl Model {
    /// A text that no message has had.
    pub fn new_text(&mut self) -> String {
        self.next += 1;
        format!("message {}", self.next)
    }

    pub fn produced(&mut self, text: String, told: Told) {
        let fate = match told {
            Told::Done => Fate::Live,
            Told::Unknown => Fate::Maybe,
            Told::Refused => return,
        };
        let known = Known {
            fate,
            may_be_letter: false,
            queue: self.queue,
        };
        assert!(self.messages.insert(text, known).is_none());
    }

    /// It was given to a consumer.
    pub fn handed_out(&self, text: &str) {
        let known = self.messages.get(text);
        let known = known.unwrap_or_else(|| panic!("{text} was refused, and is handed out"));
        assert_eq!(known.queue, self.queue, "{text} is of a queue that was deleted");
        assert_ne!(known.fate, Fate::Settled, "{text} was settled, and is handed out");
    }

    pub fn acked(&mut self, text: &str, told: Told) {
        self.each(|name, known| match (told, known.fate) {
            _ if name != text => {}
            (Told::Done, Fate::Live | Fate::Maybe) => known.fate = Fate::Settled,
            (Told::Unknown, Fate::Live) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// It is a dead letter or is handed out again.
    pub fn rejected(&mut self, text: &str, told: Told) {
        if let Some(known) = self.messages.get_mut(text).filter(|_| told != Told::Refused) {
            known.may_be_letter = true;
        }
    }

    /// Everything that waits was dropped; dead letters stay.
    pub fn purged(&mut self, told: Told) {
        self.each(|_, known| match (told, known.fate) {
            (Told::Done, Fate::Live) if !known.may_be_letter => known.fate = Fate::Settled,
            (Told::Done | Told::Unknown, Fate::Live) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// The group reads again what is still there, or is a new one that begins with that.
    pub fn set_back(&mut self, told: Told) {
        self.each(|_, known| match (told, known.fate) {
            (Told::Refused, _) => {}
            _ if known.may_be_letter => known.fate = Fate::Any,
            (_, Fate::Settled) => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// Dead letters were thrown away: those that were seen before, if it was done.
    pub fn letters_purged(&mut self, seen: &[String], told: Told) {
        self.each(|name, known| match (told, known.fate) {
            (Told::Refused, _) | (_, Fate::Any) => {}
            (Told::Done, Fate::Live) if seen.contains(name) => known.fate = Fate::Settled,
            (_, Fate::Live) if known.may_be_letter => known.fate = Fate::Maybe,
            _ => {}
        });
    }

    /// The queue is another one.
    pub fn made_again(&mut self) {
        self.queue += 1;
    }

    /// Files were damaged, and what was in them given up.
    pub fn damaged(&mut self) {
        self.each(|_, known| known.fate = Fate::Any);
    }

    /// How often each message was there at the end, handed out and as a dead letter.
    pub fn check(&self, found: &BTreeMap<String, u32>) {
        for text in found.keys() {
            let known = self.messages.get(text);
            let known = known.unwrap_or_else(|| panic!("{text} was refused, and is there"));
            assert_eq!(known.queue, self.queue, "{text} is of a queue that was deleted");
        }
        for (text, known) in self.messages.iter().filter(|(_, known)| known.queue == self.queue) {
            let times = found.get(text).copied().unwrap_or(0);
            let is_right = match known.fate {
                Fate::Live => times == 1,
                Fate::Maybe => times <= 1,
                Fate::Settled => times == 0,
                Fate::Any => true,
            };
            assert!(is_right, "{text}: {known:?}, and it is there {times} times");
        }
    }

    fn each(&mut self, mut change: impl FnMut(&String, &mut Known)) {
        let own = self.messages.iter_mut().filter(|(_, known)| known.queue == self.queue);
        own.for_each(|(text, known)| change(text, known));
    }
}
