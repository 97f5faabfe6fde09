//! The result of a script, in a form that any engine can produce and that costs nothing if nothing changed.

use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Text, Value};

use crate::view::has_two_texts;

/// What a script returned.
#[derive(Clone, Debug)]
pub enum ScriptOutput {
    /// Null, undefined, or an empty list.
    Nothing,
    One(Reply),
    Many(Vec<Reply>),
    /// The unchanged message with this shared map, memoized from an earlier message of the same tag. Only for messages
    /// without metadata changes of their own.
    Over(Arc<MetaMap>),
}

impl ScriptOutput {
    /// The resulting messages: the payload reply of each, and all its metadata. Two results are equal if these are.
    pub(crate) fn effects(&self, message: &Message) -> Vec<(String, Metadata)> {
        let of = |reply: &Reply| {
            let mut meta = message.meta.clone();
            reply.meta.clone().apply(&mut meta);
            (format!("{:?}", reply.payload), meta)
        };
        match self {
            ScriptOutput::Nothing => Vec::new(),
            ScriptOutput::One(reply) => vec![of(reply)],
            ScriptOutput::Many(replies) => replies.iter().map(of).collect(),
            ScriptOutput::Over(map) => vec![(
                format!("{:?}", PayloadReply::Same),
                message.meta.with_shared(map.clone()),
            )],
        }
    }
}

/// One returned message, as changes to the one that the script got.
#[derive(Clone, Debug)]
pub struct Reply {
    pub payload: PayloadReply,
    pub meta: MetaReply,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PayloadReply {
    /// The payload that the script got, with every digit.
    Same,
    /// Also the same payload, but the script set it, so its text form is that of a script's value. Used only where the
    /// two forms differ.
    Again,
    /// The returned object has no payload.
    Missing,
    New(Value),
}

#[derive(Clone, Debug)]
pub enum MetaReply {
    /// The metadata that the script got with these keys set; an empty text removes a key.
    Changes(Vec<(Text, Text)>),
    /// This shared map, memoized from an earlier message of the same tag. Only for messages without metadata changes of
    /// their own.
    Over(Arc<MetaMap>),
    /// Exactly these keys. None if the returned object has no `meta`.
    Replaced(Vec<(Text, Text)>),
}

impl PayloadReply {
    /// The reply for an unchanged payload that the script left alone or set. Its text form must not depend on what else
    /// the script might have set.
    pub(crate) fn kept(value: &Value, is_set: bool) -> PayloadReply {
        match is_set && has_two_texts(value) {
            true => PayloadReply::Again,
            false => PayloadReply::Same,
        }
    }
}

impl MetaReply {
    /// Applies the changes to the metadata that the script got. Equal parts stay shared.
    pub fn apply(self, meta: &mut Metadata) {
        match self {
            MetaReply::Changes(changes) => meta.set_all(changes),
            MetaReply::Over(map) => *meta = meta.with_shared(map),
            MetaReply::Replaced(entries) if entries.is_empty() => meta.clear(),
            MetaReply::Replaced(mut entries) => {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                let changes = differences(meta, entries);
                meta.set_all(changes);
            }
        }
    }
}

/// The changes that make `meta` equal to `entries`, which are sorted by key. An empty text removes a key.
fn differences(meta: &Metadata, entries: Vec<(Text, Text)>) -> Vec<(Text, Text)> {
    let mut changes = Vec::new();
    let mut old = meta.iter().peekable();
    for (key, value) in entries {
        while let Some((gone, _)) = old.next_if(|(old_key, _)| *old_key < key.as_str()) {
            changes.push((Text::new(gone), Text::default()));
        }
        match old.next_if(|(old_key, _)| *old_key == key) {
            Some((_, same)) if same == value.as_str() => {}
            _ => changes.push((key, value)),
        }
    }
    changes.extend(old.map(|(gone, _)| (Text::new(gone), Text::default())));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_keeps_what_is_equal_shared() {
        let shared = Arc::new(MetaMap::new(
            [("a", "1"), ("b", "2")].map(|(k, v)| (k.into(), v.into())),
            None,
        ));
        let mut meta = Metadata::shared(shared.clone());
        MetaReply::Replaced(vec![("b".into(), "2".into()), ("a".into(), "1".into())]).apply(&mut meta);
        assert!(!meta.is_changed() && Arc::ptr_eq(meta.shared_map(), &shared));
        MetaReply::Replaced(vec![("c".into(), "3".into()), ("a".into(), "1".into())]).apply(&mut meta);
        let seen: Vec<_> = meta.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(seen, ["a=1", "c=3"]);
        MetaReply::Replaced(Vec::new()).apply(&mut meta);
        assert_eq!(meta.iter().count(), 0);
    }
}
