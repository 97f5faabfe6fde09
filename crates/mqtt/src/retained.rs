//! The newest retained message of each topic. Small ones are in memory, the others in the log.

use std::collections::BTreeSet;

use parking_lot::RwLock;
use thalweg_kit::time::Micros;
use thalweg_mqtt_store::retained::{RetainedIndex, RetainedPage};
use thalweg_mqtt_store::{Message, Offset};

/// The largest message that is kept in memory, in bytes of its stored form.
const IN_MEMORY: usize = 512;

/// A retained message.
#[derive(Clone, Debug)]
pub(crate) struct RetainedEntry {
    /// In the retained partition.
    pub offset: Offset,
    /// Of its stored form.
    bytes: u32,
    expires: Option<Micros>,
    /// `None`: it is only in the log.
    pub body: Option<Message>,
}

/// All retained messages.
#[derive(Default)]
pub(crate) struct RetainedMessages {
    inner: RwLock<RetainedInner>,
}

#[derive(Default)]
struct RetainedInner {
    index: RetainedIndex<RetainedEntry>,
    bytes: u64,
    /// Topics by the time at which their messages expire.
    expiring: BTreeSet<(Micros, Box<str>)>,
    /// All records before this one have taken effect.
    applied: Offset,
}

impl RetainedInner {
    /// The message of a topic has gone.
    fn forget(&mut self, topic: &str, before: Option<RetainedEntry>) {
        let Some(before) = before else { return };
        self.bytes -= u64::from(before.bytes);
        let has_same = |entry: &RetainedEntry| entry.expires == before.expires;
        if let Some(expires) = before.expires
            && !self.index.get(topic).is_some_and(has_same)
        {
            self.expiring.remove(&(expires, topic.into()));
        }
    }
}

impl RetainedMessages {
    pub fn set(&self, message: &Message, offset: Offset) {
        let bytes = message.record().len();
        let entry = RetainedEntry {
            offset,
            bytes: bytes as u32,
            expires: message.expires(),
            body: (bytes <= IN_MEMORY).then(|| message.clone()),
        };
        let mut inner = self.inner.write();
        inner.applied = offset + 1;
        inner.bytes += bytes as u64;
        if let Some(expires) = message.expires() {
            inner.expiring.insert((expires, message.topic().into()));
        }
        let before = inner.index.insert(message.topic(), entry);
        inner.forget(message.topic(), before);
    }

    pub fn remove(&self, topic: &str, offset: Offset) {
        let mut inner = self.inner.write();
        inner.applied = offset + 1;
        let before = inner.index.remove(topic);
        inner.forget(topic, before);
    }

    /// Removes what has expired at `now`. The log need not know: it says when each message expires.
    pub fn expire(&self, now: Micros) {
        let mut inner = self.inner.write();
        while let Some((expires, topic)) = inner.expiring.first().cloned().filter(|(expires, _)| *expires <= now) {
            inner.expiring.remove(&(expires, topic.clone()));
            let before = inner.index.remove(&topic);
            inner.forget(&topic, before);
        }
    }

    /// All records before this one have taken effect.
    pub fn applied(&self) -> Offset {
        self.inner.read().applied
    }

    pub fn has(&self, topic: &str) -> bool {
        self.inner.read().index.get(topic).is_some()
    }

    /// The number of messages, and the bytes of their stored forms.
    pub fn size(&self) -> (usize, u64) {
        let inner = self.inner.read();
        (inner.index.len(), inner.bytes)
    }

    /// Visits up to `visits` topics from `from` on, and returns those that match the filter.
    pub fn find(&self, filter: &str, from: &str, visits: usize) -> RetainedPage<RetainedEntry> {
        self.inner.read().index.find(filter, from, visits)
    }

    /// Whether a record of the retained partition is the newest of its topic.
    pub fn is_newest(&self, topic: &str, offset: Offset) -> bool {
        self.inner
            .read()
            .index
            .get(topic)
            .is_some_and(|entry| entry.offset == offset)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_mqtt_store::MessageParts;

    use super::*;

    #[test]
    fn messages_expire_and_what_replaces_them_counts() {
        let retained = RetainedMessages::default();
        let message = |topic, payload, expires| {
            Message::new(&MessageParts {
                topic,
                payload,
                expires,
                ..MessageParts::default()
            })
        };
        for (offset, (topic, expires)) in (0..).zip([
            ("a", Some(10)),
            ("b", Some(20)),
            ("a", None),
            ("b", Some(20)),
            ("c", Some(5)),
        ]) {
            retained.set(&message(topic, b"x", expires), offset);
        }
        assert_eq!((retained.size().0, retained.applied()), (3, 5));
        retained.expire(10);
        assert!(retained.has("a") && retained.has("b") && !retained.has("c"));
        retained.expire(20);
        assert!(retained.has("a") && !retained.has("b"));
        assert!(retained.is_newest("a", 2) && !retained.is_newest("a", 0));
        retained.remove("a", 5);
        assert_eq!((retained.size(), retained.applied()), ((0, 0), 6));
        assert!(retained.inner.read().expiring.is_empty());
    }
}
