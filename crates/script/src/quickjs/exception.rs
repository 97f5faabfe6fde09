//! Formats exceptions and limits as one sentence with the position in the script.

use super::compile::Wrapping;
use super::convert::ResultReadError;
use super::runtime::QuickJsRuntime;
use super::runtime_state::LimitHit;
use super::text::console_text;
use super::value::{Ctx, Val};
use crate::{Failure, FailureKind, ScriptLimits};

/// What was thrown, and where in the script.
pub(super) struct ScriptException {
    pub text: String,
    pub line: Option<usize>,
    pub column: Option<usize>,
}

/// Takes the pending exception. `file` is the name that the script was compiled under.
pub(super) fn describe(ctx: Ctx, file: &str, wrapping: &Wrapping) -> ScriptException {
    let (before, _) = wrapping.parts();
    describe_after(ctx, file, before.chars().count())
}

/// Like [`describe`], for a script whose first line has that many characters before it.
pub(super) fn describe_after(ctx: Ctx, file: &str, first_line_shift: usize) -> ScriptException {
    let exception = ctx.take_exception();
    let text = exception_text(&exception);
    let place = stack_text(&exception).and_then(|stack| position(&stack, file));
    // Converting the exception to a text may itself have thrown.
    drop(ctx.take_exception());
    match place {
        Some((line, column)) => {
            let shift = if line == 1 { first_line_shift } else { 0 };
            ScriptException {
                text,
                line: Some(line),
                column: Some(column.saturating_sub(shift).max(1)),
            }
        }
        None => ScriptException {
            text,
            line: None,
            column: None,
        },
    }
}

fn exception_text(exception: &Val) -> String {
    let text = if exception.is_error() || exception.is_string() {
        exception.text()
    } else {
        console_text(std::slice::from_ref(exception))
    };
    text.unwrap_or_else(|_| "an exception whose text cannot be read".to_owned())
}

fn stack_text(exception: &Val) -> Option<String> {
    if !exception.is_error() {
        return None;
    }
    let stack = exception.get_named(c"stack").ok()?;
    if stack.is_string() { stack.text().ok() } else { None }
}

/// The innermost position in `file` in a stack trace.
fn position(stack: &str, file: &str) -> Option<(usize, usize)> {
    stack.lines().find_map(|frame| {
        let at = frame.rfind(&format!("{file}:"))?;
        let starts_name = frame.get(..at).is_some_and(|before| before.ends_with([' ', '(']));
        let numbers = frame.get(at + file.len() + 1..)?.trim_end_matches(')');
        let (line, column) = numbers.split_once(':')?;
        starts_name.then_some((line.parse().ok()?, column.parse().ok()?))
    })
}

/// The failure of a call that did not complete.
pub(super) fn failure(machine: &QuickJsRuntime, unread: ResultReadError, file: &str, wrapping: &Wrapping) -> Failure {
    match unread {
        ResultReadError::Bad(text) => Failure {
            kind: FailureKind::BadReturn,
            text,
        },
        ResultReadError::Limit(text) => Failure {
            kind: FailureKind::Limit,
            text,
        },
        ResultReadError::Thrown => {
            let ScriptException { text, line, column } = describe(machine.ctx(), file, wrapping);
            let overflow = text.ends_with("Maximum call stack size exceeded");
            let text = match (overflow, line, column) {
                (true, ..) => format!("{text}; raise scripting.stack if the script needs it"),
                (false, Some(line), Some(column)) => format!("{text} (line {line}, column {column})"),
                (false, ..) => text,
            };
            let kind = if overflow {
                FailureKind::Limit
            } else {
                FailureKind::Exception
            };
            Failure { kind, text }
        }
    }
}

/// A call that took too long.
pub(super) fn timeout(limits: &ScriptLimits) -> Failure {
    Failure {
        kind: FailureKind::Timeout,
        text: format!("the script ran longer than {:?} and was stopped", limits.timeout),
    }
}

/// Whether the call reached a limit, even if the script caught the error.
pub(super) fn limit_reached(machine: &QuickJsRuntime, limits: &ScriptLimits) -> Option<Failure> {
    let fail = |kind, text| Some(Failure { kind, text });
    if machine.out_of_time() {
        return Some(timeout(limits));
    }
    if machine.out_of_memory() {
        let limit = limits.memory;
        let text = format!("the script needed more than {limit} bytes; raise scripting.memory if that is meant");
        return fail(FailureKind::Limit, text);
    }
    match machine.shared().hit.get()? {
        LimitHit::Cache(full) => fail(FailureKind::Limit, format!("cache.set: {full}")),
        // The failure itself reports it.
        LimitHit::Results => None,
    }
}
