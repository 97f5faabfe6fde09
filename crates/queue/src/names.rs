//! Names of queues, groups and consumers, and who may create what.
//!
//! Input is a text from outside; output is the checked name or the rule that it breaks. A checked name of a queue or
//! group is a single safe path component: it has no separator and is neither `.` nor `..`.

use smol_str::SmolStr;

use crate::error::QueueError;

/// Maximum length of a queue or group name, in bytes, which equal characters here.
pub const NAME_BYTES_MAX: usize = 128;
/// Maximum length of a consumer id, in bytes.
pub const CONSUMER_BYTES_MAX: usize = 256;

/// The dead letters of queue `q` go to `dlq.q`.
pub const DEAD_LETTER_PREFIX: &str = "dlq.";
/// Queues that feed the lake.
pub const LAKE_PREFIX: &str = "lake.";
/// Queues that buffer a flow.
pub const BUFFER_PREFIX: &str = "buffer.";

/// Why a text is not a name; reads as the end of a sentence about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name must have 1 to 128 characters, this one has none")]
    Empty,
    #[error("a name has at most {limit} characters, this one has {length}")]
    TooLong { length: usize, limit: usize },
    #[error("a name has only letters without accents, digits, '_', '.' and '-', this one has {0:?}")]
    Character(char),
    #[error("\".\" and \"..\" are not valid names, because they name folders")]
    Dots,
}

/// Checks the name of a queue or a group.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    // Checked before the length, which counts bytes: after this the name is ASCII.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if let Some(c) = name.chars().find(|c| !allowed(*c)) {
        return Err(NameError::Character(c));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            length: name.len(),
            limit: NAME_BYTES_MAX,
        });
    }
    if matches!(name, "." | "..") {
        return Err(NameError::Dots);
    }
    Ok(())
}

/// Checks the id that an HTTP caller or a flow gives its consumer. It may be any text, because it is never part of
/// a path.
pub fn check_consumer(id: &str) -> Result<(), QueueError> {
    let rule = if id.is_empty() {
        "must not be empty"
    } else if id.len() > CONSUMER_BYTES_MAX {
        "has at most 256 bytes"
    } else if id.chars().any(char::is_control) {
        "has no control characters"
    } else {
        return Ok(());
    };
    Err(QueueError::invalid(format!("consumer: the id of a consumer {rule}")))
}

/// The kind of a queue, by the prefix of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    Ordinary,
    /// `dlq.<queue>`.
    DeadLetter,
    /// `lake.*`.
    Lake,
    /// `buffer.*`.
    Buffer,
}

impl NameKind {
    pub fn of(queue: &str) -> NameKind {
        if queue.starts_with(DEAD_LETTER_PREFIX) {
            NameKind::DeadLetter
        } else if queue.starts_with(LAKE_PREFIX) {
            NameKind::Lake
        } else if queue.starts_with(BUFFER_PREFIX) {
            NameKind::Buffer
        } else {
            NameKind::Ordinary
        }
    }
}

/// An operation of a user on a queue as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    Create,
    Configure,
    Delete,
}

/// Whether a user may do this to a queue of this name. The process itself does not ask. A dead-letter queue is an
/// ordinary queue once it exists, so users may configure and delete it. It is created only by the first dead message,
/// so that a user cannot take the name with settings that dead messages do not fit.
pub fn check_user_change(queue: &str, change: QueueChange) -> Result<(), QueueError> {
    let reason = match (NameKind::of(queue), change) {
        (NameKind::Ordinary, _) | (NameKind::DeadLetter, QueueChange::Configure | QueueChange::Delete) => return Ok(()),
        (NameKind::DeadLetter, QueueChange::Create) => {
            "names beginning with dlq. are reserved: a dead-letter queue is created with its first dead letter"
        }
        (NameKind::Lake, _) => "names beginning with lake. belong to the lake, which creates and configures them",
        (NameKind::Buffer, _) => "names beginning with buffer. belong to the buffers of flows; change the flow",
    };
    let verb = match change {
        QueueChange::Create => "create",
        QueueChange::Configure => "change",
        QueueChange::Delete => "delete",
    };
    Err(QueueError::NotAuthorized {
        action: format!("{verb} queue {queue}").into(),
        reason: reason.into(),
    })
}

