//! Maps errors of the database to errors of the store. None of them contains the password.

use std::error::Error as _;

use thalweg_events::EventsError;
use tokio_postgres::Error;

/// The outcome is unknown, or the work was never begun: the caller may retry.
pub(crate) fn unavailable(place: &str, error: &Error) -> EventsError {
    EventsError::Unavailable(format!("the database at {place} does not answer: {}", reason(error)))
}

/// `place`: host and port.
pub(crate) fn failed(place: &str, error: &Error) -> EventsError {
    let Some(answer) = error.as_db_error() else {
        return unavailable(place, error);
    };
    let code = answer.code().code();
    // Connections, resources, shutdown by an operator, rollbacks because of other transactions, read-only servers, lock
    // timeouts, system errors.
    let passes = ["08", "53", "57", "40", "25", "55", "58"]
        .iter()
        .any(|class| code.starts_with(class));
    let text = format!(
        "the database at {place} answers: {} (SQLSTATE {code})",
        answer.message()
    );
    match passes {
        true => EventsError::Unavailable(text),
        false => EventsError::Damaged(text),
    }
}

pub(crate) fn damaged(error: &Error) -> EventsError {
    EventsError::Damaged(format!(
        "the database returns something other than what was stored: {}",
        reason(error)
    ))
}

/// The message with its causes.
pub(crate) fn reason(error: &Error) -> String {
    if let Some(answer) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", answer.message(), answer.code().code());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
