//! Where a partition is read from after an assignment, decided from the group's commits in its topic.
//!
//! | the group has committed | the partition is read from |
//! |---|---|
//! | an offset in this topic, or one without a topic id | that offset |
//! | an offset in a predecessor of the topic | its first record: everything in it is new |
//! | nothing of this partition, but of others of the topic | its oldest record, as it was added later; its newest record if the metadata of the others says that it existed when the group started |
//! | nothing of the topic, and the input has known its predecessor or waited for it | its first record |
//! | nothing of the topic | the configured start: `start_from_oldest` |

use super::commit_metadata::CommitMetadata;
use crate::admin::TopicDescription;

/// The group's commit of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    pub partition: i32,
    pub offset: i64,
    /// `None` if another client, or an older version of this one, committed it.
    pub mark: Option<CommitMetadata>,
}

/// The position at which reading a partition starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartingPoint {
    /// At the committed offset; `is_marked` says whether the commit has complete metadata.
    Committed {
        offset: i64,
        is_marked: bool,
    },
    /// The committed offset belongs to a deleted topic.
    Recreated {
        committed: i64,
    },
    /// The topic is newer than this input.
    First,
    Oldest,
    Newest,
}

impl StartingPoint {
    /// Whether the group has committed nothing of the partition.
    pub fn is_uncommitted(self) -> bool {
        match self {
            StartingPoint::Committed { .. } | StartingPoint::Recreated { .. } => false,
            StartingPoint::First | StartingPoint::Oldest | StartingPoint::Newest => true,
        }
    }
}

/// A topic, and what is known about it.
#[derive(Clone, Debug)]
pub struct TopicHistory<'c> {
    pub now: TopicDescription,
    /// All commits of the group under this topic name.
    pub commits: &'c [CommittedOffset],
    /// The input has known another topic under this name, or found none: everything in this one is new.
    pub appeared: bool,
    pub starts_from_oldest: bool,
}

