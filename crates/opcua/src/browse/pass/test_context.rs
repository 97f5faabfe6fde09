//! The context of a pass, with one root, ns=1;i=0.

use std::sync::Arc;

use opcua::core::ResponseMessage;
use opcua::types::{
    BrowseResponse, BrowseResult, ExpandedNodeId, NodeClass, NodeId, QualifiedName, ReferenceDescription,
    ReferenceTypeId,
};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::browse::{BrowseContext, ConnectedServer};
use crate::fake_server::good;
use crate::namespace_array::NamespaceArray;
use crate::node_table::{DiscoveredNode, NO_NODE, NodeKind, NodeTable};
use crate::profile::ProfileName;
use crate::server_facts::{OperationLimits, ServerFacts};

/// A session with a server that has these limits and accepts many calls.
pub async fn connected(url: &str, limits: OperationLimits) -> ConnectedServer {
    ConnectedServer {
        session: crate::fake_server::session(url).await,
        facts: Arc::new(ServerFacts {
            limits,
            product: None,
            namespaces: NamespaceArray::default(),
            start_time: thalweg_record::Ticks::MISSING,
        }),
        profile: ProfileName::HighPerformance.profile(),
    }
}

/// The connection lasts as long as the sender.
pub fn context(connected: &ConnectedServer) -> (watch::Sender<Option<ConnectedServer>>, BrowseContext) {
    let mut table = NodeTable::default();
    let root = DiscoveredNode {
        id: &NodeId::new(1, 0u32),
        name: "root",
        class: NodeKind::Object,
        parent: NO_NODE,
    };
    table.add(&root).unwrap();
    let (sender, sessions) = watch::channel(Some(connected.clone()));
    let context = BrowseContext {
        table: Arc::new(RwLock::new(table)),
        browse: crate::config::BrowseConfig {
            depth_max: 25,
            nodes_max: 0,
            include: None,
            exclude: None,
            properties: true,
        },
        failures: Arc::default(),
        metrics: Arc::new(crate::metrics::InputMetrics::new(&crate::fake_server::component())),
        memory: Arc::default(),
        is_served: true,
        sessions,
    };
    (sender, context)
}

/// A reference to the node with this number in ns=1.
pub fn object(id: u32) -> ReferenceDescription {
    ReferenceDescription {
        reference_type_id: ReferenceTypeId::Organizes.into(),
        is_forward: true,
        node_id: ExpandedNodeId::new(NodeId::new(1, id)),
        browse_name: QualifiedName::new(1, format!("n{id}").as_str()),
        display_name: Default::default(),
        node_class: NodeClass::Object,
        type_definition: Default::default(),
    }
}

pub fn browse_response(results: Vec<BrowseResult>) -> ResponseMessage {
    let response = BrowseResponse {
        response_header: good(),
        results: Some(results),
        diagnostic_infos: None,
    };
    response.into()
}
