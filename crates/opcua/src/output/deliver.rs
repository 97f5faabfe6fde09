//! One write of messages: round by round to the server and, with the handshake, back.
//!
//! A round is written in as few Writes as the server takes, then read back every 50 ms until all values are the written
//! ones or the time is over. What failed is written again after a pause, as often as the handshake says; only then comes
//! the next round.
//!
//! | what the server says | becomes |
//! |---|---|
//! | a status of the node that another write meets again ([`status::says_never`]) | refused for good |
//! | another bad status of the node | to be written again |
//! | another value than the written one until the end | refused for good: it was given its attempts |
//! | nothing (connection lost, no answer, the whole call refused) | all that is open, to be written again |

use std::time::Duration;

use opcua::types::StatusCode;
use thalweg_flow::{WriteError, all_but};
use thalweg_record::{DropReason, Value};
use tokio::time::{Instant, sleep, sleep_until};

use super::data_type::shown;
use super::prepare::Operation;
use super::progress::{Failure, Progress};
use super::server::Server;
use crate::channel::CallError;
use crate::config::Handshake;
use crate::node_id;
use crate::value::{Content, DataValue, status};

/// Between two looks at a value that is not the written one yet.
const READ_BACK_PERIOD: Duration = Duration::from_millis(50);

/// Writes what is to be written, and tells the fate of each message.
pub(super) async fn deliver(
    server: &Server,
    handshake: Option<Handshake>,
    progress: Progress,
) -> Result<(), WriteError> {
    let mut delivery = Delivery {
        server,
        handshake,
        progress,
    };
    let ended = delivery.run().await;
    let unfinished = match ended {
        Ok(()) => String::new(),
        Err(error) => {
            if error.status().is_some_and(status::says_session_gone) {
                // Whoever keeps the session learns it this way.
                server.session.channel().close(&error.to_string());
            }
            format!("cannot write to the server: {error}")
        }
    };
    all_but(delivery.progress.into_rejections(&unfinished))
}

struct Delivery<'a> {
    server: &'a Server,
    handshake: Option<Handshake>,
    progress: Progress,
}

/// An operation by its index, and why it failed.
type Failed = (usize, Failure, Again);

/// Whether a further attempt is of use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

