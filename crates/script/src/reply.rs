//! What a script made of a message, in a form that any engine can give and that costs nothing where nothing changed.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_record::{MetaMap, Metadata, Text, Value};

/// What a script returned.
#[expect(
    clippy::large_enum_variant,
    reason = "one message is the rule, and it is given without allocating"
)]
#[derive(Clone, Debug)]
pub enum Returned {
    /// Null, undefined, or an empty list.
    Nothing,
    One(Reply),
    Many(Vec<Reply>),
    /// The message as it is, with this shared map in the place of its own: what was made of an earlier message of the same tag. Only
    /// of messages without changes of their own.
    Over(Arc<MetaMap>),
}

impl PartialEq for Returned {
    fn eq(&self, other: &Returned) -> bool {
        match (self, other) {
            (Returned::Nothing, Returned::Nothing) => true,
            (Returned::One(a), Returned::One(b)) => a == b,
            (Returned::Many(a), Returned::Many(b)) => a == b,
            (Returned::Over(a), Returned::Over(b)) => a.iter().eq(b.iter()),
            _ => false,
        }
    }
}

/// One returned message, as changes to the one that the script got.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub payload: PayloadReply,
    pub meta: MetaReply,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PayloadReply {
    /// The payload that the script got, every digit of it.
    Same,
    /// The returned object has no payload.
    Missing,
    New(Value),
}

#[expect(
    clippy::large_enum_variant,
    reason = "a few changes are the rule, and they are given without allocating"
)]
#[derive(Clone, Debug, PartialEq)]
pub enum MetaReply {
    /// The metadata that the script got with these keys set; an empty text removes a key.
    Changes(SmallVec<[(Text, Text); 6]>),
    /// Exactly these keys. Without `meta` in the returned object: none.
    Replaced(Vec<(Text, Text)>),
}

impl MetaReply {
    /// Applies the changes to the metadata that the script got. What is equal afterwards stays shared.
    pub fn apply(self, meta: &mut Metadata) {
        match self {
            MetaReply::Changes(changes) => {
                meta.reserve(changes.len());
                for (key, value) in changes {
                    meta.set(key, value);
                }
            }
            MetaReply::Replaced(entries) if entries.is_empty() => meta.clear(),
            MetaReply::Replaced(mut entries) => {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
                let changes = differences(meta, entries);
                meta.reserve(changes.len());
                for (key, value) in changes {
                    meta.set(key, value);
                }
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
