//! The topic that a committed offset belongs to. A group commits offsets by topic name, and a topic that is deleted and
//! recreated has the same name; so the id of the topic is committed with the offset, as its metadata.

use crate::admin::TopicId;

/// Distinguishes this metadata from that of other clients.
const BEGINNING: &str = "thalweg";
const TOPIC_ID: &str = "topic-id";
const NEWEST_BELOW: &str = "newest-below";

/// The metadata of a committed offset: `thalweg topic-id=<32 hexadecimal digits> newest-below=<number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitMetadata {
    /// `None` if the broker has no topic ids.
    pub topic: Option<TopicId>,
    /// The group started to read the topic at the newest records of the partitions below this number. Partitions added
    /// since are read from their oldest record.
    pub newest_below: i32,
}

impl CommitMetadata {
    pub fn text(&self) -> String {
        let newest_below = self.newest_below;
        match self.topic {
            Some(id) => format!("{BEGINNING} {TOPIC_ID}={id} {NEWEST_BELOW}={newest_below}"),
            None => format!("{BEGINNING} {NEWEST_BELOW}={newest_below}"),
        }
    }

    /// Returns `None` for the metadata of other clients.
    pub fn parse(text: &str) -> Option<CommitMetadata> {
        let mut words = text.split(' ').filter(|word| !word.is_empty());
        if words.next() != Some(BEGINNING) {
            return None;
        }
        let mut mark = CommitMetadata {
            topic: None,
            newest_below: 0,
        };
        for word in words {
            match word.split_once('=')? {
                (TOPIC_ID, id) => mark.topic = Some(id.parse().ok()?),
                (NEWEST_BELOW, number) => mark.newest_below = number.parse().ok()?,
                // From a later version.
                _ => {}
            }
        }
        Some(mark)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_mark_is_read_as_it_is_written(id in any::<Option<u128>>(), newest_below in any::<i32>()) {
            let mark = CommitMetadata { topic: id.map(TopicId::of), newest_below };
            prop_assert_eq!(CommitMetadata::parse(&mark.text()), Some(mark));
        }

        #[test]
        fn whatever_others_commit_is_no_mark(text in "\\PC*") {
            prop_assume!(!text.trim_start_matches(' ').starts_with(BEGINNING));
            prop_assert_eq!(CommitMetadata::parse(&text), None);
        }
    }

    #[test]
    fn a_mark_of_a_later_version_is_read_as_far_as_it_is_known() {
        let mark =
            CommitMetadata::parse("thalweg topic-id=0000000000000000000000000000002a newest-below=3 more=x").unwrap();
        assert_eq!((mark.topic, mark.newest_below), (Some(TopicId::of(42)), 3));
        assert_eq!(CommitMetadata::parse("thalweg topic-id=nonsense"), None);
    }
}
