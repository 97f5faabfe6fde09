//! Recovery after a connection loss: transfers subscriptions to another session and fetches the messages that were sent
//! into the broken connection.

use hashbrown::HashMap;
use opcua::types::{
    Array, CallMethodRequest, CallRequest, MethodId, ObjectId, RepublishRequest, StatusCode,
    TransferSubscriptionsRequest, Variant,
};

use crate::channel::{AnswerBody, CallError};
use crate::session::{REQUEST_TIMEOUT, Session};
use crate::value::status;

/// Result of transferring one subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionTransfer {
    pub status: u32,
    /// Messages that the server still keeps.
    pub available: Vec<u32>,
}

impl SubscriptionTransfer {
    fn refused(status: u32) -> SubscriptionTransfer {
        SubscriptionTransfer {
            status,
            available: Vec::new(),
        }
    }

    /// Returns whether the subscription belongs to this session: from now on, or since an earlier call whose response
    /// was unusable.
    pub fn is_good(&self) -> bool {
        !status::is_bad(self.status) || status::is_one_of(self.status, &[StatusCode::BadNothingToDo])
    }
}

/// Returns one result per id. A server without the service rejects all.
pub(crate) async fn transfer(session: &Session, ids: &[u32]) -> Result<Vec<SubscriptionTransfer>, CallError> {
    let results = transfer_at_once(session, ids).await?;
    if results.len() == ids.len() {
        return Ok(results);
    }
    // The results cannot be assigned to ids, and some subscriptions may have moved already, so each is transferred
    // alone. A server that does not return exactly one result then counts as having rejected it.
    let mut each = Vec::with_capacity(ids.len());
    for id in ids {
        let mut results = transfer_at_once(session, std::slice::from_ref(id)).await?;
        let alone = results.pop().filter(|_| results.is_empty());
        each.push(alone.unwrap_or(SubscriptionTransfer::refused(StatusCode::BadUnexpectedError.bits())));
    }
    Ok(each)
}

/// Returns as many results as the server sends.
async fn transfer_at_once(session: &Session, ids: &[u32]) -> Result<Vec<SubscriptionTransfer>, CallError> {
    let request = TransferSubscriptionsRequest {
        request_header: Default::default(),
        subscription_ids: Some(ids.to_vec()),
        send_initial_values: true,
    };
    let refused = |status: u32| vec![SubscriptionTransfer::refused(status); ids.len()];
    let response = match session.call(request).await {
        Ok(response) => response,
        Err(CallError::Refused(status)) => return Ok(refused(status)),
        Err(error @ CallError::Closed(_)) => return Err(error),
        Err(_) => return Ok(refused(StatusCode::BadUnexpectedError.bits())),
    };
    let results = response.results.unwrap_or_default();
    let results = results.into_iter().map(|result| SubscriptionTransfer {
        status: result.status_code.bits(),
        available: result.available_sequence_numbers.unwrap_or_default(),
    });
    Ok(results.collect())
}

/// Result of a Republish request.
pub(crate) enum RepublishOutcome {
    Message(AnswerBody),
    /// The server does not keep this message, or no longer does; it may keep others.
    NotAvailable,
    /// The server does not serve such requests, so requesting other messages is pointless.
    Unanswered,
    /// The server does not have the subscription.
    NoSubscription,
}

pub(crate) async fn republish(
    session: &Session,
    subscription_id: u32,
    number: u32,
) -> Result<RepublishOutcome, CallError> {
    let request = RepublishRequest {
        request_header: Default::default(),
        subscription_id,
        retransmit_sequence_number: number,
    };
    match session.call_raw(request, REQUEST_TIMEOUT).await {
        Ok(body) => Ok(RepublishOutcome::Message(body)),
        Err(error @ CallError::Closed(_)) => Err(error),
        Err(CallError::Refused(status)) if status::is_one_of(status, &[StatusCode::BadMessageNotAvailable]) => {
            Ok(RepublishOutcome::NotAvailable)
        }
        Err(CallError::Refused(status)) if status::says_no_subscription(status) => Ok(RepublishOutcome::NoSubscription),
        Err(_) => Ok(RepublishOutcome::Unanswered),
    }
}

/// A monitored item as listed by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerItem {
    pub id: u32,
    pub handle: u32,
}

/// Result of listing the items of a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerItemList {
    Items(Vec<ServerItem>),
    /// The server provides no list; servers need not.
    NotGiven,
    /// The server does not have the subscription.
    NoSubscription,
}

