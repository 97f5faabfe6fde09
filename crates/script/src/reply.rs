//! What a script made of a message, in a form that any engine can give and that costs nothing where nothing changed.

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
    /// The message as it is, with this shared map in the place of its own: what was made of an earlier message of the same tag. Only
    /// of messages without changes of their own.
    Over(Arc<MetaMap>),
}

impl ScriptOutput {
    /// What becomes of the message: what is said of each payload, and all metadata that goes with it. Two results are the same if these are.
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
    /// The payload that the script got, every digit of it.
    Same,
    /// As well, but the script set it: what it is as a text is that of a script's value. Said only where this differs.
    Again,
    /// The returned object has no payload.
    Missing,
    New(Value),
}

#[derive(Clone, Debug)]
pub enum MetaReply {
    /// The metadata that the script got with these keys set; an empty text removes a key.
    Changes(Vec<(Text, Text)>),
    /// This shared map in the place of the message's own: what changes made of it for an earlier message of the same tag. Only of
    /// messages without changes of their own.
    Over(Arc<MetaMap>),
    /// Exactly these keys. Without `meta` in the returned object: none.
    Replaced(Vec<(Text, Text)>),
}

impl PayloadReply {
    /// Of a payload that is as it was, which the script left alone or set. Which text it has must not depend on what else the
    /// script might have set.
    pub(crate) fn kept(value: &Value, is_set: bool) -> PayloadReply {
        match is_set && has_two_texts(value) {
            true => PayloadReply::Again,
            false => PayloadReply::Same,
        }
    }
}

impl MetaReply {
    /// Applies the changes to the metadata that the script got. What is equal afterwards stays shared.
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

/// What must be set in `meta` so that it holds exactly `entries`, which are sorted by key. Empty texts remove.
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
