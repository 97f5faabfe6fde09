//! Checks whether the partitions of all topics are read by some member of the group. A client that joined its group or
//! found its topics at the wrong moment may stay a member without partitions, permanently and silently; this monitor
//! detects and fixes that.
//!
//! | the partitions | then |
//! |---|---|
//! | are all assigned to this or other members | covered |
//! | are not this member's while it joins, or while the group rebalances | waiting: the input is not connected, which the log reports after [`SETTLING_MAX`] |
//! | have no member although the group is stable | the client refreshes its topics; after [`OWN_NONE`], or [`OWN_SOME`] if this member has other partitions, it resubscribes, and the input is not connected |
//! | cannot be queried | as if they were covered |
//!
//! A new subscription gives back the member's partitions, so it happens less and less often while it does not help.

use std::time::{Duration, Instant};

use thalweg_kit::backoff::Backoff;

/// Maximum time for a group to assign its partitions.
pub const SETTLING_MAX: Duration = Duration::from_secs(20);
/// A member without partitions loses nothing by resubscribing.
pub const OWN_NONE: Duration = Duration::from_secs(3);
/// All members find new partitions within ten seconds; other clients may take longer.
pub const OWN_SOME: Duration = Duration::from_secs(30);
/// Between two new subscriptions.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(600));

const SETTLING: &str = "the consumer group has assigned no partitions to this member yet; it waits for members that have \
                        died until their session_timeout is over, and for members that hang";

#[derive(Debug, Default)]
pub struct CoverageMonitor {
    settling_since: Option<Instant>,
    bare_since: Option<Instant>,
    /// New subscriptions since the partitions were last covered.
    subscriptions: u32,
    not_before: Option<Instant>,
}

/// What is known about the assignment of the partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupCoverage {
    Covered,
    Settling,
    /// These partitions have no member.
    Bare {
        partitions: String,
        own_none: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoverageAction {
    Connected,
    /// It is too early for a warning: why the input is not connected.
    Wait(&'static str),
    /// The client must refresh its topics.
    Refresh,
    /// Why the input is not connected, and whether to resubscribe.
    Down {
        why: String,
        subscribe: bool,
    },
}

impl CoverageMonitor {
    pub fn found(&mut self, found: GroupCoverage, now: Instant) -> CoverageAction {
        match found {
            GroupCoverage::Covered => {
                *self = CoverageMonitor::default();
                CoverageAction::Connected
            }
            GroupCoverage::Settling => {
                self.bare_since = None;
                let since = *self.settling_since.get_or_insert(now);
                match now.saturating_duration_since(since) < SETTLING_MAX {
                    true => CoverageAction::Wait(SETTLING),
                    false => CoverageAction::Down {
                        why: SETTLING.to_owned(),
                        subscribe: false,
                    },
                }
            }
            GroupCoverage::Bare { partitions, own_none } => self.bare(&partitions, own_none, now),
        }
    }

    fn bare(&mut self, partitions: &str, own_none: bool, now: Instant) -> CoverageAction {
        self.settling_since = None;
        let since = *self.bare_since.get_or_insert(now);
        let patience = if own_none { OWN_NONE } else { OWN_SOME };
        if now.saturating_duration_since(since) < patience {
            return CoverageAction::Refresh;
        }
        let subscribe = self.not_before.is_none_or(|due| due <= now);
        if subscribe {
            self.not_before = Some(now + PAUSES.nominal(self.subscriptions));
            self.subscriptions = self.subscriptions.saturating_add(1);
        }
        CoverageAction::Down {
            why: format!(
                "the consumer group is stable, but {partitions} is assigned to none of its members; subscribing again"
            ),
            subscribe,
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_kit::clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn bare(own_none: bool) -> GroupCoverage {
        GroupCoverage::Bare {
            partitions: "partition 0 of t".to_owned(),
            own_none,
        }
    }

    /// Returns the seconds at which it resubscribes, if the state is `found` all the time.
    fn subscriptions(found: &GroupCoverage, seconds: u32) -> Vec<u32> {
        let (mut coverage, begun) = (CoverageMonitor::default(), clock::now());
        let subscribes = |second: &u32| {
            let next = coverage.found(found.clone(), begun + SECOND * *second);
            matches!(next, CoverageAction::Down { subscribe: true, .. })
        };
        (0..seconds).filter(subscribes).collect()
    }

    #[test]
    fn a_member_without_partitions_subscribes_anew_and_less_often_while_it_does_not_help() {
        assert_eq!(subscriptions(&bare(true), 100), [3, 13, 33, 73]);
        assert_eq!(subscriptions(&bare(false), 100), [30, 40, 60]);
        assert!(subscriptions(&GroupCoverage::Settling, 100).is_empty());
    }

    #[test]
    fn a_group_that_settles_is_waited_for_and_told_of_in_the_end() {
        let (mut coverage, begun) = (CoverageMonitor::default(), clock::now());
        assert_eq!(
            coverage.found(GroupCoverage::Settling, begun),
            CoverageAction::Wait(SETTLING)
        );
        let late = coverage.found(GroupCoverage::Settling, begun + SETTLING_MAX);
        assert!(
            matches!(late, CoverageAction::Down { subscribe: false, .. }),
            "{late:?}"
        );
        assert_eq!(
            coverage.found(GroupCoverage::Covered, begun + SETTLING_MAX),
            CoverageAction::Connected
        );
        assert_eq!(
            coverage.found(GroupCoverage::Settling, begun + SETTLING_MAX),
            CoverageAction::Wait(SETTLING)
        );
    }

    #[test]
    fn what_is_covered_again_begins_anew() {
        let (mut coverage, begun) = (CoverageMonitor::default(), clock::now());
        assert_eq!(coverage.found(bare(true), begun), CoverageAction::Refresh);
        coverage.found(GroupCoverage::Covered, begun + SECOND);
        assert_eq!(coverage.found(bare(true), begun + OWN_NONE), CoverageAction::Refresh);
        let late = coverage.found(bare(true), begun + 2 * OWN_NONE);
        assert!(matches!(late, CoverageAction::Down { subscribe: true, .. }), "{late:?}");
    }
}
