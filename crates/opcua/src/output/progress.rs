//! How far a write is, message by message. A message is written when all that is to be written of it is; whatever ends a
//! write early leaves the others as they are: not written, to be tried again.
//!
//! | message | becomes |
//! |---|---|
//! | open | written, with its last operation; refused, with the first one that fails for good; waiting, with one that fails for now |
//! | written, refused, waiting | nothing else |
//!
//! Values of a node go to it in the order of the messages. So while a message waits to be written again, no later one is
//! written that shares a node with it: it waits too.

use hashbrown::HashSet;
use opcua::types::NodeId;
use thalweg_flow::Rejection;
use thalweg_record::DropReason;

use super::prepare::Operation;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// `None`: trying again may help.
    pub permanent: Option<DropReason>,
    pub error: String,
}

pub(super) struct Progress {
    /// Those of a message stand together, in the order of the messages.
    operations: Vec<Operation>,
    /// Per message.
    states: Vec<State>,
    /// Nodes of messages that wait.
    held_up: HashSet<NodeId>,
}

#[derive(Clone, Debug)]
enum State {
    /// With so many operations to go; none: written.
    Open(usize),
    Refused(Rejection),
    Waiting(String),
}

impl Progress {
    /// `rejections` are of messages without operations.
    pub fn new(messages: usize, operations: Vec<Operation>, rejections: Vec<Rejection>) -> Progress {
        let mut states = vec![State::Open(0); messages];
        for operation in &operations {
            if let Some(State::Open(left)) = states.get_mut(operation.message) {
                *left += 1;
            }
        }
        for rejection in rejections {
            if let Some(state) = states.get_mut(rejection.index) {
                *state = State::Refused(rejection);
            }
        }
        Progress {
            operations,
            states,
            held_up: HashSet::new(),
        }
    }

    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// How many operations from this one on can be written at once. No node is among them twice: the server may process
    /// those of a call in any order, and what is read back must be the value that was written. They are those of whole
    /// messages, or a part of one that has a node twice: nobody writes a node of a message whose fate is open.
    pub fn round(&self, start: usize) -> usize {
        let rest = self.operations.get(start..).unwrap_or_default();
        let before = start.checked_sub(1).and_then(|last| self.operations.get(last));
        let mut nodes = HashSet::new();
        let mut count = 0;
        for message in rest.chunk_by(|a, b| a.message == b.message) {
            let new = message
                .iter()
                .take_while(|operation| nodes.insert(&operation.node))
                .count();
            let is_rest = before.map(|before| before.message) == message.first().map(|first| first.message);
            if is_rest || (count == 0 && new < message.len()) {
                return new;
            }
            if new < message.len() {
                break;
            }
            count += new;
        }
        count
    }

    /// Whether an operation is still to be carried out.
    pub fn admits(&mut self, operation: usize) -> bool {
        let Some(Operation { message, node, .. }) = self.operations.get(operation) else {
            return false;
        };
        if !matches!(self.states.get(*message), Some(State::Open(_))) {
            return false;
        }
        if self.held_up.contains(node) {
            let error = "an earlier value of the same node is written first".to_owned();
            self.fail(operation, Failure { permanent: None, error });
            return false;
        }
        true
    }

    pub fn succeed(&mut self, operation: usize) {
        let message = self.operations.get(operation).map(|operation| operation.message);
        if let Some(State::Open(left)) = message.and_then(|message| self.states.get_mut(message)) {
            *left = left.saturating_sub(1);
        }
    }

    pub fn fail(&mut self, operation: usize, failure: Failure) {
        let Some(message) = self.operations.get(operation).map(|operation| operation.message) else {
            return;
        };
        let Some(state @ State::Open(_)) = self.states.get_mut(message) else {
            return;
        };
        match failure.permanent {
            Some(reason) => *state = State::Refused(Rejection::permanent(message, reason, failure.error)),
            None => {
                *state = State::Waiting(failure.error);
                self.hold_up(message);
            }
        }
    }

    fn hold_up(&mut self, message: usize) {
        let start = self.operations.partition_point(|operation| operation.message < message);
        let rest = self.operations.get(start..).unwrap_or_default();
        let own = rest.iter().take_while(|operation| operation.message == message);
        self.held_up.extend(own.map(|operation| operation.node.clone()));
    }

