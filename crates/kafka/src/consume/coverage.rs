//! Whether the partitions of all topics are read by some member of the group. A client that met its topics, or its group, at the wrong
//! moment stays a member to which nothing is assigned, for good and without a word; this finds it out and ends it.
//!
//! | the partitions | then |
//! |---|---|
//! | are all this member's, or others' | covered |
//! | have no member, while the group settles | waiting: nothing is said for [`SETTLING_MAX`], then the input is not connected |
//! | have no member although the group is settled | the client looks at its topics again; after [`OWN_NONE`], or [`OWN_SOME`] if this member has others, it subscribes anew, and the input is not connected |
//! | cannot be asked for | as if they were covered |
//!
//! To subscribe anew gives back what the member has, so that it is done less and less often while it does not help.

use std::time::{Duration, Instant};

/// So long a group may take to give partitions out.
pub const SETTLING_MAX: Duration = Duration::from_secs(20);
/// A member that has no partitions loses nothing by subscribing anew.
pub const OWN_NONE: Duration = Duration::from_secs(3);
/// New partitions are found by all members within ten seconds; other clients may take longer.
pub const OWN_SOME: Duration = Duration::from_secs(30);
/// A new subscription is given so long to help; then twice of that, and so on.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub struct CoverageMonitor {
    settling_since: Option<Instant>,
    bare_since: Option<Instant>,
    subscribed: Option<Instant>,
    pause: Option<Duration>,
}

/// What was found out of the partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupCoverage {
    Covered,
    Settling,
    /// These belong to nobody.
    Bare {
        partitions: String,
        own_none: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoverageAction {
    Connected,
    /// It is too early to tell.
    Wait,
    /// The client is to look at its topics again.
    Refresh,
    /// The reason why the input is not connected, and whether it is to subscribe anew.
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
                    true => CoverageAction::Wait,
                    false => CoverageAction::Down {
                        why: "the consumer group has given no partitions out yet; is one of its members hung?"
                            .to_owned(),
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
        let pause = self.pause.unwrap_or(PAUSE);
        let lately = |at: Instant| now.saturating_duration_since(at) < pause;
        let subscribe = !self.subscribed.is_some_and(lately);
        if subscribe {
            self.pause = self.subscribed.map(|_| (pause * 2).min(PAUSE_MAX));
            self.subscribed = Some(now);
        }
        CoverageAction::Down {
            why: format!(
                "the consumer group is settled, and {partitions} is given to none of its members; it is subscribed to again"
            ),
            subscribe,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn bare(own_none: bool) -> GroupCoverage {
        GroupCoverage::Bare {
            partitions: "partition 0 of t".to_owned(),
            own_none,
        }
    }

    /// After how many seconds of such findings it subscribes anew.
    fn subscriptions(found: &GroupCoverage, seconds: u32) -> Vec<u32> {
        let (mut coverage, begun) = (CoverageMonitor::default(), Instant::now());
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
        let (mut coverage, begun) = (CoverageMonitor::default(), Instant::now());
        assert_eq!(coverage.found(GroupCoverage::Settling, begun), CoverageAction::Wait);
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
            CoverageAction::Wait
        );
    }

    #[test]
    fn what_is_covered_again_begins_anew() {
        let (mut coverage, begun) = (CoverageMonitor::default(), Instant::now());
        assert_eq!(coverage.found(bare(true), begun), CoverageAction::Refresh);
        coverage.found(GroupCoverage::Covered, begun + SECOND);
        assert_eq!(coverage.found(bare(true), begun + OWN_NONE), CoverageAction::Refresh);
        let late = coverage.found(bare(true), begun + 2 * OWN_NONE);
        assert!(matches!(late, CoverageAction::Down { subscribe: true, .. }), "{late:?}");
    }
}
