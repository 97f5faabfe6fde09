//! What an answer of the server means for an operation.
//!
//! | what the server says | becomes |
//! |---|---|
//! | a status of the node that another write meets again ([`status::says_never`]) | refused for good |
//! | another bad status of the node | to be written again |
//! | another value than the written one until the end | refused for good: it was given its attempts |
//! | nothing (no answer, the whole call refused) | to be written again |

use opcua::types::StatusCode;
use thalweg_record::{DropReason, Value};

use super::data_type::shown;
use super::write_session::WriteTarget;
use crate::channel::CallError;
use crate::node_id;
use crate::value::{DataValue, ValueContent, status};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WriteFailure {
    /// `None`: trying again may help.
    pub permanent: Option<DropReason>,
    /// Whether the handshake's further attempts are of use.
    pub again: bool,
    pub error: String,
    /// What the metrics call it.
    pub label: String,
}

impl WriteFailure {
    fn of_status(code: u32, error: String) -> WriteFailure {
        let (permanent, again) = match code {
            _ if StatusCode::from(code) == StatusCode::BadRequestTooLarge => (Some(DropReason::TooLarge), false),
            _ if status::says_never(code) => (Some(DropReason::OutputRejected), false),
            _ => (None, true),
        };
        WriteFailure {
            permanent,
            again,
            error,
            label: status::name(code),
        }
    }

    fn of_value(again: bool, error: String) -> WriteFailure {
        WriteFailure {
            permanent: Some(DropReason::OutputRejected),
            again,
            error,
            label: "another_value".to_owned(),
        }
    }

    /// Of a call as a whole: nothing is known of any of its operations, so none of them has had an attempt.
    pub fn of_call(error: &CallError) -> WriteFailure {
        let label = match error {
            CallError::Closed(_) => "closed".to_owned(),
            CallError::Timeout(_) => "timeout".to_owned(),
            CallError::Refused(code) => status::name(*code),
            CallError::Unreadable(_) => "unreadable".to_owned(),
            CallError::WrongCount { .. } => "wrong_count".to_owned(),
            CallError::TooLarge | CallError::RequestTooLarge => "too_large".to_owned(),
        };
        WriteFailure {
            permanent: None,
            again: false,
            error: format!("cannot write to the server: {error}"),
            label,
        }
    }
}

/// How a node refuses a value; `None`: it has taken it.
pub(super) fn refusal(target: &WriteTarget, code: u32) -> Option<WriteFailure> {
    let WriteTarget { node, value } = target;
    let (node, value) = (node_id::text(node), shown(value));
    let error = || format!("{node} does not take the value {value}: {}", status::text(code));
    status::is_bad(code).then(|| WriteFailure::of_status(code, error()))
}

/// How a value that was read back differs from the written one; `None`: it is the same, its type too.
pub(super) fn difference(target: &WriteTarget, read: &DataValue) -> Option<WriteFailure> {
    let node = node_id::text(&target.node);
    let written = &target.value;
    let code = read.stamps.status;
    if status::is_bad(code) {
        let error = format!("{node} cannot be read back: {}", status::text(code));
        return Some(WriteFailure::of_status(code, error));
    }
    let null = Value::Null;
    let value = match &read.content {
        ValueContent::Value(value) => value,
        ValueContent::Nothing => &null,
        ValueContent::TooLarge => {
            let error = format!("{node} cannot be read back: its value is too large");
            return Some(WriteFailure::of_value(false, error));
        }
    };
    if is_same(value, written) {
        return None;
    }
    let (a, b) = (shown(value), shown(written));
    let mut error = format!("read-back value {a} does not match written value {b}: {node}");
    let (read_as, written_as) = (value.type_name(), written.type_name());
    if read_as != written_as {
        error.push_str(&format!(" has the type {read_as}, not {written_as}"));
    }
    Some(WriteFailure::of_value(true, error))
}

/// Of the same type and equal, not-a-number to itself too.
fn is_same(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::F32(a), Value::F32(b)) => a == b || (a.is_nan() && b.is_nan()),
        (Value::F64(a), Value::F64(b)) => a == b || (a.is_nan() && b.is_nan()),
        _ => read == written,
    }
}
