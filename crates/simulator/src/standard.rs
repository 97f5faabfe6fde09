//! The standard nodes, namespace 0: an address space in memory that is filled from a table, and the node manager that
//! answers for it. Values that depend on the server's limits, its state or the time are computed when they are read;
//! nothing else changes after the start.

mod live;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opcua::sync::RwLock;
use opcua::types::{
    AttributeId, DataValue, DateTime, IdType, MethodId, MonitoringMode, StatusCode, TimestampsToReturn, Variant,
    VariantScalarTypeId,
};
use opcua_server::address_space::{AddressSpace, read_node_value};
use opcua_server::diagnostics::NamespaceMetadata;
use opcua_server::node_manager::memory::{InMemoryNodeManagerBuilder, InMemoryNodeManagerImpl};
use opcua_server::node_manager::{
    MethodCall, MonitoredItemRef, MonitoredItemUpdateRef, NodeManagerBuilder, NodeManagersRef, ParsedReadValueId,
    RequestContext, ServerContext, SyncSampler,
};
use opcua_server::{CreateMonitoredItem, ServerStatusWrapper, Subscription};

use live::{LiveSources, LiveVariable, server_status};

const STANDARD_NAMESPACE_URI: &str = "http://opcfoundation.org/UA/";
/// How often the monitored time and status are looked at; shorter sampling intervals get values at this one.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// Answers for namespace 0.
pub(crate) struct StandardNodeManager {
    managers: NodeManagersRef,
    status: Arc<ServerStatusWrapper>,
    clock: SyncSampler,
}

/// Returns the first node manager that a server needs.
pub(crate) fn node_manager() -> impl NodeManagerBuilder + 'static {
    InMemoryNodeManagerBuilder::new(StandardNodeManager::new)
}

impl StandardNodeManager {
    fn new(context: ServerContext, space: &mut AddressSpace) -> StandardNodeManager {
        fill(space);
        StandardNodeManager {
            managers: context.node_managers,
            status: context.status,
            clock: SyncSampler::new(),
        }
    }

    /// Reads the value of a variable; fails if there is no such node or the user may not read it.
    fn value(
        &self,
        context: &RequestContext,
        space: &AddressSpace,
        item: &ParsedReadValueId,
        max_age: f64,
        timestamps: TimestampsToReturn,
    ) -> Result<DataValue, StatusCode> {
        let node = space.validate_node_read(context, item)?;
        let Some(variable) = LiveVariable::of(&item.node_id) else {
            return Ok(read_node_value(node, context, item, max_age, timestamps));
        };
        let sources = LiveSources {
            context,
            managers: &self.managers,
            status: &self.status,
        };
        let value = match variable.value(&sources).range_of_owned(&item.index_range) {
            Ok(value) => value,
            Err(status) => return Ok(failed(status)),
        };
        let time = match variable.moves() {
            true => DateTime::now(),
            false => **context.info.start_time.load(),
        };
        let source = matches!(timestamps, TimestampsToReturn::Source | TimestampsToReturn::Both);
        let server = matches!(timestamps, TimestampsToReturn::Server | TimestampsToReturn::Both);
        Ok(DataValue {
            value: Some(value),
            status: Some(StatusCode::Good),
            source_timestamp: source.then_some(time),
            server_timestamp: server.then_some(time),
            ..DataValue::default()
        })
    }

    fn create_item(&self, context: &RequestContext, space: &AddressSpace, item: &mut CreateMonitoredItem) {
        let timestamps = item.timestamps_to_return();
        match self.value(context, space, item.item_to_monitor(), 0.0, timestamps) {
            Ok(value) if value.status() == StatusCode::BadAttributeIdInvalid => {
                item.set_status(StatusCode::BadAttributeIdInvalid);
            }
            Ok(value) => {
                item.set_initial_value(value);
                item.set_status(StatusCode::Good);
                self.sample(item);
            }
            Err(status) => item.set_status(status),
        }
    }

    /// Of the computed values, these two change while a client watches them.
    fn sample(&self, item: &CreateMonitoredItem) {
        let id = item.item_to_monitor().node_id.clone();
        let (mode, handle) = (item.monitoring_mode(), item.handle());
        // A negative interval is that of the subscription; both are at least that of the clock.
        let interval = Duration::from_millis(item.sampling_interval() as u64);
        match LiveVariable::of(&id) {
            Some(LiveVariable::CurrentTime) => {
                let sampler = || Some(DataValue::new_now(DateTime::now()));
                self.clock
                    .add_sampler(id, AttributeId::Value, sampler, mode, handle, interval);
            }
            Some(LiveVariable::ServerStatus) => {
                let status = Arc::clone(&self.status);
                let sampler = move || Some(DataValue::new_now(server_status(&status)));
                self.clock
                    .add_sampler(id, AttributeId::Value, sampler, mode, handle, interval);
            }
            _ => {}
        }
    }
}

