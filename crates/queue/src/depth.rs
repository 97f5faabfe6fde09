//! The depth of a queue: the largest backlog of the groups that count, computed without scanning all groups.
//!
//! Between two scans, the depth is at least the backlog of the group that was slowest, and at most the old depth plus
//! the messages that came since, because a backlog grows only by new messages. Nearly always one of these bounds
//! decides. A group that seeks back breaks this rule and forces a new scan.

use std::sync::Arc;

use crate::group::Group;

#[derive(Default)]
pub(crate) struct Depth {
    known: Option<DepthSnapshot>,
}

struct DepthSnapshot {
    depth: u64,
    /// The total number of messages counted in at the time of the scan.
    total: u64,
    slowest: Arc<Group>,
}

impl Depth {
    /// `None` if no group counts.
    pub fn of(groups: &[Arc<Group>]) -> Option<u64> {
        slowest(groups).map(|(_, backlog)| backlog)
    }

    /// Whether `more` messages would make the depth exceed `most`. Where no group counts, the depth is the number of
    /// retained messages.
    pub fn is_beyond(&mut self, most: u64, more: u64, queue: (&[Arc<Group>], u64, u64)) -> bool {
        let (groups, total, retained) = queue;
        if let Some(known) = &self.known {
            let came = total.saturating_sub(known.total);
            if known.depth + came + more <= most {
                return false;
            }
            if known.slowest.backlog() + more > most {
                return true;
            }
        }
        let Some((group, depth)) = slowest(groups) else {
            return retained + more > most;
        };
        self.known = Some(DepthSnapshot {
            depth,
            total,
            slowest: group.clone(),
        });
        depth + more > most
    }
}

/// Of the work groups, or of the declared stream groups if there are no work groups.
fn slowest(groups: &[Arc<Group>]) -> Option<(&Arc<Group>, u64)> {
    let deepest = |work: bool| {
        let counted = groups
            .iter()
            .filter(move |group| group.is_work() == work && (work || group.is_declared()));
        counted
            .map(|group| (group, group.backlog()))
            .max_by_key(|(_, backlog)| *backlog)
    };
    deepest(true).or_else(|| deepest(false))
}
