//! Which operations may begin when, and the results of messages.

use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;

use super::*;

const UA: &str = "http://opcfoundation.org/UA/";

fn namespaces(n: usize) -> NamespaceArray {
    let uris = [UA, "urn:server", "urn:plant"].iter().take(n);
    NamespaceArray::new(uris.map(|uri| (*uri).to_owned()).collect())
}

/// Queues for a server with two namespaces.
#[derive(Default)]
struct Setup {
    lines: NodeQueues,
    answers: Vec<Receiver<Result<(), WriteError>>>,
}

impl Setup {
    /// Adds a write of messages, each to these nodes. Operations are numbered across all writes.
    fn write(mut self, messages: &[&[&str]]) -> Setup {
        let wanted = |node: &&str| PreparedWrite {
            node: NodeSpec::parse(node).unwrap(),
            value: Value::Null,
        };
        let messages = messages.iter().map(|nodes| Ok(nodes.iter().map(wanted).collect()));
        let (done, answer) = oneshot::channel();
        self.lines.add(done, messages.collect(), &namespaces(2));
        self.answers.push(answer);
        self
    }

    fn succeed<const N: usize>(&mut self, ids: [OperationId; N]) {
        ids.into_iter().for_each(|id| self.lines.succeed(id));
    }

    fn refuse(&mut self, id: OperationId) -> Vec<OperationId> {
        self.lines.refuse(id, DropReason::OutputRejected, "because".to_owned())
    }

