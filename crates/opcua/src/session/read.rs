//! The Read service.

use std::time::Duration;

use opcua::types::{AttributeId, NodeId, QualifiedName, ReadRequest, ReadValueId, TimestampsToReturn};

use super::{REQUEST_TIMEOUT, Session};
use crate::channel::CallError;
use crate::value::{DataValue, StructureRegistry, answers};

pub(crate) fn read_id(node_id: NodeId, attribute: AttributeId) -> ReadValueId {
    ReadValueId {
        node_id,
        attribute_id: attribute as u32,
        index_range: Default::default(),
        data_encoding: QualifiedName::null(),
    }
}

impl Session {
    /// Makes one Read call. Returns one value per node, or fails as a whole.
    pub async fn read(
        &self,
        nodes: Vec<ReadValueId>,
        timestamps: TimestampsToReturn,
        max_age_ms: f64,
        types: &StructureRegistry,
    ) -> Result<Vec<DataValue>, CallError> {
        self.read_within(nodes, timestamps, max_age_ms, types, REQUEST_TIMEOUT)
            .await
    }

    pub async fn read_within(
        &self,
        nodes: Vec<ReadValueId>,
        timestamps: TimestampsToReturn,
        max_age_ms: f64,
        types: &StructureRegistry,
        timeout: Duration,
    ) -> Result<Vec<DataValue>, CallError> {
        let wanted = nodes.len();
        let request = ReadRequest {
            request_header: Default::default(),
            max_age: max_age_ms,
            timestamps_to_return: timestamps,
            nodes_to_read: Some(nodes),
        };
        let body = self.call_raw(request, timeout).await?;
        let values = answers::read(&body, types)?;
        CallError::check_count(values.len(), wanted, "reads")?;
        Ok(values)
    }
}
