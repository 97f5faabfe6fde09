//! Failed nodes: listed for the operator, and retried after a minute, then after twice as long each time up to an hour.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use thalweg_record::Ticks;

use crate::node_table::NodeIndex;
use crate::value::status;

pub(crate) const FIRST_RETRY: Duration = Duration::from_secs(60);
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(3600);

/// What failed about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeFailureKind {
    /// A configured node that cannot be read or found.
    Root,
    Browse,
    Item,
    Read,
}

impl NodeFailureKind {
    pub fn as_str(self) -> &'static str {
        match self {
            NodeFailureKind::Root => "root",
            NodeFailureKind::Browse => "browse",
            NodeFailureKind::Item => "monitored item",
            NodeFailureKind::Read => "read",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NodeFailure {
    pub status: u32,
    /// A description, if there is no status.
    pub text: Option<String>,
    pub since: Ticks,
    pub attempts: u32,
    pub retry_at: Instant,
}

/// Shared by the browse, which adds and retries, and HTTP, which lists.
#[derive(Debug)]
pub(crate) struct NodeFailures {
    first_retry: Duration,
    list: Mutex<BTreeMap<(NodeFailureKind, NodeIndex), NodeFailure>>,
}

impl Default for NodeFailures {
    fn default() -> NodeFailures {
        NodeFailures::retried_after(FIRST_RETRY)
    }
}

impl NodeFailures {
    /// Creates a list with this delay before the first retry.
    pub fn retried_after(first_retry: Duration) -> NodeFailures {
        NodeFailures {
            first_retry,
            list: Mutex::default(),
        }
    }

    pub fn first_retry(&self) -> Duration {
        self.first_retry
    }

    pub fn add(&self, what: NodeFailureKind, node: NodeIndex, status: u32, text: Option<String>) {
        let mut list = self.list.lock();
        let now = clock::now();
        let failure = list.entry((what, node)).or_insert_with(|| NodeFailure {
            status,
            text: None,
            since: Ticks::now(),
            attempts: 0,
            retry_at: now,
        });
        failure.status = status;
        failure.text = text;
        failure.attempts = failure.attempts.saturating_add(1);
        failure.retry_at = now + self.delay(failure.attempts);
    }

    /// The node works again.
    pub fn remove(&self, what: NodeFailureKind, node: NodeIndex) {
        self.list.lock().remove(&(what, node));
    }

    /// Replaces the browse failures of earlier passes with those of another full browse. A node that still fails keeps
    /// its retry schedule, and so does one that was not reached.
    pub fn replace_browse(
        &self,
        newer: Vec<(NodeFailureKind, NodeIndex, NodeFailure)>,
        was_asked: impl Fn(NodeIndex) -> bool,
    ) {
        let still: std::collections::BTreeSet<(NodeFailureKind, NodeIndex)> =
            newer.iter().map(|(what, node, _)| (*what, *node)).collect();
        self.list.lock().retain(|key, _| {
            let is_of_browse = matches!(key.0, NodeFailureKind::Root | NodeFailureKind::Browse);
            !is_of_browse || still.contains(key) || !was_asked(key.1)
        });
        for (what, node, failure) in newer {
            self.add(what, node, failure.status, failure.text);
        }
    }

    /// Nodes that are no longer in the server are not retried.
    pub fn forget(&self, nodes: &[NodeIndex]) {
        let mut list = self.list.lock();
        for what in [
            NodeFailureKind::Root,
            NodeFailureKind::Browse,
            NodeFailureKind::Item,
            NodeFailureKind::Read,
        ] {
            for node in nodes {
                list.remove(&(what, *node));
            }
        }
    }

    /// All nodes of a kind.
    pub fn of_kind(&self, what: NodeFailureKind) -> Vec<NodeIndex> {
        let list = self.list.lock();
        let range = list.range((what, 0)..=(what, NodeIndex::MAX));
        range.map(|((_, node), _)| *node).collect()
    }

    fn delay(&self, attempts: u32) -> Duration {
        Backoff::new(self.first_retry, RETRY_MAX).nominal(attempts.saturating_sub(1))
    }

    pub fn len(&self) -> usize {
        self.list.lock().len()
    }

    /// Describes the failure that most nodes have; `None` if none has failed.
    pub fn summary(&self) -> Option<String> {
        let list = self.list.lock();
        let mut by_status: BTreeMap<u32, (usize, &NodeFailure)> = BTreeMap::new();
        for failure in list.values() {
            by_status.entry(failure.status).or_insert((0, failure)).0 += 1;
        }
        let (status, (count, example)) = by_status.into_iter().max_by_key(|(_, (count, _))| *count)?;
        let why = example.text.clone().unwrap_or_else(|| status::text(status));
        let all = list.len();
        Some(format!(
            "{count} of {all} failures: {why}; /api/v1/opcua/failures lists them"
        ))
    }

    /// Returns the nodes of a kind that are due; each is returned once per retry.
    pub fn due(&self, what: NodeFailureKind, now: Instant) -> Vec<NodeIndex> {
        let mut list = self.list.lock();
        let due = list
            .range_mut((what, 0)..=(what, NodeIndex::MAX))
            .filter(|(_, failure)| failure.retry_at <= now);
        due.map(|((_, node), failure)| {
            // Without a result of the retry, the next one comes after the same delay again.
            failure.retry_at = now + self.delay(failure.attempts);
            *node
        })
        .collect()
    }

    /// A page of the list.
    pub fn page(&self, offset: usize, limit: usize) -> Vec<(NodeFailureKind, NodeIndex, NodeFailure)> {
        let list = self.list.lock();
        let page = list.iter().skip(offset).take(limit);
        page.map(|((what, node), failure)| (*what, *node, failure.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_come_after_a_minute_and_then_ever_later_up_to_an_hour() {
        let minutes: Vec<u64> = (1..=9)
            .map(|n| NodeFailures::default().delay(n).as_secs() / 60)
            .collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn another_browse_keeps_the_attempts_of_who_still_fails_and_nothing_of_who_does_not() {
        let failures = NodeFailures::default();
        for (what, node) in [
            (NodeFailureKind::Root, 1),
            (NodeFailureKind::Root, 1),
            (NodeFailureKind::Browse, 2),
            (NodeFailureKind::Item, 3),
            (NodeFailureKind::Read, 4),
            (NodeFailureKind::Browse, 5),
        ] {
            failures.add(what, node, 0, None);
        }
        let newer = NodeFailures::default();
        newer.add(NodeFailureKind::Root, 1, 5, None);
        newer.add(NodeFailureKind::Browse, 9, 6, None);
        failures.replace_browse(newer.page(0, 10), |node| node != 5);
        let listed: Vec<_> = failures
            .page(0, 10)
            .into_iter()
            .map(|(w, n, f)| (w, n, f.attempts))
            .collect();
        let expected = [
            (NodeFailureKind::Root, 1, 3),
            (NodeFailureKind::Browse, 5, 1),
            (NodeFailureKind::Browse, 9, 1),
            (NodeFailureKind::Item, 3, 1),
            (NodeFailureKind::Read, 4, 1),
        ];
        assert_eq!(listed, expected);
        failures.forget(&[3, 9]);
        assert_eq!(
            (
                failures.of_kind(NodeFailureKind::Item),
                failures.of_kind(NodeFailureKind::Read)
            ),
            (vec![], vec![4])
        );
        assert_eq!(failures.len(), 3);
    }

    #[test]
    fn the_summary_is_what_most_nodes_have_in_common() {
        let failures = NodeFailures::default();
        assert_eq!(failures.summary(), None);
        failures.add(NodeFailureKind::Item, 1, 0x8034_0000, None);
        failures.add(NodeFailureKind::Item, 2, 0x80AB_0000, Some("an argument".to_owned()));
        failures.add(NodeFailureKind::Item, 3, 0x80AB_0000, None);
        let summary = failures.summary().unwrap();
        assert_eq!(
            summary,
            "2 of 3 failures: an argument; /api/v1/opcua/failures lists them"
        );
    }

    #[test]
    fn a_failure_is_due_once_per_delay_until_it_is_removed() {
        let failures = NodeFailures::default();
        failures.add(NodeFailureKind::Item, 7, 0x8034_0000, None);
        failures.add(NodeFailureKind::Browse, 8, 0, Some("x".to_owned()));
        let now = clock::now();
        assert!(failures.due(NodeFailureKind::Item, now).is_empty());
        let later = now + Duration::from_secs(61);
        assert_eq!(failures.due(NodeFailureKind::Item, later), [7]);
        assert!(failures.due(NodeFailureKind::Item, later).is_empty());
        failures.remove(NodeFailureKind::Item, 7);
        assert_eq!(failures.page(0, 10).len(), 1);
        assert_eq!(failures.len(), 1);
    }
}
