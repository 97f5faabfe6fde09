//! What a message and a lease are called outside: `<queue>:<partition>:<offset>[:<delivery>]`.
//!
//! Each has exactly one text: what is parsed prints as it was written, and nothing else is parsed. So the texts can be
//! compared, and one that was altered on its way is refused instead of naming another message.

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
}

/// A text that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}; copy it as it was received, in the form {form}")]
pub struct IdError {
    kind: &'static str,
    form: &'static str,
    /// Its beginning only: it came from outside.
    text: String,
}

/// Characters of a wrong text that the error quotes.
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
            form: "<queue>:<partition>:<offset>:<delivery>",
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
        write!(f, "{}:{}", self.id, self.delivery)
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
            parts.next().is_none().then_some(Receipt { id, delivery })
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

/// Digits without sign and without leading zeros, unlike [`str::parse`].
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
        assert_eq!(Receipt { id, delivery: 2 }.to_string(), "pumps:3:17:2");
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
                error.to_string().starts_with(&format!("{text:?} is no message-id")),
                "{error}"
            );
        }
        for text in [
            "pumps:3:17",
            "pumps:3:17:0",
            "pumps:3:17:02",
            "pumps:3:17:2:1",
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
        fn ids_and_receipts_survive_their_text(id in ids(), delivery in 1_u32..) {
            prop_assert_eq!(id.to_string().parse(), Ok(id.clone()));
            let receipt = Receipt { id, delivery };
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