    /// The rejected messages of a write; `None` if it has not ended.
    fn refused(&mut self, write: usize) -> Option<Vec<usize>> {
        match self.answers[write].try_recv() {
            Ok(Ok(())) => Some(Vec::new()),
            Ok(Err(WriteError::Some(rejections))) => Some(rejections.iter().map(|rejection| rejection.index).collect()),
            Err(TryRecvError::Empty) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is left behind.
    fn assert_empty(&self) {
        let NodeQueues {
            operations,
            lines,
            writes,
            heads,
            homeless,
            ..
        } = &self.lines;
        assert!(operations.is_empty() && lines.is_empty() && writes.is_empty() && homeless.is_empty());
        assert!(heads.is_empty());
    }
}

#[test]
fn a_node_gets_one_value_after_the_other_and_holds_up_no_other_node() {
    let mut setup = Setup::default()
        .write(&[&["i=1", "i=2"], &["i=1", "i=3"]])
        .write(&[&["i=2"], &["i=1"]]);
    assert_eq!(setup.lines.begin(), [0, 1, 3]);
    setup.succeed([1, 3]);
    assert_eq!(setup.lines.begin(), [4]);
    setup.succeed([4]);
    // The first node is blocked all the time.
    assert!(setup.lines.begin().is_empty());
    assert_eq!((setup.refused(0), setup.refused(1)), (None, None));
    setup.succeed([0]);
    assert_eq!(setup.lines.begin(), [2]);
    setup.succeed([2]);
    assert_eq!(setup.lines.begin(), [5]);
    assert_eq!((setup.refused(0), setup.refused(1)), (Some(vec![]), None));
    setup.succeed([5]);
    assert_eq!(setup.refused(1), Some(vec![]));
    setup.assert_empty();
}

#[test]
fn a_message_that_has_a_node_twice_is_written_in_parts() {
    let mut setup = Setup::default().write(&[&["i=1", "i=1", "i=2"]]);
    assert_eq!(setup.lines.begin(), [0, 2]);
    setup.succeed([2, 0]);
    assert_eq!(setup.lines.begin(), [1]);
    setup.succeed([1]);
    assert_eq!(setup.refused(0), Some(vec![]));
    setup.assert_empty();
}

#[test]
fn nothing_more_is_begun_of_a_message_that_is_refused_and_its_lines_go_on() {
    let mut setup = Setup::default().write(&[&["i=1"], &["i=1", "i=2", "i=3"], &["i=1"], &["i=2"]]);
    assert_eq!(setup.lines.begin(), [0, 2, 3]);
    // Another operation may be in a call, whose response is awaited.
    assert_eq!(setup.refuse(3), [2]);
    assert!(setup.lines.begin().is_empty());
    setup.lines.leave(2);
    assert_eq!(setup.lines.begin(), [5]);
    // The queue skips the one that was not begun.
    setup.succeed([0]);
    assert_eq!(setup.lines.begin(), [4]);
    setup.succeed([5, 4]);
    assert_eq!(setup.refused(0), Some(vec![1]));
    setup.assert_empty();
}

#[test]
fn a_write_of_which_nothing_is_wanted_ends_at_once() {
    let mut setup = Setup::default();
    let (done, answer) = oneshot::channel();
    let rejection = Rejection::permanent(0, DropReason::InvalidValue, "because");
    setup.lines.add(done, vec![Err(rejection)], &NamespaceArray::default());
    setup.answers.push(answer);
    assert_eq!(setup.refused(0), Some(vec![0]));
    setup.assert_empty();
}

#[test]
fn what_was_not_confirmed_begins_anew_with_another_session() {
    let mut setup = Setup::default().write(&[&["i=1", "nsu=urn:server;i=2"], &["i=1"], &["i=3", "i=4"]]);
    assert_eq!(setup.lines.begin(), [0, 1, 3, 4]);
    setup.succeed([1]);
    // No operation of a rejected message begins.
    assert_eq!(setup.refuse(3), [4]);
    setup.lines.restart(&[UA, "urn:plant", "urn:server"].into());
    assert_eq!(setup.lines.begin(), [0]);
    setup.succeed([0]);
    assert_eq!(setup.lines.begin(), [2]);
    setup.succeed([2]);
    assert_eq!(setup.refused(0), Some(vec![2]));
    setup.assert_empty();
}

#[test]
fn nodes_are_found_by_the_uri_of_their_namespace_in_each_session() {
    let mut setup = Setup::default().write(&[&["nsu=urn:server;i=2"]]);
    assert_eq!(setup.lines.begin(), [0]);
    assert_eq!(setup.lines.node(0), Some(&NodeId::new(1, 2u32)));
    setup.lines.restart(&[UA, "urn:plant", "urn:server"].into());
    assert_eq!(setup.lines.begin(), [0]);
    assert_eq!(setup.lines.node(0), Some(&NodeId::new(2, 2u32)));
}

#[test]
fn a_message_waits_for_a_namespace_that_comes_later_and_keeps_its_place() {
    let plant = "nsu=urn:plant;i=1";
    let mut setup = Setup::default().write(&[&[plant, "i=2"], &["i=2"], &["i=3"], &[plant]]);
    // No part of the first message begins.
    assert_eq!(setup.lines.begin(), [3]);
    assert!(setup.lines.misses_namespaces());
    setup.lines.look_up(&namespaces(2));
    assert!(setup.lines.begin().is_empty());
    setup.lines.look_up(&namespaces(3));
    assert!(!setup.lines.misses_namespaces());
    assert_eq!(setup.lines.begin(), [0, 1]);
    assert_eq!(setup.lines.node(0), Some(&NodeId::new(2, 1u32)));
    setup.succeed([0, 1, 3]);
    assert_eq!(setup.lines.begin(), [2, 4]);
    setup.succeed([2, 4]);
    assert_eq!(setup.refused(0), Some(vec![]));
    setup.assert_empty();
}

#[test]
fn messages_to_a_namespace_that_never_comes_are_refused_and_the_others_go_on() {
    let mut setup = Setup::default()
        .write(&[&["nsu=urn:gone;i=1", "i=2"], &["i=2"]])
        .write(&[&["nsu=urn:gone;i=1"]]);
    assert!(setup.lines.begin().is_empty());
    // The second write came after the query.
    assert_eq!(setup.lines.refuse_homeless(|id, _| id < 3), ["urn:gone"]);
    assert_eq!(setup.lines.begin(), [2]);
    setup.succeed([2]);
    assert_eq!((setup.refused(0), setup.refused(1)), (Some(vec![0]), None));
    assert_eq!(setup.lines.refuse_homeless(|_, uri| uri == "urn:gone"), ["urn:gone"]);
    assert_eq!(setup.refused(1), Some(vec![0]));
    setup.assert_empty();
}