impl Delivery<'_> {
    async fn run(&mut self) -> Result<(), CallError> {
        let mut start = 0;
        while start < self.progress.operations().len() {
            let end = start + self.progress.round(start).max(1);
            let round = (start..end).filter(|operation| self.progress.admits(*operation));
            let round: Vec<usize> = round.collect();
            self.carry_out(round).await?;
            start = end;
        }
        Ok(())
    }

    /// Operations on different nodes, with all attempts that they have.
    async fn carry_out(&mut self, mut operations: Vec<usize>) -> Result<(), CallError> {
        let (attempts_max, pause) = match self.handshake {
            Some(handshake) => (handshake.attempts_max, handshake.pause),
            None => (1, Duration::ZERO),
        };
        for attempt in 1..=attempts_max {
            let failed = self.attempt(&operations).await?;
            operations.clear();
            for (operation, failure, again) in failed {
                match again == Again::Yes && attempt < attempts_max {
                    true => operations.push(operation),
                    false => self.progress.fail(operation, failure),
                }
            }
            if operations.is_empty() {
                break;
            }
            sleep(pause).await;
        }
        Ok(())
    }

    async fn attempt(&mut self, operations: &[usize]) -> Result<Vec<Failed>, CallError> {
        let (mut written, mut failed) = (Vec::with_capacity(operations.len()), Vec::new());
        let mut rest = operations;
        while !rest.is_empty() {
            let statuses = self.server.write_some(&self.of(rest)).await?;
            let (some, more) = rest.split_at(statuses.len().min(rest.len()));
            for (&operation, status) in some.iter().zip(statuses) {
                if status::is_bad(status) {
                    failed.extend(self.refused(operation, status));
                } else if self.handshake.is_some() {
                    written.push(operation);
                } else {
                    self.progress.succeed(operation);
                }
            }
            rest = more;
        }
        if let Some(handshake) = self.handshake {
            failed.extend(self.read_back(written, handshake.readback_timeout).await?);
        }
        // As they were, for another attempt.
        failed.sort_by_key(|(operation, ..)| *operation);
        Ok(failed)
    }

    /// Reads until all values are the written ones or the time is over; returns those that are not.
    async fn read_back(&mut self, written: Vec<usize>, timeout: Duration) -> Result<Vec<Failed>, CallError> {
        let end = Instant::now() + timeout;
        let (mut waiting, mut failed) = (written, Vec::new());
        loop {
            // Asked before the values are: they are looked at once more at the very end.
            let now = Instant::now();
            let differing = self.look(&waiting).await?;
            let (again, never): (Vec<Failed>, Vec<Failed>) =
                differing.into_iter().partition(|(.., again)| *again == Again::Yes);
            failed.extend(never);
            if again.is_empty() || now >= end {
                failed.extend(again);
                return Ok(failed);
            }
            waiting = again.into_iter().map(|(operation, ..)| operation).collect();
            sleep_until(end.min(Instant::now() + READ_BACK_PERIOD)).await;
        }
    }

    /// Reads values once; those that are the written ones have succeeded.
    async fn look(&mut self, operations: &[usize]) -> Result<Vec<Failed>, CallError> {
        let mut differing = Vec::new();
        let mut rest = operations;
        while !rest.is_empty() {
            let values = self.server.read_some(&self.of(rest)).await?;
            let (some, more) = rest.split_at(values.len().min(rest.len()));
            for (&index, value) in some.iter().zip(values) {
                let operation = self.progress.operations().get(index);
                match operation.and_then(|operation| difference(operation, &value)) {
                    None => self.progress.succeed(index),
                    Some((failure, again)) => differing.push((index, failure, again)),
                }
            }
            rest = more;
        }
        Ok(differing)
    }

    fn refused(&self, index: usize, code: u32) -> Option<Failed> {
        let operation = self.progress.operations().get(index)?;
        let error = format!(
            "{} does not take the value {}: {}",
            node_id::text(&operation.node),
            shown(&operation.value),
            status::text(code)
        );
        let (permanent, again) = fate_of(code);
        Some((index, Failure { permanent, error }, again))
    }

    fn of(&self, operations: &[usize]) -> Vec<&Operation> {
        let all = self.progress.operations();
        operations.iter().filter_map(|&index| all.get(index)).collect()
    }
}

/// What becomes of an operation that the server answers with a bad status.
fn fate_of(code: u32) -> (Option<DropReason>, Again) {
    if StatusCode::from(code) == StatusCode::BadRequestTooLarge {
        return (Some(DropReason::TooLarge), Again::No);
    }
    match status::says_never(code) {
        true => (Some(DropReason::OutputRejected), Again::No),
        false => (None, Again::Yes),
    }
}

/// How a value that was read back differs from the written one; `None`: it is the same, its type too.
fn difference(operation: &Operation, read: &DataValue) -> Option<(Failure, Again)> {
    let node = node_id::text(&operation.node);
    let written = &operation.value;
    let code = read.stamps.status;
    if status::is_bad(code) {
        let error = format!("{node} cannot be read back: {}", status::text(code));
        let (permanent, again) = fate_of(code);
        return Some((Failure { permanent, error }, again));
    }
    let null = Value::Null;
    let value = match &read.content {
        Content::Value(value) => value,
        Content::Nothing => &null,
        Content::TooLarge => {
            let error = format!("{node} cannot be read back: its value is too large");
            let permanent = Some(DropReason::OutputRejected);
            return Some((Failure { permanent, error }, Again::No));
        }
    };
    if is_same(value, written) {
        return None;
    }
    let (a, b) = (shown(value), shown(written));
    let error = match value.type_name() == written.type_name() {
        true => format!("read-back value {a} does not match written value {b}: {node}"),
        false => {
            let (read_as, written_as) = (value.type_name(), written.type_name());
            format!(
                "read-back value {a} does not match written value {b}: {node} has the type {read_as}, not {written_as}"
            )
        }
    };
    let permanent = Some(DropReason::OutputRejected);
    Some((Failure { permanent, error }, Again::Yes))
}

/// Of the same type and equal, not-a-number to itself too.
fn is_same(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::F32(a), Value::F32(b)) => a == b || (a.is_nan() && b.is_nan()),
        (Value::F64(a), Value::F64(b)) => a == b || (a.is_nan() && b.is_nan()),
        _ => read == written,
    }
}
