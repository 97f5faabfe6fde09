//! Nodes whose calls the server answers slowly or not at all, for example an unreachable device behind a server that
//! waits for it. They use separate calls, in which they delay only each other.
//!
//! A call has one response for all its nodes, so the slow one is found step by step: slow nodes go into smaller and
//! smaller calls, until a fast response clears the unaffected ones.

use std::time::Duration;

use opcua::types::NodeId;
use thalweg_record::{CacheLimits, Remembered};

use crate::node_id;

/// By how much calls of slow nodes become smaller.
const DIVISOR: usize = 8;

/// Limits of the remembered nodes. Messages name some of them, which may never recur.
const NODES: CacheLimits = CacheLimits {
    entries_max: 100_000,
    bytes_max: 64 << 20,
};

/// A response that takes longer than this multiple of the server's fastest one is slow.
const TIMES_QUICKEST: u32 = 4;

pub(super) struct SlowNodes {
    /// Maximum nodes of a call that contains this one.
    limits: Remembered<NodeId, usize>,
    /// A response within this time is never slow.
    patience_min: Duration,
    quickest: Option<Duration>,
}

impl SlowNodes {
    pub fn new(patience_min: Duration) -> SlowNodes {
        SlowNodes {
            limits: Remembered::within(NODES),
            patience_min,
            quickest: None,
        }
    }

    /// How long a response may take. A server that is slow altogether, such as a distant one, gets more time.
    pub fn patience(&self) -> Duration {
        let usual = self.quickest.unwrap_or_default() * TIMES_QUICKEST;
        self.patience_min.max(usual)
    }

    /// `None`: the node may be in any call.
    pub fn limit(&self, node: &NodeId) -> Option<usize> {
        self.limits.get(node).copied()
    }

    /// The server or the network path may be another one.
    pub fn new_session(&mut self) {
        self.quickest = None;
    }

    /// Records that a call of these nodes took this long.
    pub fn answered<'n>(&mut self, nodes: impl ExactSizeIterator<Item = &'n NodeId>, took: Duration) {
        // Judged by earlier responses: the first one may be the slow one.
        let patience = self.patience();
        self.quickest = Some(self.quickest.map_or(took, |quickest| quickest.min(took)));
        if took >= patience {
            return self.unanswered(nodes);
        }
        for node in nodes {
            self.limits.remove(node);
        }
    }

    /// Records that a call of these nodes exceeded the patience.
    pub fn unanswered<'n>(&mut self, nodes: impl ExactSizeIterator<Item = &'n NodeId>) {
        let limit = nodes.len().div_ceil(DIVISOR).max(1);
        for node in nodes {
            self.limits.insert(node.clone(), limit, node_id::heap_bytes(node));
        }
    }

    /// Returns the candidates, in order, that fit into one call of at most `most`. With `apart` it is a call of slow
    /// nodes, otherwise of all others.
    pub fn pick<'n, T>(&self, candidates: impl Iterator<Item = (T, &'n NodeId)>, most: usize, apart: bool) -> Vec<T> {
        let (mut picked, mut most) = (Vec::new(), most);
        if apart && self.limits.is_empty() {
            return picked;
        }
        for (candidate, node) in candidates {
            let limit = self.limit(node);
            if limit.is_some() != apart {
                continue;
            }
            most = most.min(limit.unwrap_or(most));
            if picked.len() >= most {
                break;
            }
            picked.push(candidate);
        }
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(5);
    const SLOW: Duration = Duration::from_secs(9);

    fn nodes(n: u32) -> Vec<NodeId> {
        (0..n).map(|i| NodeId::new(2, i)).collect()
    }

    /// Runs the calls of all slow nodes among these and returns their sizes; the call with node 7 is slow.
    fn round(slow: &mut SlowNodes, nodes: &[NodeId]) -> Vec<usize> {
        let mut rest: Vec<&NodeId> = nodes.iter().filter(|node| slow.limit(node).is_some()).collect();
        let mut calls = Vec::new();
        while !rest.is_empty() {
            let picked = slow.pick(rest.iter().map(|node| (*node, *node)), 1000, true);
            rest.retain(|node| !picked.contains(node));
            calls.push(picked);
        }
        for call in &calls {
            let is_slow = call.contains(&&NodeId::new(2, 7u32));
            slow.answered(call.iter().copied(), if is_slow { SLOW } else { QUICK });
        }
        calls.iter().map(Vec::len).collect()
    }

    #[test]
    fn the_node_that_holds_up_a_call_is_found_and_the_others_are_cleared() {
        let (mut slow, nodes) = (SlowNodes::new(Duration::from_secs(1)), nodes(100));
        slow.unanswered(nodes.iter());
        assert_eq!(round(&mut slow, &nodes), [13, 13, 13, 13, 13, 13, 13, 9]);
        assert_eq!(round(&mut slow, &nodes), [2, 2, 2, 2, 2, 2, 1]);
        assert_eq!(round(&mut slow, &nodes), [1, 1]);
        assert_eq!(round(&mut slow, &nodes), [1]);
        // The others share a call, as many as fit.
        let fine = slow.pick(nodes.iter().map(|node| (node, node)), 1000, false);
        assert_eq!(fine.len(), 99);
    }

    #[test]
    fn a_server_that_is_slow_with_everything_is_waited_for_longer() {
        let (mut slow, nodes) = (SlowNodes::new(Duration::from_secs(1)), nodes(3));
        let two = Duration::from_secs(2);
        slow.answered(nodes.iter(), two);
        assert_eq!((slow.limit(&nodes[0]), slow.patience()), (Some(1), two * 4));
        slow.answered(nodes.iter(), two);
        assert_eq!(slow.limit(&nodes[0]), None);
        slow.answered(nodes.iter(), QUICK);
        assert_eq!(slow.patience(), Duration::from_secs(1));
        slow.answered(nodes.iter(), two);
        assert_eq!(slow.limit(&nodes[0]), Some(1));
    }
}
