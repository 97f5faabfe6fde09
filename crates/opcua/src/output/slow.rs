//! Nodes whose calls the server is slow to answer, or does not answer at all: a device that is not there, behind a server
//! that waits for it. They go into calls of their own, where they hold up nobody but each other.
//!
//! One answer comes for all nodes of a call, so which of them it was that took so long shows only by and by: each time they
//! go into smaller calls, until a quick answer clears those that have nothing to do with it.

use std::collections::HashMap;
use std::time::Duration;

use opcua::types::NodeId;

/// By how much calls of slow nodes become smaller.
const DIVISOR: usize = 8;

/// Nodes that are remembered. Some are named by messages, and need never be seen again.
const NODES_MAX: usize = 100_000;

/// An answer that takes longer than this many times the quickest one of the server is slow.
const TIMES_QUICKEST: u32 = 4;

pub(super) struct SlowNodes {
    /// With how many nodes a call may have that has this one.
    limits: HashMap<NodeId, usize>,
    /// An answer that does not take longer is not slow.
    patience_min: Duration,
    quickest: Option<Duration>,
}

impl SlowNodes {
    pub fn new(patience_min: Duration) -> SlowNodes {
        SlowNodes {
            limits: HashMap::new(),
            patience_min,
            quickest: None,
        }
    }

    /// How long an answer may take. A server that is slow with everything, such as one far away, is waited for longer.
    pub fn patience(&self) -> Duration {
        let usual = self.quickest.unwrap_or_default() * TIMES_QUICKEST;
        self.patience_min.max(usual)
    }

    /// `None`: it may be in any call.
    pub fn limit(&self, node: &NodeId) -> Option<usize> {
        self.limits.get(node).copied()
    }

    /// The server may be another one, or at the end of another line.
    pub fn new_session(&mut self) {
        self.quickest = None;
    }

    /// A call of these nodes took so long.
    pub fn answered<'n>(&mut self, nodes: impl ExactSizeIterator<Item = &'n NodeId>, took: Duration) {
        // Judged by the answers before it: the first one may be the one that is slow.
        let patience = self.patience();
        self.quickest = Some(self.quickest.map_or(took, |quickest| quickest.min(took)));
        if took >= patience {
            return self.unanswered(nodes);
        }
        for node in nodes {
            self.limits.remove(node);
        }
    }

    /// A call of these nodes takes longer than patience lasts.
    pub fn unanswered<'n>(&mut self, nodes: impl ExactSizeIterator<Item = &'n NodeId>) {
        let limit = nodes.len().div_ceil(DIVISOR).max(1);
        if self.limits.len() >= NODES_MAX {
            self.limits.clear();
        }
        self.limits.extend(nodes.map(|node| (node.clone(), limit)));
    }

    /// As many of these, one after the other, as go into one call of at most `most`. `apart`: a call of slow nodes, else of
    /// all others.
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

    /// The sizes of the calls of all slow ones among these nodes; the call that has node 7 is slow.
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
        // Of the others as many as fit go together.
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