    /// What was not written, in order; `unfinished` is why messages are still open.
    pub fn into_rejections(self, unfinished: &str) -> Vec<Rejection> {
        let states = self.states.into_iter().enumerate();
        let rejections = states.filter_map(|(index, state)| match state {
            State::Open(0) => None,
            State::Open(_) => Some(Rejection::temporary(index, unfinished)),
            State::Refused(rejection) => Some(rejection),
            State::Waiting(error) => Some(Rejection::temporary(index, error)),
        });
        rejections.collect()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_record::Value;

    use super::*;

    /// One operation per pair of a message and a node.
    fn progress(operations: &[(usize, u32)]) -> Progress {
        let messages = operations.iter().map(|(message, _)| message + 1).max().unwrap_or(0);
        let operation = |(message, node): &(usize, u32)| Operation {
            message: *message,
            node: NodeId::new(2, *node),
            value: Value::Null,
        };
        Progress::new(messages, operations.iter().map(operation).collect(), Vec::new())
    }

    fn failure(permanent: Option<DropReason>) -> Failure {
        Failure {
            permanent,
            error: "because".to_owned(),
        }
    }

    /// The messages to be tried again and those refused for good.
    fn fates(progress: Progress) -> (Vec<usize>, Vec<usize>) {
        let (later, never): (Vec<_>, Vec<_>) = progress
            .into_rejections("unfinished")
            .into_iter()
            .partition(|rejection| rejection.permanent.is_none());
        let indexes = |rejections: Vec<Rejection>| rejections.into_iter().map(|rejection| rejection.index).collect();
        (indexes(later), indexes(never))
    }

    fn rounds(operations: &[(usize, u32)]) -> Vec<usize> {
        let progress = progress(operations);
        let mut rounds = Vec::new();
        let mut start = 0;
        while start < operations.len() {
            rounds.push(progress.round(start));
            start += progress.round(start);
        }
        rounds
    }

    #[test]
    fn a_round_ends_before_a_message_with_a_node_that_it_has() {
        assert_eq!(
            rounds(&[(0, 1), (0, 2), (1, 3), (2, 4), (2, 1), (3, 4), (4, 5)]),
            [3, 2, 2]
        );
        assert_eq!(rounds(&[(0, 1), (1, 1), (2, 1)]), [1, 1, 1]);
        assert_eq!(rounds(&[]), [] as [usize; 0]);
    }

    #[test]
    fn a_message_that_has_a_node_twice_is_written_in_parts_and_alone() {
        // The third may not be written beside the last part: if that fails, the whole second one comes again, behind it.
        assert_eq!(rounds(&[(0, 7), (1, 1), (1, 2), (1, 1), (2, 2), (3, 3)]), [1, 2, 1, 2]);
        assert_eq!(rounds(&[(0, 1), (0, 1), (0, 1)]), [1, 1, 1]);
    }

    #[test]
    fn a_message_is_written_with_its_last_operation() {
        let mut progress = progress(&[(0, 1), (0, 2), (1, 3), (2, 4)]);
        [0, 2].into_iter().for_each(|operation| progress.succeed(operation));
        assert_eq!(fates(progress), (vec![0, 2], vec![]));
    }

    #[test]
    fn one_that_is_refused_for_good_holds_nobody_up() {
        let mut progress = progress(&[(0, 1), (0, 2), (1, 1)]);
        progress.fail(0, failure(Some(DropReason::OutputRejected)));
        assert!(!progress.admits(1) && progress.admits(2));
        progress.succeed(2);
        assert_eq!(fates(progress), (vec![], vec![0]));
    }

    #[test]
    fn one_that_waits_holds_up_whoever_shares_a_node_with_it_and_whoever_shares_one_with_those() {
        let mut progress = progress(&[(0, 1), (0, 2), (1, 3), (1, 2), (2, 3), (3, 4)]);
        progress.succeed(0);
        progress.succeed(2);
        progress.fail(1, failure(None));
        assert!(!progress.admits(3) && !progress.admits(4) && progress.admits(5));
        progress.succeed(5);
        assert_eq!(fates(progress), (vec![0, 1, 2], vec![]));
    }
}