/// The name of a queue's dead-letter queue; `None` for a dead-letter queue, which has none of its own. Fails if the
/// name would be too long.
pub fn dead_letter_name(queue: &str) -> Result<Option<SmolStr>, NameError> {
    if NameKind::of(queue) == NameKind::DeadLetter {
        return Ok(None);
    }
    let limit = NAME_BYTES_MAX - DEAD_LETTER_PREFIX.len();
    if queue.len() > limit {
        return Err(NameError::TooLong {
            length: queue.len(),
            limit,
        });
    }
    Ok(Some(SmolStr::from_iter([DEAD_LETTER_PREFIX, queue])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_one_harmless_path_component() {
        for name in ["a", "pumps", "plant-1.line_2", "...", "a..b", "-", &"x".repeat(128)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for (name, expected) in [
            ("", NameError::Empty),
            (".", NameError::Dots),
            ("..", NameError::Dots),
            ("../etc", NameError::Character('/')),
            ("a\\b", NameError::Character('\\')),
            ("a b", NameError::Character(' ')),
            ("a:b", NameError::Character(':')),
            ("a\0", NameError::Character('\0')),
            ("pümpe", NameError::Character('ü')),
            ("a#", NameError::Character('#')),
            ("a\n", NameError::Character('\n')),
        ] {
            assert_eq!(check_name(name), Err(expected), "{name:?}");
        }
        let long = "x".repeat(129);
        let message = check_name(&long).unwrap_err().to_string();
        assert_eq!(message, "a name has at most 128 characters, this one has 129");
    }

    #[test]
    fn users_do_not_create_reserved_queues_and_never_touch_those_of_the_lake() {
        use QueueChange::{Configure, Create, Delete};
        for (queue, change, allowed) in [
            ("pumps", Create, true),
            ("dlq", Create, true),
            ("lakes", Create, true),
            ("dlq.pumps", Create, false),
            ("dlq.pumps", Configure, true),
            ("dlq.pumps", Delete, true),
            ("lake.events", Create, false),
            ("lake.events", Configure, false),
            ("lake.events", Delete, false),
            ("buffer.a", Create, false),
            ("buffer.a", Configure, false),
        ] {
            let answer = check_user_change(queue, change);
            assert_eq!(answer.is_ok(), allowed, "{change:?} {queue}");
            if let Err(error) = answer {
                assert_eq!(error.code(), "not_authorized");
                assert!(error.to_string().contains(queue), "{error}");
            }
        }
    }

    #[test]
    fn dead_letters_have_a_queue_named_after_theirs_and_none_of_their_own() {
        assert_eq!(dead_letter_name("pumps"), Ok(Some("dlq.pumps".into())));
        assert_eq!(dead_letter_name("dlq.pumps"), Ok(None));
        assert!(dead_letter_name(&"x".repeat(124)).is_ok());
        assert!(dead_letter_name(&"x".repeat(125)).is_err());
    }

    #[test]
    fn consumer_ids_are_any_short_text() {
        for id in ["a", "host/1 ü", &"x".repeat(256)] {
            assert!(check_consumer(id).is_ok(), "{id}");
        }
        for id in ["", "a\nb", &"x".repeat(257)] {
            let error = check_consumer(id).unwrap_err();
            assert!(error.to_string().starts_with("consumer: "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_taken_exactly_if_the_rule_says_so(name in "[A-Za-z0-9_.\\-/ü ]{0,140}") {
            let by_rule = (1..=128).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
                && name != "." && name != "..";
            prop_assert_eq!(check_name(&name).is_ok(), by_rule);
        }
    }
}
