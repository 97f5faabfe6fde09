//! Nodes that do not work: listed for the operator, tried again after a minute, then after twice as long each time up to
//! an hour.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_record::Ticks;

use crate::node_table::NodeIndex;

const FIRST_RETRY: Duration = Duration::from_secs(60);
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// What failed about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A configured node that cannot be read or found.
    Root,
    Browse,
    Item,
    Read,
}

impl What {
    pub fn as_str(self) -> &'static str {
        match self {
            What::Root => "root",
            What::Browse => "browse",
            What::Item => "monitored item",
            What::Read => "read",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub status: u32,
    /// What went wrong, where there is no status.
    pub text: Option<String>,
    pub since: Ticks,
    pub attempts: u32,
    pub retry_at: Instant,
}

/// Shared by the browse, which adds and retries, and HTTP, which lists.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    list: Mutex<BTreeMap<(What, NodeIndex), Failure>>,
}

impl Failures {
    pub fn add(&self, what: What, node: NodeIndex, status: u32, text: Option<String>) {
        let mut list = self.list.lock();
        let now = Instant::now();
        let failure = list.entry((what, node)).or_insert_with(|| Failure {
            status,
            text: None,
            since: Ticks::now(),
            attempts: 0,
            retry_at: now,
        });
        failure.status = status;
        failure.text = text;
        failure.attempts = failure.attempts.saturating_add(1);
        failure.retry_at = now + delay(failure.attempts);
    }

    /// The node works again.
    pub fn remove(&self, what: What, node: NodeIndex) {
        self.list.lock().remove(&(what, node));
    }

    /// Forgets what browsing found, before another browse.
    pub fn forget_browse(&self) {
        self.list
            .lock()
            .retain(|(what, _), _| !matches!(what, What::Root | What::Browse));
    }

    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Nodes of a kind whose time has come; each is returned once per retry.
    pub fn due(&self, what: What, now: Instant) -> Vec<NodeIndex> {
        let mut list = self.list.lock();
        let due = list
            .range_mut((what, 0)..=(what, NodeIndex::MAX))
            .filter(|(_, failure)| failure.retry_at <= now);
        due.map(|((_, node), failure)| {
            // Unless the retry reports back, the next one comes after the same delay again.
            failure.retry_at = now + delay(failure.attempts);
            *node
        })
        .collect()
    }

    /// A page of the list.
    pub fn page(&self, offset: usize, limit: usize) -> Vec<(What, NodeIndex, Failure)> {
        let list = self.list.lock();
        let page = list.iter().skip(offset).take(limit);
        page.map(|((what, node), failure)| (*what, *node, failure.clone()))
            .collect()
    }
}

fn delay(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(10);
    (FIRST_RETRY * (1 << doublings)).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_come_after_a_minute_and_then_ever_later_up_to_an_hour() {
        let minutes: Vec<u64> = (1..=9).map(|n| delay(n).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn a_failure_is_due_once_per_delay_until_it_is_removed() {
        let failures = Failures::default();
        failures.add(What::Item, 7, 0x8034_0000, None);
        failures.add(What::Browse, 8, 0, Some("x".to_owned()));
        let now = Instant::now();
        assert!(failures.due(What::Item, now).is_empty());
        let later = now + Duration::from_secs(61);
        assert_eq!(failures.due(What::Item, later), [7]);
        assert!(failures.due(What::Item, later).is_empty());
        failures.remove(What::Item, 7);
        assert_eq!(failures.page(0, 10).len(), 1);
        assert_eq!(failures.len(), 1);
    }
}
