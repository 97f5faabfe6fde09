//! The node manager: answers the OPC UA services for namespace 3 from `PlcAddressSpace`. It is stateless. It reports
//! sessions and monitored items to the ticker as events, in the order in which the server handled the requests.

mod browse;
mod items;
mod paths;

use std::sync::Arc;

use async_trait::async_trait;
use opcua::types::{
    AttributeId, DataEncoding, DataTypeId, DataValue, DateTime, IdType, MonitoringMode, NodeClass, NodeId,
    NumericRange, StatusCode, TimestampsToReturn, Variant,
};
use opcua_nodes::DefaultTypeTree;
use opcua_server::CreateMonitoredItem;
use opcua_server::diagnostics::NamespaceMetadata;
use opcua_server::node_manager::{
    BrowseNode, BrowsePathItem, ExternalReferenceRequest, MonitoredItemRef, MonitoredItemUpdateRef, NodeManager,
    ParsedReadValueId, ReadNode, RequestContext, ServerContext, WriteNode,
};

use crate::space::types::Content;
use crate::space::{NAMESPACE, NAMESPACE_URI, Node, PlcAddressSpace, RESERVED_NAMESPACE_URI};
use crate::ticker::{TickerEvent, TickerSender};

pub(crate) struct SimulatorNodeManager {
    space: Arc<PlcAddressSpace>,
    events: TickerSender,
    refuse_filters: bool,
}

impl SimulatorNodeManager {
    pub(crate) fn new(
        space: Arc<PlcAddressSpace>,
        events: TickerSender,
        refuse_filters: bool,
        context: &ServerContext,
    ) -> SimulatorNodeManager {
        let mut tree = context.type_tree.write();
        let reserved = tree.namespaces_mut().add_namespace(RESERVED_NAMESPACE_URI);
        let own = tree.namespaces_mut().add_namespace(NAMESPACE_URI);
        // Namespaces 0 and 1 belong to the node managers of the standard nodes and of the server library, built before.
        assert_eq!(
            (reserved, own),
            (NAMESPACE - 1, NAMESPACE),
            "the server library numbers namespaces in order"
        );
        SimulatorNodeManager {
            space,
            events,
            refuse_filters,
        }
    }

    fn node(&self, id: &NodeId) -> Result<Node, StatusCode> {
        let node = self.space.find(id).filter(|node| !self.space.denied(*node));
        node.ok_or(StatusCode::BadNodeIdUnknown)
    }

    /// Returns the attribute without its index range, and the count of changes that a value was computed from.
    fn attribute(&self, item: &ParsedReadValueId) -> Result<(DataValue, u64), StatusCode> {
        let node = self.node(&item.node_id)?;
        if item.attribute_id != AttributeId::Value {
            let value = self.space.attribute(node, item.attribute_id)?;
            return Ok((
                DataValue {
                    value: Some(value),
                    ..DataValue::default()
                },
                0,
            ));
        }
        if !matches!(item.data_encoding, DataEncoding::Binary) {
            return Err(StatusCode::BadDataEncodingUnsupported);
        }
        self.space.value(node).ok_or(StatusCode::BadAttributeIdInvalid)
    }

    fn read_one(&self, item: &ParsedReadValueId, timestamps: TimestampsToReturn) -> Result<DataValue, StatusCode> {
        let (mut data, _) = self.attribute(item)?;
        if !matches!(item.index_range, NumericRange::None) {
            let value = data.value.as_ref().ok_or(StatusCode::BadIndexRangeNoData)?;
            data.value = Some(value.range_of(&item.index_range)?);
        }
        if matches!(timestamps, TimestampsToReturn::Server | TimestampsToReturn::Neither) {
            data.source_timestamp = None;
        }
        if matches!(timestamps, TimestampsToReturn::Server | TimestampsToReturn::Both) {
            data.server_timestamp = Some(DateTime::now());
        }
        Ok(data)
    }

    fn write_one(&self, context: &RequestContext, item: &WriteNode) -> Result<(), StatusCode> {
        let request = item.value();
        let node = self.node(&request.node_id)?;
        let Node::Typed(index) = node else {
            return Err(StatusCode::BadNotWritable);
        };
        let content = self
            .space
            .types()
            .and_then(|types| types.node(index))
            .map(|node| &node.content);
        let content = content
            .filter(|content| content.writable())
            .ok_or(StatusCode::BadNotWritable)?;
        if request.attribute_id != AttributeId::Value {
            return Err(StatusCode::BadNotWritable);
        }
        if !matches!(request.index_range, NumericRange::None) {
            return Err(StatusCode::BadWriteNotSupported);
        }
        // A bad status may come alone: the node has no value until the next write.
        match &request.value.value {
            Some(value) if self.fits(node, value) => {}
            None if request.value.status().is_bad() => {}
            _ => return Err(StatusCode::BadTypeMismatch),
        }
        let Content::Writable(cell) = content else {
            return Ok(());
        };
        let stored = DataValue {
            value: request.value.value.clone(),
            status: request.value.status,
            source_timestamp: Some(request.value.source_timestamp.unwrap_or_else(DateTime::now)),
            ..DataValue::default()
        };
        *cell.write() = stored.clone();
        let notified = DataValue {
            server_timestamp: Some(DateTime::now()),
            ..stored
        };
        context
            .subscriptions
            .data_notifier()
            .notify(&request.node_id, AttributeId::Value, notified);
        Ok(())
    }

