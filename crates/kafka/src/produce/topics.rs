//! Topics that cannot be written to at the moment, for an output with more than one topic: their records wait
//! separately, and records of other topics continue. An output with one topic waits for it as a whole.
//!
//! | a topic | its records | then |
//! |---|---|---|
//! | is rejected by the broker: closed | wait | the broker is queried every second |
//! | exists again: open | are sent, waiting ones first | if it is rejected again, it is closed; otherwise it is forgotten after a while |
//! | was rejected [`ANSWERS_MAX`] times: over | are rejected immediately | the broker is queried every 10 s |
//!
//! Responses are counted instead of time: while no broker responds, it is unknown whether the topic exists.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use thalweg_kit::clock;
use thalweg_record::Text;

/// Rejections until a topic is over; with one query per second, and the client's own wait for a new topic, this takes
/// about 15 s.
pub const ANSWERS_MAX: u32 = 10;
const ASK: Duration = Duration::from_secs(1);
const ASK_WHEN_OVER: Duration = Duration::from_secs(10);
/// A topic that stays open for this long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(30);
/// Limit of remembered topics. Beyond it, a topic is remembered only while records wait for it, which bounds them too:
/// if a closed one were forgotten, newer records would be sent before the waiting ones.
const REMEMBERED_MAX: usize = 1000;

pub struct TopicGates {
    /// Whether there may be more than one topic, so that one does not delay another.
    is_many: bool,
    refused: BTreeMap<Text, RefusedTopic>,
    /// Whether a topic became over or was evicted since the last query.
    is_changed: bool,
}

struct RefusedTopic {
    answers: u32,
    why: String,
    opened: Option<Instant>,
    asked: Option<Instant>,
}

/// Whether a record may be sent.
#[derive(Debug)]
pub enum Gate {
    Open,
    Closed,
    Over(String),
}

impl TopicGates {
    pub fn new(is_many: bool) -> TopicGates {
        TopicGates {
            is_many,
            refused: BTreeMap::new(),
            is_changed: false,
        }
    }

    pub fn is_many(&self) -> bool {
        self.is_many
    }

    pub fn gate(&self, topic: &Text) -> Gate {
        // The usual case.
        if self.refused.is_empty() {
            return Gate::Open;
        }
        match self.refused.get(topic) {
            Some(refused) if refused.opened.is_none() => match refused.answers < ANSWERS_MAX {
                true => Gate::Closed,
                false => Gate::Over(format!(
                    "the topic {topic} cannot be written to ({}); create it or let the brokers create topics, and grant this client the \
                     right to write to it",
                    refused.why
                )),
            },
            _ => Gate::Open,
        }
    }

    /// A record of a topic was rejected.
    pub fn failed(&mut self, topic: &Text, why: &str) {
        if self.refused.len() >= REMEMBERED_MAX && !self.refused.contains_key(topic) {
            self.forget_one();
        }
        let refused = self.refused.entry(topic.clone()).or_insert_with(|| RefusedTopic {
            answers: 0,
            why: String::new(),
            opened: Some(clock::now()),
            asked: None,
        });
        // Records that waited behind a closed topic are no new evidence.
        if refused.opened.take().is_some() {
            refused.answers += 1;
            refused.why = why.to_owned();
            self.is_changed |= refused.answers >= ANSWERS_MAX;
        }
    }

    /// Evicts one topic; if it still fails, it is detected again.
    fn forget_one(&mut self) {
        let is_free = |refused: &RefusedTopic| refused.opened.is_some() || refused.answers >= ANSWERS_MAX;
        let free = self.refused.iter().find(|(_, refused)| is_free(refused));
        if let Some(topic) = free.map(|(topic, _)| topic.clone()) {
            self.refused.remove(&topic);
            self.is_changed = true;
        }
    }

    /// A broker reported whether a topic exists; `Some` is the reason why it cannot be used.
    pub fn heard(&mut self, topic: &Text, missing: Option<String>) {
        let Some(refused) = self.refused.get_mut(topic) else {
            return;
        };
        match missing {
            Some(why) => {
                refused.answers = refused.answers.saturating_add(1);
                refused.why = why;
                self.is_changed |= refused.answers >= ANSWERS_MAX;
            }
            None => refused.opened = Some(clock::now()),
        }
    }

