//! CreateMonitoredItems: the request for a chunk of items, and the meaning of each result.

use opcua::types::{
    AttributeId, CreateMonitoredItemsRequest, ExtensionObject, MonitoredItemCreateRequest, MonitoredItemCreateResult,
    MonitoringMode, MonitoringParameters, NodeId, TimestampsToReturn,
};

use crate::channel::CallError;
use crate::profile;
use crate::session::{Session, read_id};
use crate::value::status;

/// Where filters are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterStrategy {
    /// The first chunk is in flight, or still has to be sent alone.
    Undecided,
    Server,
    Client,
}

impl From<profile::FilterSupport> for FilterStrategy {
    fn from(filters: profile::FilterSupport) -> FilterStrategy {
        match filters {
            profile::FilterSupport::Yes => FilterStrategy::Server,
            profile::FilterSupport::No => FilterStrategy::Client,
            profile::FilterSupport::Try => FilterStrategy::Undecided,
        }
    }
}

/// A monitored item to create.
pub(crate) struct NewMonitoredItem {
    pub node_id: NodeId,
    pub handle: u32,
    pub filter: ExtensionObject,
    pub sampling_ms: f64,
}

/// Result of creating one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreateOutcome {
    Created {
        id: u32,
        /// As revised by the server.
        sampling_ms: u32,
    },
    /// The server rejected the filter, not the item.
    WithoutFilter {
        status: u32,
    },
    /// The subscription or the server accepts no more items.
    Full {
        status: u32,
    },
    Failed {
        status: u32,
    },
}

impl From<&MonitoredItemCreateResult> for CreateOutcome {
    fn from(result: &MonitoredItemCreateResult) -> CreateOutcome {
        let status = result.status_code.bits();
        if !status::is_bad(status) {
            return CreateOutcome::Created {
                id: result.monitored_item_id,
                // The cast saturates for values that are negative or too large.
                sampling_ms: result.revised_sampling_interval as u32,
            };
        }
        if status::says_no_filter(status) {
            return CreateOutcome::WithoutFilter { status };
        }
        match status::says_full(status) {
            true => CreateOutcome::Full { status },
            false => CreateOutcome::Failed { status },
        }
    }
}

/// Makes one call. Returns one outcome per item, or fails as a whole.
pub(crate) async fn create(
    session: &Session,
    subscription_id: u32,
    wanted: Vec<NewMonitoredItem>,
    queue_size: u32,
) -> Result<Vec<CreateOutcome>, CallError> {
    let count = wanted.len();
    let items = wanted.into_iter().map(|item| MonitoredItemCreateRequest {
        item_to_monitor: read_id(item.node_id, AttributeId::Value),
        monitoring_mode: MonitoringMode::Reporting,
        requested_parameters: MonitoringParameters {
            client_handle: item.handle,
            sampling_interval: item.sampling_ms,
            filter: item.filter,
            queue_size,
            discard_oldest: true,
        },
    });
    let request = CreateMonitoredItemsRequest {
        request_header: Default::default(),
        subscription_id,
        timestamps_to_return: TimestampsToReturn::Both,
        items_to_create: Some(items.collect()),
    };
    let response = session.call(request).await?;
    let status = response.response_header.service_result.bits();
    if status::is_bad(status) {
        return Err(CallError::Refused(status));
    }
    let results = response.results.unwrap_or_default();
    CallError::check_count(results.len(), count, "items")?;
    Ok(results.iter().map(CreateOutcome::from).collect())
}