/// Lists the items of a subscription by the server's method GetMonitoredItems.
pub(crate) async fn monitored_items(session: &Session, subscription_id: u32) -> Result<ServerItemList, CallError> {
    let request = CallRequest {
        request_header: Default::default(),
        methods_to_call: Some(vec![CallMethodRequest {
            object_id: ObjectId::Server.into(),
            method_id: MethodId::Server_GetMonitoredItems.into(),
            input_arguments: Some(vec![Variant::UInt32(subscription_id)]),
        }]),
    };
    let response = match session.call(request).await {
        Ok(response) => response,
        Err(error @ CallError::Closed(_)) => return Err(error),
        Err(_) => return Ok(ServerItemList::NotGiven),
    };
    let Some(result) = response.results.and_then(|results| results.into_iter().next()) else {
        return Ok(ServerItemList::NotGiven);
    };
    Ok(match result.output_arguments.unwrap_or_default().as_slice() {
        _ if status::says_no_subscription(result.status_code.bits()) => ServerItemList::NoSubscription,
        [ids, handles] if !result.status_code.is_bad() => {
            listed(ids, handles).map_or(ServerItemList::NotGiven, ServerItemList::Items)
        }
        _ => ServerItemList::NotGiven,
    })
}

fn listed(ids: &Variant, handles: &Variant) -> Option<Vec<ServerItem>> {
    let (ids, handles) = (numbers(ids)?, numbers(handles)?);
    let pairs = ids.iter().zip(&handles).map(|(id, handle)| ServerItem {
        id: *id,
        handle: *handle,
    });
    (ids.len() == handles.len()).then(|| pairs.collect())
}

fn numbers(list: &Variant) -> Option<Vec<u32>> {
    match list {
        Variant::Empty => Some(Vec::new()),
        Variant::Array(array) => {
            let Array { values, .. } = &**array;
            let number = |value: &Variant| match value {
                Variant::UInt32(number) => Some(*number),
                _ => None,
            };
            values.iter().map(number).collect()
        }
        _ => None,
    }
}

/// How the server's list differs from ours.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ItemDifferences {
    /// Handles of items that the server does not have.
    pub missing: Vec<u32>,
    /// Items that the server has under another id.
    pub renumbered: Vec<ServerItem>,
    /// Ids of unknown or duplicate items.
    pub extra: Vec<u32>,
}

/// `expected` maps the handles of our items to their ids.
pub(crate) fn compare(expected: &HashMap<u32, u32>, listed: &[ServerItem]) -> ItemDifferences {
    let mut differences = ItemDifferences::default();
    // If a handle is listed twice, the item with the known id is kept.
    let mut kept: HashMap<u32, u32> = HashMap::new();
    for item in listed {
        if expected.get(&item.handle) == Some(&item.id) {
            kept.insert(item.handle, item.id);
        } else if expected.contains_key(&item.handle) {
            kept.entry(item.handle).or_insert(item.id);
        }
    }
    for item in listed {
        if kept.get(&item.handle) != Some(&item.id) {
            differences.extra.push(item.id);
        } else if expected.get(&item.handle) != Some(&item.id) {
            differences.renumbered.push(*item);
        }
    }
    differences.missing = expected
        .keys()
        .copied()
        .filter(|handle| !kept.contains_key(handle))
        .collect();
    differences.missing.sort_unstable();
    differences
}

#[cfg(test)]
mod account_tests {
    use super::*;

    #[test]
    fn what_the_server_has_is_compared_with_what_it_should_have() {
        let expected: HashMap<u32, u32> = [(1, 11), (2, 12), (3, 13), (4, 14)].into();
        let listed = [(11, 1), (99, 2), (21, 3), (13, 3), (50, 7)].map(|(id, handle)| ServerItem { id, handle });
        let differences = compare(&expected, &listed);
        assert_eq!(differences.missing, [4]);
        assert_eq!(differences.renumbered, [ServerItem { id: 99, handle: 2 }]);
        assert_eq!(differences.extra, [21, 50]);
        let same: Vec<ServerItem> = expected
            .iter()
            .map(|(handle, id)| ServerItem {
                id: *id,
                handle: *handle,
            })
            .collect();
        assert_eq!(compare(&expected, &same), ItemDifferences::default());
    }

    #[test]
    fn an_answer_that_is_none_is_no_account() {
        let numbers = |numbers: Vec<u32>| Variant::from(numbers);
        assert_eq!(listed(&Variant::Empty, &Variant::Empty), Some(Vec::new()));
        assert_eq!(listed(&numbers(vec![1]), &numbers(vec![1, 2])), None);
        assert_eq!(listed(&Variant::from("x"), &numbers(vec![1])), None);
        assert_eq!(
            listed(&numbers(vec![5]), &numbers(vec![6])),
            Some(vec![ServerItem { id: 5, handle: 6 }])
        );
    }
}

#[cfg(test)]
mod tests;