impl TopicHistory<'_> {
    /// Returns the starting point, and the metadata for later commits of the partition.
    pub fn beginning(&self, partition: i32) -> (StartingPoint, CommitMetadata) {
        let mark = |newest_below| CommitMetadata {
            topic: self.now.id,
            newest_below,
        };
        let own = self.commits.iter().find(|commit| commit.partition == partition);
        match own {
            Some(commit) if self.is_of_predecessor(commit) => {
                let committed = commit.offset;
                (StartingPoint::Recreated { committed }, mark(0))
            }
            Some(CommittedOffset { offset, mark: old, .. }) => {
                let mark = mark(old.map_or(0, |old| old.newest_below));
                let (offset, is_marked) = (*offset, *old == Some(mark));
                (StartingPoint::Committed { offset, is_marked }, mark)
            }
            None if self.commits.is_empty() && self.appeared => (StartingPoint::First, mark(0)),
            None => {
                let newest_below = self.newest_below();
                match partition < newest_below {
                    true => (StartingPoint::Newest, mark(newest_below)),
                    false => (StartingPoint::Oldest, mark(newest_below)),
                }
            }
        }
    }

    fn is_of_predecessor(&self, commit: &CommittedOffset) -> bool {
        let counted_in = commit.mark.and_then(|mark| mark.topic);
        // A commit without a topic id is trusted, as the group's other clients do.
        counted_in.is_some() && self.now.id.is_some() && counted_in != self.now.id
    }

    /// The value for a topic with uncommitted partitions.
    fn newest_below(&self) -> i32 {
        if self.commits.is_empty() {
            return match self.starts_from_oldest {
                true => 0,
                false => self.now.partitions,
            };
        }
        let of_this = self.commits.iter().filter(|commit| !self.is_of_predecessor(commit));
        // If they disagree, more is read rather than less.
        let said = of_this.map(|commit| commit.mark.map_or(0, |mark| mark.newest_below));
        said.min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admin::TopicId;

    fn topic(id: u128, partitions: i32, commits: &[CommittedOffset]) -> TopicHistory<'_> {
        TopicHistory {
            now: TopicDescription {
                id: (id > 0).then(|| TopicId::of(id)),
                partitions,
            },
            commits,
            appeared: false,
            starts_from_oldest: false,
        }
    }

    fn commit(partition: i32, offset: i64, mark: Option<CommitMetadata>) -> CommittedOffset {
        CommittedOffset {
            partition,
            offset,
            mark,
        }
    }

    fn mark(id: u128, newest_below: i32) -> CommitMetadata {
        CommitMetadata {
            topic: (id > 0).then(|| TopicId::of(id)),
            newest_below,
        }
    }

    #[test]
    fn a_group_without_commits_begins_where_it_is_told_to() {
        let newest = topic(1, 3, &[]);
        assert_eq!(newest.beginning(2), (StartingPoint::Newest, mark(1, 3)));
        let oldest = TopicHistory {
            starts_from_oldest: true,
            ..newest.clone()
        };
        assert_eq!(oldest.beginning(2), (StartingPoint::Oldest, mark(1, 0)));
        let appeared = TopicHistory {
            appeared: true,
            ..newest
        };
        assert_eq!(appeared.beginning(2), (StartingPoint::First, mark(1, 0)));
    }

    #[test]
    fn partitions_that_were_added_begin_at_their_oldest_record_and_those_of_the_beginning_at_their_newest() {
        // Another member has partition 0, and started when there were three partitions.
        let commits = [commit(0, 7, Some(mark(1, 3)))];
        let grown = topic(1, 5, &commits);
        assert_eq!(grown.beginning(2), (StartingPoint::Newest, mark(1, 3)));
        assert_eq!(grown.beginning(3), (StartingPoint::Oldest, mark(1, 3)));
        // An older version committed all partitions of its time.
        let commits = [commit(0, 7, None)];
        assert_eq!(topic(1, 5, &commits).beginning(3), (StartingPoint::Oldest, mark(1, 0)));
    }

    #[test]
    fn an_offset_in_a_predecessor_says_nothing_of_the_topic() {
        let commits = [commit(0, 7, Some(mark(1, 3)))];
        let recreated = topic(2, 3, &commits);
        assert_eq!(
            recreated.beginning(0),
            (StartingPoint::Recreated { committed: 7 }, mark(2, 0))
        );
        assert_eq!(recreated.beginning(1), (StartingPoint::Oldest, mark(2, 0)));
        // Without ids the two cannot be distinguished.
        let offset = 7;
        let (beginning, _) = topic(0, 3, &commits).beginning(0);
        let is_marked = false;
        assert_eq!(beginning, StartingPoint::Committed { offset, is_marked });
    }

    #[test]
    fn an_offset_that_says_nothing_of_its_topic_is_believed_and_is_to_be_marked() {
        let commits = [commit(0, 7, None)];
        let (offset, is_marked) = (7, false);
        assert_eq!(
            topic(1, 1, &commits).beginning(0),
            (StartingPoint::Committed { offset, is_marked }, mark(1, 0))
        );
        let commits = [commit(0, 7, Some(mark(1, 3)))];
        let is_marked = true;
        assert_eq!(
            topic(1, 3, &commits).beginning(0),
            (StartingPoint::Committed { offset, is_marked }, mark(1, 3))
        );
    }

    fn marks() -> impl Strategy<Value = Option<CommitMetadata>> {
        prop::option::of((0..4_u128, 0..4).prop_map(|(id, newest_below)| mark(id, newest_below)))
    }

    proptest! {
        /// Whatever was committed by whom: a position never belongs to another topic, and only a group that started at
        /// the newest records skips any.
        #[test]
        fn nothing_is_passed_over_that_was_not_read_or_not_wanted(
            id in 1..4_u128,
            partitions in 1..5,
            commits in prop::collection::vec(marks(), 0..5),
            appeared: bool,
            starts_from_oldest: bool,
        ) {
            let commits = commits.into_iter().enumerate();
            let commits: Vec<CommittedOffset> = commits.map(|(n, mark)| commit(n as i32, 10 + n as i64, mark)).collect();
            let topic = TopicHistory { appeared, starts_from_oldest, ..topic(id, partitions, &commits) };
            for partition in 0..partitions {
                let own = commits.iter().find(|commit| commit.partition == partition);
                let (beginning, mark) = topic.beginning(partition);
                prop_assert_eq!(mark.topic, topic.now.id);
                match beginning {
                    StartingPoint::Committed { offset, .. } => {
                        let own = own.unwrap();
                        prop_assert_eq!(offset, own.offset);
                        let counted_in = own.mark.and_then(|mark| mark.topic);
                        prop_assert!(counted_in.is_none() || counted_in == topic.now.id);
                    }
                    StartingPoint::Recreated { .. } => prop_assert_ne!(own.unwrap().mark.unwrap().topic, topic.now.id),
                    StartingPoint::Newest => {
                        prop_assert!(own.is_none());
                        let began = !starts_from_oldest && !appeared && commits.is_empty();
                        let says_so = |commit: &CommittedOffset| commit.mark.is_some_and(|mark| mark.newest_below > partition);
                        prop_assert!(began || commits.iter().any(says_so));
                    }
                    StartingPoint::First => prop_assert!(appeared && commits.is_empty()),
                    StartingPoint::Oldest => prop_assert!(own.is_none()),
                }
            }
        }
    }
}
