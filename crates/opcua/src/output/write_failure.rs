//! Interprets the server's response to an operation.
//!
//! | response | result |
//! |---|---|
//! | a status of the node that would recur ([`status::says_never`]) | rejected permanently |
//! | another bad status of the node | to be written again |
//! | another value than the written one until the deadline | rejected permanently after its attempts |
//! | none (timeout, the whole call refused) | to be written again |

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
    /// `None`: a retry may succeed.
    pub permanent: Option<DropReason>,
    /// Whether further attempts of the handshake make sense.
    pub again: bool,
    pub error: String,
    /// The label in the metrics.
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

    /// For a call as a whole: nothing is known about its operations, so none of them has had an attempt.
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

/// The node's refusal of a value; `None` if it was accepted.
pub(super) fn refusal(target: &WriteTarget, code: u32) -> Option<WriteFailure> {
    let WriteTarget { node, value } = target;
    let (node, value) = (node_id::text(node), shown(value));
    let error = || format!("{node} does not accept the value {value}: {}", status::text(code));
    status::is_bad(code).then(|| WriteFailure::of_status(code, error()))
}

/// The difference between the value read back and the written one; `None` if value and type are equal.
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

/// Same type and equal value; not-a-number equals itself.
fn is_same(read: &Value, written: &Value) -> bool {
    match (read, written) {
        (Value::F32(a), Value::F32(b)) => a == b || (a.is_nan() && b.is_nan()),
        (Value::F64(a), Value::F64(b)) => a == b || (a.is_nan() && b.is_nan()),
        _ => read == written,
    }
}
