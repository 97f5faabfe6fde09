//! Groups the messages of a write into appends: all of them by stream, as far as the limits of an append and the
//! expected versions allow. The order within a stream is preserved.

use std::collections::HashMap;

use thalweg_events::{APPEND_BYTES_MAX, APPEND_MESSAGES_MAX, APPEND_STREAMS_MAX, Append, ExpectedVersion, NewEvent};

use crate::prepare::PreparedEvent;

/// The most bytes of a message beyond type, data, metadata and the name of its stream.
const MESSAGE_BYTES: usize = 128;

/// Messages of one stream, in order; never empty.
pub type StreamGroup = Vec<PreparedEvent>;

/// Appends to perform one after the other; each stores everything or nothing.
pub fn appends(messages: Vec<PreparedEvent>) -> Vec<Vec<StreamGroup>> {
    let mut all: Vec<AppendBuilder> = Vec::new();
    for message in messages {
        let bytes = message.bytes() + message.stream.len() + MESSAGE_BYTES;
        match all.last_mut().filter(|last| last.takes(&message, bytes)) {
            Some(last) => last.add(message, bytes),
            None => {
                let mut next = AppendBuilder::default();
                next.add(message, bytes);
                all.push(next);
            }
        }
    }
    all.into_iter().map(|building| building.groups).collect()
}

#[derive(Default)]
struct AppendBuilder {
    groups: Vec<StreamGroup>,
    /// The index of each stream's group.
    places: HashMap<String, usize>,
    count: usize,
    bytes: usize,
}

impl AppendBuilder {
    fn takes(&self, message: &PreparedEvent, bytes: usize) -> bool {
        if self.count == APPEND_MESSAGES_MAX || self.bytes + bytes > APPEND_BYTES_MAX {
            return false;
        }
        match self.places.get(&message.stream).and_then(|at| self.groups.get(*at)) {
            None => self.groups.len() < APPEND_STREAMS_MAX,
            Some(group) => follows(group, message),
        }
    }

    fn add(&mut self, message: PreparedEvent, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
        let next = self.groups.len();
        let at = *self.places.entry(message.stream.clone()).or_insert(next);
        match self.groups.get_mut(at) {
            Some(group) => group.push(message),
            None => self.groups.push(vec![message]),
        }
    }
}

/// Whether the message's expected version holds once the rest of its group is stored. If not, the message becomes an
/// append of its own, and the store decides.
fn follows(group: &StreamGroup, message: &PreparedEvent) -> bool {
    let first = group.first().map_or(ExpectedVersion::Any, |first| first.expected);
    match (first, message.expected) {
        (_, ExpectedVersion::Any | ExpectedVersion::Exists) => true,
        (ExpectedVersion::Version(first), ExpectedVersion::Version(expected)) => {
            i64::try_from(group.len()).is_ok_and(|count| first.checked_add(count) == Some(expected))
        }
        _ => false,
    }
}

/// Borrows the groups in the form that the store accepts.
pub fn borrowed(groups: &[StreamGroup]) -> Vec<Append<'_>> {
    groups.iter().filter_map(append_of).collect()
}

fn append_of(group: &StreamGroup) -> Option<Append<'_>> {
    let first = group.first()?;
    let events = group.iter().map(|message| NewEvent {
        id: message.id.clone(),
        kind: &message.kind,
        data: &message.data,
        metadata: message.metadata.as_deref(),
    });
    Some(Append {
        stream: &first.stream,
        expected: first.expected,
        events: events.collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(index: usize, stream: &str, expected: ExpectedVersion) -> PreparedEvent {
        PreparedEvent {
            index,
            stream: stream.to_owned(),
            kind: "t".to_owned(),
            data: "{}".to_owned(),
            metadata: None,
            id: None,
            expected,
        }
    }

    fn shape(messages: Vec<PreparedEvent>) -> Vec<Vec<Vec<usize>>> {
        let indices = |group: StreamGroup| group.into_iter().map(|message| message.index).collect();
        let append = |groups: Vec<StreamGroup>| groups.into_iter().map(indices).collect();
        appends(messages).into_iter().map(append).collect()
    }

    #[test]
    fn a_write_is_one_append_by_stream() {
        let any = |index, stream| message(index, stream, ExpectedVersion::Any);
        let found = shape(vec![any(0, "a"), any(1, "b"), any(2, "a")]);
        assert_eq!(found, [vec![vec![0, 2], vec![1]]]);
    }

    #[test]
    fn versions_that_follow_each_other_go_together_and_others_do_not() {
        let at = |index, version| message(index, "a", ExpectedVersion::Version(version));
        assert_eq!(shape(vec![at(0, -1), at(1, 0), at(2, 1)]), [vec![vec![0, 1, 2]]]);
        assert_eq!(shape(vec![at(0, 3), at(1, 3)]), [vec![vec![0]], vec![vec![1]]]);
        let twice = |index| message(index, "a", ExpectedVersion::NoStream);
        assert_eq!(shape(vec![twice(0), twice(1)]), [vec![vec![0]], vec![vec![1]]]);
    }

    #[test]
    fn an_append_has_no_more_streams_than_the_store_takes() {
        let messages = (0..APPEND_STREAMS_MAX + 1).map(|n| message(n, &format!("s-{n}"), ExpectedVersion::Any));
        let found = appends(messages.collect());
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [APPEND_STREAMS_MAX, 1]);
    }

    proptest! {
        #[test]
        fn every_message_is_in_one_append_in_the_order_of_its_stream(
            wanted in proptest::collection::vec((0..4_u8, -2..6_i64), 0..60),
        ) {
            let messages: Vec<PreparedEvent> = wanted
                .iter()
                .enumerate()
                .map(|(index, (stream, version))| {
                    let expected = if *version < -1 { ExpectedVersion::Any } else { ExpectedVersion::Version(*version) };
                    message(index, &stream.to_string(), expected)
                })
                .collect();
            let mut seen: HashMap<String, Vec<usize>> = HashMap::new();
            for append in appends(messages.clone()) {
                let mut streams = std::collections::HashSet::new();
                for group in append {
                    prop_assert!(streams.insert(group[0].stream.clone()), "a stream comes once");
                    for message in group {
                        seen.entry(message.stream).or_default().push(message.index);
                    }
                }
            }
            prop_assert_eq!(seen.values().map(Vec::len).sum::<usize>(), messages.len());
            prop_assert!(seen.values().all(|indices| indices.is_sorted()));
        }
    }
}
