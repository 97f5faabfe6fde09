//! After a cut: taking subscriptions over to another session, and fetching what was sent into the broken connection.

use opcua::types::{RepublishRequest, StatusCode, TransferSubscriptionsRequest};

use super::sequence::Missing;
use crate::channel::{Body, CallError};
use crate::session::{REQUEST_TIMEOUT, Session};
use crate::value::status;

/// What the server says of one subscription that was to be transferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transferred {
    pub status: u32,
    /// Messages that it still keeps.
    pub available: Vec<u32>,
}

impl Transferred {
    pub fn is_good(&self) -> bool {
        !status::is_bad(self.status)
    }
}

/// One result per id. A server without the service refuses all.
pub(crate) async fn transfer(session: &Session, ids: Vec<u32>) -> Result<Vec<Transferred>, CallError> {
    let count = ids.len();
    let request = TransferSubscriptionsRequest {
        request_header: Default::default(),
        subscription_ids: Some(ids),
        send_initial_values: true,
    };
    let refused = |status: u32| {
        vec![
            Transferred {
                status,
                available: Vec::new()
            };
            count
        ]
    };
    let response = match session.call(request).await {
        Ok(response) => response,
        Err(CallError::Refused(status)) => return Ok(refused(status)),
        Err(error @ CallError::Closed(_)) => return Err(error),
        Err(_) => return Ok(refused(StatusCode::BadUnexpectedError.bits())),
    };
    let results = response.results.unwrap_or_default();
    if results.len() != count {
        return Ok(refused(StatusCode::BadUnexpectedError.bits()));
    }
    let results = results.into_iter().map(|result| Transferred {
        status: result.status_code.bits(),
        available: result.available_sequence_numbers.unwrap_or_default(),
    });
    Ok(results.collect())
}

/// What a server answers to the wish for a message that was sent before.
pub(crate) enum Republished {
    Message(Body),
    /// It does not keep it, or not any more; it may keep others.
    NotAvailable,
    /// It answers no such wish: there is no use in asking for others.
    Unanswered,
}

pub(crate) async fn republish(session: &Session, subscription_id: u32, number: u32) -> Result<Republished, CallError> {
    let request = RepublishRequest {
        request_header: Default::default(),
        subscription_id,
        retransmit_sequence_number: number,
    };
    match session.call_raw(request, REQUEST_TIMEOUT).await {
        Ok(body) => Ok(Republished::Message(body)),
        Err(error @ CallError::Closed(_)) => Err(error),
        Err(CallError::Refused(status)) if status == StatusCode::BadMessageNotAvailable.bits() => {
            Ok(Republished::NotAvailable)
        }
        Err(_) => Ok(Republished::Unanswered),
    }
}

/// The numbers to ask for, oldest first, if the server says which ones it keeps.
pub(crate) fn worth_asking(missing: Missing, available: &[u32]) -> Vec<u32> {
    let numbers = missing.numbers();
    match available.is_empty() {
        true => numbers.collect(),
        false => numbers.filter(|number| available.contains(number)).collect(),
    }
}

#[cfg(test)]
mod tests;
