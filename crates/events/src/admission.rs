//! What becomes of an append, an import or a deletion, given what is stored: the rules for streams, positions and ids
//! that every store applies. A store passes in what it has; nothing here performs I/O.

use std::collections::HashSet;

use crate::DEFAULT;
use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::id::MessageId;
use crate::limits::POSITION_MAX;
use crate::store::{AppendOutcome, ExpectedVersion, NewEvent};

/// Fails if the stream has a tombstone.
pub fn takes_messages(stream: &str, is_tombstoned: bool) -> Result<()> {
    match is_tombstoned {
        true => Err(EventsError::StreamDeleted(stream.to_owned())),
        false => Ok(()),
    }
}

/// Fails unless the stream has an expected version. `version` is -1 for a stream without messages.
pub fn has_version(stream: &str, expected: ExpectedVersion, version: i64) -> Result<()> {
    match expected.allows(version) {
        true => Ok(()),
        false => Err(EventsError::VersionConflict {
            stream: stream.to_owned(),
            expected,
            actual: version,
        }),
    }
}

/// Fails unless the streams and the namespace have enough positions left.
///
/// `streams`: the name and version of each stream, and the number of messages for it. `last_global`: 0 without
/// messages.
pub fn have_positions<'a>(streams: impl Iterator<Item = (&'a str, i64, usize)>, last_global: u64) -> Result<()> {
    let mut global = last_global;
    for (stream, version, count) in streams {
        let count = count as u64;
        global = global.saturating_add(count);
        if version.saturating_add(count.cast_signed()) > POSITION_MAX.cast_signed() {
            let of = format!("stream '{stream}'");
            return Err(EventsError::NoPositions { of });
        }
    }
    match global > POSITION_MAX {
        true => Err(EventsError::NoPositions {
            of: "the namespace".to_owned(),
        }),
        false => Ok(()),
    }
}

/// Fails for the namespace that always exists.
pub fn may_be_deleted(namespace: &str) -> Result<()> {
    match namespace == DEFAULT {
        true => Err(EventsError::NamespaceKept),
        false => Ok(()),
    }
}

/// The content of a message to append, as it is compared with a stored one.
#[derive(Clone, Copy, Debug)]
pub struct MessageContent<'a> {
    pub id: Option<&'a MessageId>,
    pub kind: &'a str,
    pub data: &'a str,
    pub metadata: Option<&'a str>,
}

impl<'a> From<&'a NewEvent<'_>> for MessageContent<'a> {
    fn from(event: &'a NewEvent<'_>) -> MessageContent<'a> {
        MessageContent {
            id: event.id.as_ref(),
            kind: event.kind,
            data: event.data,
            metadata: event.metadata,
        }
    }
}

/// The outcome of an append that repeats an earlier one: the positions of its messages, which are stored already.
/// `None` if none of its ids is stored.
///
/// `appends`: each stream with its messages. `stored`: the stored message with an id, unless it is hidden. Fails with
/// the first message that has one of the ids, unless all messages are stored: the same ones, in this order and without
/// others between them.
pub fn repeated<'a, 's, M>(
    appends: impl Iterator<Item = (&'a str, M)>,
    stored: impl Fn(&MessageId) -> Option<EventRef<'s>>,
) -> Result<Option<Vec<AppendOutcome>>>
where
    M: Iterator<Item = MessageContent<'a>>,
{
    let mut outcomes = Vec::new();
    let (mut is_repeated, mut conflict) = (true, None);
    for (stream, messages) in appends {
        let (mut first, mut count) = (None, 0);
        for message in messages {
            let n = count;
            count += 1;
            let Some(found) = message.id.and_then(&stored) else {
                is_repeated = false;
                continue;
            };
            let (position, global) = *first.get_or_insert((found.position, found.global));
            is_repeated &= found.stream == stream
                && (found.kind, found.data, found.metadata) == (message.kind, message.data, message.metadata)
                && (found.position, found.global) == (position + n, global + n);
            conflict.get_or_insert_with(|| EventsError::IdConflict {
                id: MessageId::from(found.id).to_string(),
                stream: found.stream.to_owned(),
                position: found.position,
            });
        }
        let (first_position, first_global) = first.unwrap_or_default();
        outcomes.push(AppendOutcome {
            count,
            first_position,
            first_global,
            duplicate: true,
        });
    }
    match conflict {
        Some(conflict) if !is_repeated => Err(conflict),
        Some(_) => Ok(Some(outcomes)),
        None => Ok(None),
    }
}

/// What a message to import occupies.
#[derive(Clone, Copy, Debug)]
pub struct ImportClaim<'a> {
    pub stream: &'a str,
    pub position: u64,
    pub global: u64,
    /// `None` if the server makes one.
    pub id: Option<&'a MessageId>,
}

/// A part of an [`ImportClaim`] that another message may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimedPart {
    GlobalPosition,
    Position,
    Id,
}

/// Admits the records of an import, one after the other.
pub struct ImportAdmission<'a> {
    globals: HashSet<u64>,
    positions: HashSet<(&'a str, u64)>,
    ids: HashSet<&'a MessageId>,
    /// The index of the next record.
    record: usize,
}