/// Fills the address space from the table.
fn fill(space: &mut AddressSpace) {
    space.add_namespace(STANDARD_NAMESPACE_URI, 0);
    let now = DateTime::now();
    for row in table::rows() {
        space.import_node(row.item(now));
    }
}

fn failed(status: StatusCode) -> DataValue {
    DataValue {
        status: Some(status),
        ..DataValue::default()
    }
}

/// Calls one of the two methods of the server, and returns its output arguments.
fn called(context: &RequestContext, call: &MethodCall) -> Result<Vec<Variant>, StatusCode> {
    match call.method_id().as_method_id() {
        Ok(MethodId::Server_GetMonitoredItems) => with_subscription(context, call, |subscription| {
            let items = subscription.items().map(|item| (item.id(), item.client_handle()));
            let (ids, handles): (Vec<u32>, Vec<u32>) = items.unzip();
            vec![ids.into(), handles.into()]
        }),
        Ok(MethodId::Server_ResendData) => with_subscription(context, call, |subscription| {
            subscription.set_resend_data();
            Vec::new()
        }),
        _ => Err(StatusCode::BadNotSupported),
    }
}

/// Runs `act` with the subscription that the first argument names, which must be one of the session's own.
fn with_subscription(
    context: &RequestContext,
    call: &MethodCall,
    act: impl FnOnce(&mut Subscription) -> Vec<Variant>,
) -> Result<Vec<Variant>, StatusCode> {
    let argument = call.arguments().first();
    let Some(Variant::UInt32(id)) = argument.map(|argument| argument.convert(VariantScalarTypeId::UInt32)) else {
        return Err(StatusCode::BadInvalidArgument);
    };
    let subscriptions = context.subscriptions.get_session_subscriptions(context.session_id);
    let subscriptions = subscriptions.ok_or(StatusCode::BadSessionIdInvalid)?;
    let mut subscriptions = subscriptions.lock();
    let subscription = subscriptions.get_mut(id);
    Ok(act(subscription.ok_or(StatusCode::BadSubscriptionIdInvalid)?))
}

#[async_trait]
impl InMemoryNodeManagerImpl for StandardNodeManager {
    async fn init(&self, _: &mut AddressSpace, context: ServerContext) {
        self.clock.run(CLOCK_INTERVAL, context.subscriptions);
    }

    fn name(&self) -> &str {
        "standard"
    }

    fn namespaces(&self) -> Vec<NamespaceMetadata> {
        vec![NamespaceMetadata {
            is_namespace_subset: Some(true),
            namespace_uri: STANDARD_NAMESPACE_URI.to_owned(),
            static_node_id_types: Some(vec![IdType::Numeric]),
            namespace_index: 0,
            ..NamespaceMetadata::default()
        }]
    }

    async fn read_values(
        &self,
        context: &RequestContext,
        space: &RwLock<AddressSpace>,
        nodes: &[&ParsedReadValueId],
        max_age: f64,
        timestamps: TimestampsToReturn,
    ) -> Vec<DataValue> {
        let space = space.read();
        let values = nodes
            .iter()
            .map(|item| self.value(context, &space, item, max_age, timestamps));
        values.map(|value| value.unwrap_or_else(failed)).collect()
    }

    async fn create_value_monitored_items(
        &self,
        context: &RequestContext,
        space: &RwLock<AddressSpace>,
        items: &mut [&mut &mut CreateMonitoredItem],
    ) {
        let space = space.read();
        for item in items {
            self.create_item(context, &space, item);
        }
    }

    async fn set_monitoring_mode(&self, _: &RequestContext, mode: MonitoringMode, items: &[&MonitoredItemRef]) {
        for item in items {
            self.clock
                .set_sampler_mode(item.node_id(), item.attribute(), item.handle(), mode);
        }
    }

    async fn modify_monitored_items(&self, _: &RequestContext, items: &[&MonitoredItemUpdateRef]) {
        for item in items {
            let interval = Duration::from_millis(item.update().revised_sampling_interval as u64);
            self.clock
                .update_sampler(item.node_id(), item.attribute(), item.handle(), interval);
        }
    }

    async fn delete_monitored_items(&self, _: &RequestContext, items: &[&MonitoredItemRef]) {
        for item in items {
            self.clock
                .remove_sampler(item.node_id(), item.attribute(), item.handle());
        }
    }

    async fn call(
        &self,
        context: &RequestContext,
        _: &RwLock<AddressSpace>,
        calls: &mut [&mut &mut MethodCall],
    ) -> Result<(), StatusCode> {
        for call in calls {
            match called(context, call) {
                Ok(outputs) => {
                    call.set_outputs(outputs);
                    call.set_status(StatusCode::Good);
                }
                Err(status) => call.set_status(status),
            }
        }
        Ok(())
    }
}
