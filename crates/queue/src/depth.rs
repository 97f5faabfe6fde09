//! How deep a queue is: the largest backlog of the groups that count, told without looking at all of them.
//!
//! Between two looks at all groups the depth is at least the backlog of the group that was slowest, and at most what it was
//! plus what came since, because a backlog grows by nothing but messages that come. Nearly always one of the two decides.
//! A group that goes back breaks that, and has it counted anew.

use std::sync::Arc;

use crate::group::Group;

#[derive(Default)]
pub(crate) struct Depth {
    known: Option<DepthSnapshot>,
}

struct DepthSnapshot {
    depth: u64,
    /// Messages that were ever counted in at the time.
    total: u64,
    slowest: Arc<Group>,
}

impl Depth {
    /// `None` if no group counts.
    pub fn of(groups: &[Arc<Group>]) -> Option<u64> {
        slowest(groups).map(|(_, backlog)| backlog)
    }

    /// Whether `more` messages would make it more than `most`; where no group counts, it is what is retained.
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

/// Of the work groups, or, without any, of the declared streams.
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