impl<'a> ImportAdmission<'a> {
    /// Fails if one of the streams has a tombstone.
    pub fn begin(
        mut streams: impl Iterator<Item = &'a str>,
        is_tombstoned: impl Fn(&str) -> bool,
    ) -> Result<ImportAdmission<'a>> {
        streams.try_for_each(|stream| takes_messages(stream, is_tombstoned(stream)))?;
        Ok(ImportAdmission {
            globals: HashSet::new(),
            positions: HashSet::new(),
            ids: HashSet::new(),
            record: 0,
        })
    }

    /// Fails if another message has a position or the id of the next record: an earlier record, or a stored message,
    /// about which the store is asked. The position of a deleted message is stored, its id is not.
    pub fn admit<E: From<EventsError>>(
        &mut self,
        claim: ImportClaim<'a>,
        mut is_stored: impl FnMut(ClaimedPart) -> std::result::Result<bool, E>,
    ) -> std::result::Result<(), E> {
        let ImportClaim {
            stream,
            position,
            global,
            id,
        } = claim;
        let record = self.record;
        self.record += 1;
        let taken = |what: String| -> std::result::Result<(), E> { Err(EventsError::Taken { what, record }.into()) };
        if is_stored(ClaimedPart::GlobalPosition)? || !self.globals.insert(global) {
            return taken(format!("global position already exists: {global}"));
        }
        if is_stored(ClaimedPart::Position)? || !self.positions.insert((stream, position)) {
            return taken(format!("position {position} of stream {stream} already exists"));
        }
        if let Some(id) = id
            && (is_stored(ClaimedPart::Id)? || !self.ids.insert(id))
        {
            return taken(format!("message id already exists: {id}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::IdRef;

    fn stored<'a>(id: &'a MessageId, stream: &'a str, position: u64, global: u64) -> EventRef<'a> {
        EventRef {
            id: IdRef::from(id),
            own_id: false,
            stream,
            position,
            global,
            kind: "T",
            data: "{}",
            metadata: None,
            time: 0,
            is_first: false,
            is_imported: false,
        }
    }

    fn asked(id: &MessageId) -> MessageContent<'_> {
        MessageContent {
            id: Some(id),
            kind: "T",
            data: "{}",
            metadata: None,
        }
    }

    #[test]
    fn an_append_is_repeated_only_as_a_whole() {
        let ids = ["x", "y", "z"].map(MessageId::of);
        let [x, y, z] = &ids;
        let all = [(x, stored(x, "a", 4, 9)), (y, stored(y, "a", 5, 10))];
        let find = |id: &MessageId| all.iter().find(|(own, _)| *own == id).map(|(_, event)| *event);
        let ask = |stream, messages: &[&MessageId]| {
            let messages: Vec<MessageContent<'_>> = messages.iter().map(|id| asked(id)).collect();
            repeated([(stream, messages.into_iter())].into_iter(), find)
        };
        let whole = ask("a", &[x, y]).unwrap().unwrap();
        let expected = AppendOutcome {
            count: 2,
            first_position: 4,
            first_global: 9,
            duplicate: true,
        };
        assert_eq!(whole, [expected]);
        assert_eq!(ask("a", &[y]).unwrap().unwrap()[0].first_position, 5);
        assert_eq!(ask("a", &[z]).unwrap(), None);
        for (stream, messages, first) in [("b", vec![x, y], "x"), ("a", vec![y, x], "y"), ("a", vec![z, x], "x")] {
            let refused = ask(stream, &messages).unwrap_err();
            assert!(
                matches!(&refused, EventsError::IdConflict { id, .. } if id == first),
                "{refused}"
            );
        }
    }

    #[test]
    fn positions_end_at_the_largest_for_each_stream_and_for_the_namespace() {
        let last = POSITION_MAX.cast_signed();
        let of = |version, count, global| have_positions([("s", version, count)].into_iter(), global);
        of(last - 2, 2, POSITION_MAX - 2).unwrap();
        let told = of(last - 1, 2, 1).unwrap_err().to_string();
        assert_eq!(told, "stream 's' is full: its last message has the largest position");
        let told = of(0, 2, POSITION_MAX - 1).unwrap_err().to_string();
        assert_eq!(told, "the namespace is full: its last message has the largest position");
    }

    #[test]
    fn a_record_is_refused_for_what_another_has() {
        let (x, y) = (MessageId::of("x"), MessageId::of("y"));
        let claim = |position, global, id| ImportClaim {
            stream: "s",
            position,
            global,
            id: Some(id),
        };
        let cases = [
            (claim(1, 1, &y), None, "global position already exists: 1"),
            (claim(0, 2, &y), None, "position 0 of stream s already exists"),
            (claim(1, 2, &x), None, "message id already exists: x"),
            (
                claim(1, 2, &y),
                Some(ClaimedPart::GlobalPosition),
                "global position already exists: 2",
            ),
            (
                claim(1, 2, &y),
                Some(ClaimedPart::Position),
                "position 1 of stream s already exists",
            ),
            (claim(1, 2, &y), Some(ClaimedPart::Id), "message id already exists: y"),
        ];
        for (second, is_stored, told) in cases {
            let mut admission = ImportAdmission::begin(["s"].into_iter(), |_| false).unwrap();
            let nothing = |_| Ok::<_, EventsError>(false);
            admission.admit(claim(0, 1, &x), nothing).unwrap();
            let refused = admission.admit(second, |part| Ok::<_, EventsError>(Some(part) == is_stored));
            let refused = refused.unwrap_err();
            assert_eq!(refused.to_string(), told);
            assert!(matches!(refused, EventsError::Taken { record: 1, .. }), "{told}");
        }
        let dead = ImportAdmission::begin(["s", "t"].into_iter(), |stream| stream == "t").err();
        assert!(matches!(dead, Some(EventsError::StreamDeleted(stream)) if stream == "t"));
    }
}
