//! Maps errors of the database to errors of the store. None of them contains the password.

use std::error::Error as _;

use thalweg_events::EventsError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// The outcome is unknown, or the work was never begun: the caller may retry.
pub(crate) fn unavailable(place: &str, error: &Error) -> EventsError {
    EventsError::Unavailable(format!("the database at {place} does not answer: {}", reason(error)))
}

/// `place`: host and port.
pub(crate) fn failed(place: &str, error: &Error) -> EventsError {
    let Some(answer) = error.as_db_error() else {
        return unavailable(place, error);
    };
    let text = format!(
        "the database at {place} answers: {} (SQLSTATE {})",
        answer.message(),
        answer.code().code()
    );
    match SqlStateClass::of(answer.code()) {
        SqlStateClass::Connection
        | SqlStateClass::ReadOnly
        | SqlStateClass::Rollback
        | SqlStateClass::Resources
        | SqlStateClass::Lock
        | SqlStateClass::Operator
        | SqlStateClass::System => EventsError::Unavailable(text),
        SqlStateClass::Statement => EventsError::Damaged(text),
    }
}

/// The class of an SQLSTATE, its first two characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SqlStateClass {
    Connection,
    /// The transaction may not do this, for example because the server is a standby.
    ReadOnly,
    /// The transaction was rolled back because of another one.
    Rollback,
    Resources,
    /// The timeout of a lock is in this class.
    Lock,
    /// An operator ended the connection, or the server starts or stops.
    Operator,
    System,
    /// All others: the statement or the data is wrong.
    Statement,
}

impl SqlStateClass {
    fn of(state: &SqlState) -> SqlStateClass {
        match state.code().get(..2) {
            Some("08") => SqlStateClass::Connection,
            Some("25") => SqlStateClass::ReadOnly,
            Some("40") => SqlStateClass::Rollback,
            Some("53") => SqlStateClass::Resources,
            Some("55") => SqlStateClass::Lock,
            Some("57") => SqlStateClass::Operator,
            Some("58") => SqlStateClass::System,
            _ => SqlStateClass::Statement,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_belongs_to_the_class_of_its_first_characters() {
        for (state, class) in [
            (SqlState::CONNECTION_FAILURE, SqlStateClass::Connection),
            (SqlState::READ_ONLY_SQL_TRANSACTION, SqlStateClass::ReadOnly),
            (SqlState::T_R_DEADLOCK_DETECTED, SqlStateClass::Rollback),
            (SqlState::DISK_FULL, SqlStateClass::Resources),
            (SqlState::LOCK_NOT_AVAILABLE, SqlStateClass::Lock),
            (SqlState::ADMIN_SHUTDOWN, SqlStateClass::Operator),
            (SqlState::IO_ERROR, SqlStateClass::System),
            (SqlState::UNIQUE_VIOLATION, SqlStateClass::Statement),
            (SqlState::from_code("é"), SqlStateClass::Statement),
        ] {
            assert_eq!(SqlStateClass::of(&state), class, "{state:?}");
        }
    }
}