    /// Whether waiting records may have become rejectable or retryable although their topic does not exist.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// Returns the topics to query now.
    pub fn due(&mut self, now: Instant) -> Vec<Text> {
        let since = |at: Instant| now.saturating_duration_since(at);
        self.refused
            .retain(|_, refused| refused.opened.is_none_or(|opened| since(opened) < FORGET_AFTER));
        let is_due = |refused: &RefusedTopic| {
            let pause = if refused.answers < ANSWERS_MAX {
                ASK
            } else {
                ASK_WHEN_OVER
            };
            refused.opened.is_none() && refused.asked.is_none_or(|asked| since(asked) >= pause)
        };
        let due = self.refused.iter_mut().filter(|(_, refused)| is_due(refused));
        let asked = due.map(|(topic, refused)| {
            refused.asked = Some(now);
            topic.clone()
        });
        asked.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHY: &str = "Broker: Unknown topic or partition";

    #[test]
    fn a_topic_that_is_refused_again_and_again_is_over_and_opens_when_it_is_there() {
        let (mut topics, topic) = (TopicGates::new(true), Text::from("t"));
        assert!(matches!(topics.gate(&topic), Gate::Open));
        topics.failed(&topic, WHY);
        for _ in 1..ANSWERS_MAX {
            assert!(matches!(topics.gate(&topic), Gate::Closed));
            // A waiting record is no response.
            topics.failed(&topic, "it waits");
            topics.heard(&topic, Some(WHY.to_owned()));
        }
        let Gate::Over(told) = topics.gate(&topic) else {
            panic!("it is not over");
        };
        assert!(
            told.starts_with("the topic t cannot be written to (Broker: Unknown topic or partition); create it"),
            "{told}"
        );
        assert!(matches!(topics.gate(&Text::from("other")), Gate::Open));
        topics.heard(&topic, None);
        assert!(matches!(topics.gate(&topic), Gate::Open));
        topics.failed(&topic, WHY);
        assert!(matches!(topics.gate(&topic), Gate::Over(_)), "it was over before");
    }

    #[test]
    fn a_topic_is_asked_for_with_pauses_and_forgotten_when_all_is_well() {
        let (mut topics, topic) = (TopicGates::new(true), Text::from("t"));
        topics.failed(&topic, WHY);
        let now = clock::now();
        assert_eq!(topics.due(now), std::slice::from_ref(&topic));
        assert!(topics.due(now).is_empty());
        assert_eq!(topics.due(now + ASK), std::slice::from_ref(&topic));
        (0..ANSWERS_MAX).for_each(|_| topics.heard(&topic, Some(WHY.to_owned())));
        assert!(topics.due(now + ASK * 2).is_empty());
        assert_eq!(topics.due(now + ASK + ASK_WHEN_OVER), std::slice::from_ref(&topic));
        topics.heard(&topic, None);
        assert!(topics.due(clock::now() + FORGET_AFTER).is_empty());
        topics.failed(&topic, WHY);
        assert!(matches!(topics.gate(&topic), Gate::Closed), "it began anew");
    }

    #[test]
    fn all_topics_are_asked_for_at_once_so_that_many_are_over_as_soon_as_one_is() {
        const COUNT: usize = 1000;
        let mut topics = TopicGates::new(true);
        let names: Vec<Text> = (0..COUNT).map(|n| n.to_string().into()).collect();
        names.iter().for_each(|topic| topics.failed(topic, WHY));
        let now = clock::now();
        for n in 0..ANSWERS_MAX - 1 {
            assert!(!topics.take_changed(), "they may come");
            let due = topics.due(now + ASK * n);
            assert_eq!(due.len(), COUNT);
            due.iter().for_each(|topic| topics.heard(topic, Some(WHY.to_owned())));
        }
        assert!(topics.take_changed() && !topics.take_changed());
        assert!(names.iter().all(|topic| matches!(topics.gate(topic), Gate::Over(_))));
        // A topic that is over is not queried for a while; one with waiting records still is.
        let waited_for = Text::from("z");
        topics.failed(&waited_for, WHY);
        assert_eq!(topics.due(now + ASK * ANSWERS_MAX), [waited_for]);
    }

    #[test]
    fn wrong_topics_are_remembered_up_to_a_limit_unless_records_wait_for_them() {
        let (mut topics, waited_for) = (TopicGates::new(true), Text::from("0"));
        topics.failed(&waited_for, WHY);
        for n in 1..2 * REMEMBERED_MAX {
            let topic = n.to_string().into();
            topics.failed(&topic, WHY);
            (0..ANSWERS_MAX).for_each(|_| topics.heard(&topic, Some(WHY.to_owned())));
        }
        assert_eq!(topics.refused.len(), REMEMBERED_MAX);
        assert!(matches!(topics.gate(&waited_for), Gate::Closed));
    }
}
