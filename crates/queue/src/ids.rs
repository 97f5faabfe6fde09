//! External ids: a message is `<queue>:<partition>:<offset>`, and a lease is
//! `<queue>:<partition>:<offset>:<delivery>:<number>.<group>.<lease>`. The number of the queue, the number of the group
//! in it and the lease are never reused. So a receipt names one delivery for ever, even if a queue is deleted and
//! another created under its name.
//!
//! Each id has exactly one text form: parsing accepts only what formatting produces. So texts can be compared, and an
//! altered text is refused instead of naming another message.

use std::fmt;
use std::str::FromStr;

use smol_str::SmolStr;
use thalweg_log::Offset;

use crate::names::check_name;

/// Names a message for as long as it is retained, and never another one after that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub queue: SmolStr,
    pub partition: u32,
    pub offset: Offset,
}

/// Names one lease: the delivery of a message to one consumer of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    pub id: MessageId,
    /// Counted from 1 per message and group.
    pub delivery: u32,
    /// Missing in receipts of earlier versions, which are all stale.
    pub tag: Option<LeaseTag>,
}

/// Distinguishes a lease from all others with the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseTag {
    /// The number of the queue.
    pub queue: u32,
    /// The number of the group within the queue.
    pub group: u32,
    /// The epoch; in a stream group also the reader.
    pub lease: u64,
}

/// A text that is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind}; copy it as it was received, in the form {form}")]
pub struct IdError {
    kind: &'static str,
    form: &'static str,
    /// Only its beginning, because it comes from outside.
    text: String,
}

/// How many characters of an invalid text the error quotes.
const QUOTED_CHARS_MAX: usize = 60;

impl IdError {
    fn message_id(text: &str) -> IdError {
        IdError {
            kind: "message-id",
            form: "<queue>:<partition>:<offset>",
            text: text.chars().take(QUOTED_CHARS_MAX).collect(),
        }
    }

    fn receipt(text: &str) -> IdError {
        IdError {
            kind: "receipt",
            form: "<queue>:<partition>:<offset>:<delivery>:<number>.<group>.<lease>",
            ..IdError::message_id(text)
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.queue, self.partition, self.offset)
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.delivery)?;
        match &self.tag {
            Some(LeaseTag { queue, group, lease }) => write!(f, ":{queue}.{group}.{lease:x}"),
            None => Ok(()),
        }
    }
}

impl FromStr for MessageId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<MessageId, IdError> {
        let mut parts = text.split(':');
        message_id(&mut parts)
            .filter(|_| parts.next().is_none())
            .ok_or_else(|| IdError::message_id(text))
    }
}

impl FromStr for Receipt {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Receipt, IdError> {
        let mut parts = text.split(':');
        let read = |parts: &mut std::str::Split<'_, char>| {
            let id = message_id(parts)?;
            let delivery = number(parts.next()?).filter(|delivery| *delivery > 0)?;
            let tag = match parts.next() {
                Some(text) => Some(tag(text)?),
                None => None,
            };
            parts.next().is_none().then_some(Receipt { id, delivery, tag })
        };
        read(&mut parts).ok_or_else(|| IdError::receipt(text))
    }
}

fn message_id(parts: &mut std::str::Split<'_, char>) -> Option<MessageId> {
    let queue = parts.next().filter(|name| check_name(name).is_ok())?;
    Some(MessageId {
        queue: SmolStr::new(queue),
        partition: number(parts.next()?)?,
        offset: number(parts.next()?)?,
    })
}

fn tag(text: &str) -> Option<LeaseTag> {
    let mut parts = text.split('.');
    let (queue, group, lease) = (parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let canonical = lease.bytes().all(is_hex) && (lease.len() == 1 || !lease.starts_with('0'));
    let tag = LeaseTag {
        queue: number(queue)?,
        group: number(group)?,
        lease: u64::from_str_radix(lease, 16).ok().filter(|_| canonical)?,
    };
    parts.next().is_none().then_some(tag)
}

/// Digits without a sign and without leading zeros, unlike [`str::parse`].
fn number<N: FromStr>(text: &str) -> Option<N> {
    let leading_zero = text.len() > 1 && text.starts_with('0');
    (!leading_zero && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_have_the_form_of_the_specification() {
        let id = MessageId {
            queue: "pumps".into(),
            partition: 3,
            offset: 17,
        };
        assert_eq!(id.to_string(), "pumps:3:17");
        let mut receipt = Receipt {
            id,
            delivery: 2,
            tag: Some(LeaseTag {
                queue: 16,
                group: 1,
                lease: 0x2a,
            }),
        };
        assert_eq!(receipt.to_string(), "pumps:3:17:2:16.1.2a");
        receipt.tag = None;
        assert_eq!(receipt.to_string(), "pumps:3:17:2", "as an earlier version wrote it");
    }

    #[test]
    fn anything_but_the_one_text_of_an_id_is_refused_and_quoted() {
        for text in [
            "",
            ":",
            "pumps",
            "pumps:3",
            "pumps:3:",
            "pumps::17",
            ":3:17",
            "pumps:03:17",
            "pumps:3:+17",
            "pumps:-3:17",
            " pumps:3:17",
            "pumps:3:17 ",
            "pumps:3:17:2",
            "pu mps:3:17",
            "..:3:17",
            "../a:3:17",
            "pumps:4294967296:1",
            "pumps:0:18446744073709551616",
            "pumps:3:1_7",
            "pumps:٣:17",
        ] {
            let error = text.parse::<MessageId>().unwrap_err();
            assert!(
                error.to_string().starts_with(&format!("{text:?} is not a message-id")),
                "{error}"
            );
        }
        for text in [
            "pumps:3:17",
            "pumps:3:17:0",
            "pumps:3:17:02",
            "pumps:3:17:2:1",
            "pumps:3:17:2:1.2",
            "pumps:3:17:2:1.2.",
            "pumps:3:17:2:01.2.3",
            "pumps:3:17:2:1.2.0a",
            "pumps:3:17:2:1.2.A",
            "pumps:3:17:2:1.2.+a",
            "pumps:3:17:2:1.2.3.4",
            "pumps:3:17:2:1.2.3:4",
            "pumps:3:17:2:1.2.10000000000000000",
            "pumps:3:17:",
            "pumps:3:17:4294967296",
        ] {
            assert!(text.parse::<Receipt>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_endless_text_is_not_repeated_in_the_error() {
        let error = "x".repeat(1 << 20).parse::<Receipt>().unwrap_err();
        assert!(error.to_string().len() < 200);
    }

    fn ids() -> impl Strategy<Value = MessageId> {
        ("[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", any::<u32>(), any::<u64>()).prop_map(|(queue, partition, offset)| {
            MessageId {
                queue: queue.into(),
                partition,
                offset,
            }
        })
    }

    proptest! {
        #[test]
        fn ids_and_receipts_survive_their_text(id in ids(), delivery in 1_u32.., tag in proptest::option::of(any::<(u32, u32, u64)>())) {
            prop_assert_eq!(id.to_string().parse(), Ok(id.clone()));
            let tag = tag.map(|(queue, group, lease)| LeaseTag { queue, group, lease });
            let receipt = Receipt { id, delivery, tag };
            prop_assert_eq!(receipt.to_string().parse(), Ok(receipt));
        }

        #[test]
        fn what_is_parsed_prints_as_it_was_written(text in "[a.:0-9+ -]{1,12}") {
            if let Ok(id) = text.parse::<MessageId>() {
                prop_assert_eq!(id.to_string(), text.clone());
            }
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.to_string(), text);
            }
        }
    }
}