    /// Whether the value is a scalar of exactly the node's data type.
    fn fits(&self, node: Node, value: &Variant) -> bool {
        !value.is_array()
            && value
                .data_type()
                .is_some_and(|data_type| data_type.node_id == self.space.data_type(node))
    }
}

fn namespace(index: u16, uri: &str) -> NamespaceMetadata {
    NamespaceMetadata {
        namespace_uri: uri.to_owned(),
        namespace_index: index,
        is_namespace_subset: Some(false),
        static_node_id_types: Some(vec![IdType::String]),
        ..NamespaceMetadata::default()
    }
}

#[async_trait]
impl NodeManager for SimulatorNodeManager {
    fn owns_node(&self, id: &NodeId) -> bool {
        id.namespace == NAMESPACE || id.namespace == NAMESPACE - 1
    }

    fn name(&self) -> &str {
        "simulator"
    }

    /// The server calls this whenever a session is activated, which is how the simulator learns about sessions.
    fn namespaces_for_user(&self, context: &RequestContext) -> Vec<NamespaceMetadata> {
        // The session's type has no public name, so only a closure with the one question about it is passed on.
        let session = Arc::downgrade(&context.session);
        let alive = move || session.upgrade().is_some_and(|session| session.read().is_activated());
        self.events.send(TickerEvent::Session {
            id: context.session_id(),
            alive: Box::new(alive),
        });
        vec![
            namespace(NAMESPACE - 1, RESERVED_NAMESPACE_URI),
            namespace(NAMESPACE, NAMESPACE_URI),
        ]
    }

    async fn init(&self, type_tree: &mut DefaultTypeTree, _: ServerContext) {
        if self.space.types().is_some() {
            let parent = DataTypeId::Structure.into();
            type_tree.add_type_node(&self.space.id(Node::PointType), &parent, NodeClass::DataType);
        }
    }

    async fn resolve_external_references(&self, _: &RequestContext, items: &mut [&mut ExternalReferenceRequest]) {
        for item in items {
            if let Some(node) = self.space.find(item.node_id()) {
                item.set(browse::metadata(&self.space, node));
            }
        }
    }

    async fn read(
        &self,
        _: &RequestContext,
        _: f64,
        timestamps: TimestampsToReturn,
        nodes: &mut [&mut ReadNode],
    ) -> Result<(), StatusCode> {
        for node in nodes {
            match self.read_one(node.node(), timestamps) {
                Ok(data) => node.set_result(data),
                Err(status) => node.set_error(status),
            }
        }
        Ok(())
    }

    async fn write(&self, context: &RequestContext, nodes: &mut [&mut WriteNode]) -> Result<(), StatusCode> {
        for node in nodes {
            let status = self.write_one(context, node).err().unwrap_or(StatusCode::Good);
            node.set_status(status);
        }
        Ok(())
    }

    async fn browse(&self, context: &RequestContext, nodes: &mut [BrowseNode]) -> Result<(), StatusCode> {
        let tree = context.get_type_tree_for_user();
        for node in nodes {
            browse::browse(&self.space, node, tree.get());
        }
        Ok(())
    }

    async fn translate_browse_paths_to_node_ids(
        &self,
        context: &RequestContext,
        items: &mut [&mut BrowsePathItem],
    ) -> Result<(), StatusCode> {
        let tree = context.get_type_tree_for_user();
        for item in items {
            paths::translate(&self.space, item, tree.get(), context.current_node_manager_index);
        }
        Ok(())
    }

    async fn create_monitored_items(
        &self,
        context: &RequestContext,
        items: &mut [&mut CreateMonitoredItem],
    ) -> Result<(), StatusCode> {
        let created = self.create_items(items);
        self.events.send(TickerEvent::Created {
            session: context.session_id(),
            items: created,
        });
        Ok(())
    }

    async fn modify_monitored_items(&self, _: &RequestContext, items: &[&MonitoredItemUpdateRef]) {
        self.events
            .send(TickerEvent::Modified(items.iter().map(|item| item.handle()).collect()));
    }

    async fn set_monitoring_mode(&self, _: &RequestContext, mode: MonitoringMode, items: &[&MonitoredItemRef]) {
        self.events.send(TickerEvent::Mode(
            mode,
            items.iter().map(|item| item.handle()).collect(),
        ));
    }

    async fn delete_monitored_items(&self, _: &RequestContext, items: &[&MonitoredItemRef]) {
        self.events
            .send(TickerEvent::Deleted(items.iter().map(|item| item.handle()).collect()));
    }
}
