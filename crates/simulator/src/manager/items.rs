//! CreateMonitoredItems: answers each request with its current value or an error, and registers the item with the
//! ticker, which pushes the changes.

use std::fmt::Write;

use opcua::types::{AttributeId, DataValue, DateTime, StatusCode, Variant};
use opcua_nodes::AccessLevel;
use opcua_server::CreateMonitoredItem;

use super::SimulatorNodeManager;
use crate::space::Group;
use crate::ticker::{Filter, NewItem};

impl SimulatorNodeManager {
    pub(super) fn create_items(&self, items: &mut [&mut CreateMonitoredItem]) -> Vec<NewItem> {
        let mut created = Vec::with_capacity(items.len());
        let mut text = String::new();
        for item in items {
            match self.create_item(item, &mut text) {
                Ok(new) => {
                    item.set_status(StatusCode::Good);
                    created.extend(new);
                }
                Err(status) => item.set_status(status),
            }
        }
        created
    }

    /// Items of attributes other than Value never change, so they are not reported to the ticker.
    fn create_item(&self, item: &mut CreateMonitoredItem, text: &mut String) -> Result<Option<NewItem>, StatusCode> {
        let request = item.item_to_monitor();
        let is_value = request.attribute_id == AttributeId::Value;
        let (data, changes) = self.attribute(request)?;
        let node = self.node(&request.node_id)?;
        let index = self.space.index(node);

        text.clear();
        // The library keeps the filter's type private, but not its Debug output.
        let _ = write!(text, "{:?}", item.filter());
        let filter = Filter::parse(text);
        if filter.is_some() && self.refuse_filters {
            return Err(refusal(index));
        }
        if filter.is_some() && !is_value {
            return Err(StatusCode::BadFilterNotAllowed);
        }
        // The library would accept a deadband on text; servers in the field refuse it.
        if filter.is_some_and(Filter::has_deadband) && !data.value.as_ref().is_some_and(is_numeric) {
            return Err(StatusCode::BadFilterNotAllowed);
        }

        // The library applies the index range to this value as to all later ones.
        item.set_initial_value(DataValue {
            server_timestamp: Some(DateTime::now()),
            ..data
        });
        let handle = item.handle();
        Ok(is_value.then(|| NewItem {
            subscription: handle.subscription_id,
            id: handle.monitored_item_id,
            group: self.space.group(node).unwrap_or(Group::Fixed),
            index,
            changes,
            queue: u32::try_from(item.queue_size()).unwrap_or(u32::MAX),
            sampling_interval_ms: item.sampling_interval(),
            mode: item.monitoring_mode(),
            filter,
            writable: self.space.access_level(node).contains(AccessLevel::CURRENT_WRITE),
        }))
    }
}

fn is_numeric(value: &Variant) -> bool {
    match value.as_array() {
        Some(elements) => elements.iter().all(|element| element.as_f64().is_some()),
        None => value.as_f64().is_some(),
    }
}

/// Servers in the field refuse filters with either code, so neighbouring nodes use one each.
fn refusal(index: u32) -> StatusCode {
    if index.is_multiple_of(2) {
        StatusCode::BadMonitoredItemFilterUnsupported
    } else {
        StatusCode::BadFilterNotAllowed
    }
}
