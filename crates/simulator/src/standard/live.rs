//! Variables of namespace 0 whose value is computed when it is read, from the server's limits, its state or the time.
//! The table has no value for them.

use std::sync::atomic::Ordering;

use opcua::types::{
    BuildInfo, DateTime, ExtensionObject, LocalizedText, NodeId, ServerStatusDataType, TimeZoneDataType, VariableId,
    Variant,
};
use opcua_server::node_manager::{NodeManagersRef, RequestContext};
use opcua_server::{Limits, ServerStatusWrapper};
use thalweg_kit::clock;

/// A computed variable.
#[derive(Clone, Copy, Debug)]
pub(super) enum LiveVariable {
    ServerArray,
    NamespaceArray,
    ServiceLevel,
    LocalTime,
    ServerStatus,
    CurrentTime,
    StartTime,
    State,
    Build(fn(BuildInfo) -> Variant),
    /// A UInt32; 0 means no limit.
    Limit(fn(&Limits) -> usize),
    /// A UInt16; 0 means no limit.
    ContinuationPoints(fn(&Limits) -> usize),
    /// Milliseconds.
    MinSupportedSampleRate,
}

/// What values are computed from.
pub(super) struct LiveSources<'a> {
    pub(super) context: &'a RequestContext,
    pub(super) managers: &'a NodeManagersRef,
    pub(super) status: &'a ServerStatusWrapper,
}

impl LiveVariable {
    pub(super) fn of(id: &NodeId) -> Option<LiveVariable> {
        use VariableId as V;
        let id = id.as_variable_id().ok()?;
        Some(match id {
            V::Server_ServerArray => LiveVariable::ServerArray,
            V::Server_NamespaceArray => LiveVariable::NamespaceArray,
            V::Server_ServiceLevel => LiveVariable::ServiceLevel,
            V::Server_LocalTime => LiveVariable::LocalTime,
            V::Server_ServerStatus => LiveVariable::ServerStatus,
            V::Server_ServerStatus_CurrentTime => LiveVariable::CurrentTime,
            V::Server_ServerStatus_StartTime => LiveVariable::StartTime,
            V::Server_ServerStatus_State => LiveVariable::State,
            V::Server_ServerStatus_BuildInfo => {
                LiveVariable::Build(|build| ExtensionObject::from_message(build).into())
            }
            V::Server_ServerStatus_BuildInfo_ProductUri => LiveVariable::Build(|build| build.product_uri.into()),
            V::Server_ServerStatus_BuildInfo_ManufacturerName => {
                LiveVariable::Build(|build| build.manufacturer_name.into())
            }
            V::Server_ServerStatus_BuildInfo_ProductName => LiveVariable::Build(|build| build.product_name.into()),
            V::Server_ServerStatus_BuildInfo_SoftwareVersion => {
                LiveVariable::Build(|build| build.software_version.into())
            }
            V::Server_ServerStatus_BuildInfo_BuildNumber => LiveVariable::Build(|build| build.build_number.into()),
            V::Server_ServerStatus_BuildInfo_BuildDate => LiveVariable::Build(|build| build.build_date.into()),
            _ => return LiveVariable::capability(id).or_else(|| LiveVariable::operation_limit(id)),
        })
    }

    fn capability(id: VariableId) -> Option<LiveVariable> {
        use VariableId as V;
        Some(match id {
            V::Server_ServerCapabilities_MaxArrayLength => LiveVariable::Limit(|limits| limits.max_array_length),
            V::Server_ServerCapabilities_MaxStringLength => LiveVariable::Limit(|limits| limits.max_string_length),
            V::Server_ServerCapabilities_MaxByteStringLength => {
                LiveVariable::Limit(|limits| limits.max_byte_string_length)
            }
            V::Server_ServerCapabilities_MaxBrowseContinuationPoints => {
                LiveVariable::ContinuationPoints(|limits| limits.max_browse_continuation_points)
            }
            V::Server_ServerCapabilities_MaxQueryContinuationPoints => {
                LiveVariable::ContinuationPoints(|limits| limits.max_query_continuation_points)
            }
            V::Server_ServerCapabilities_MaxHistoryContinuationPoints => {
                LiveVariable::ContinuationPoints(|limits| limits.max_history_continuation_points)
            }
            V::Server_ServerCapabilities_MinSupportedSampleRate => LiveVariable::MinSupportedSampleRate,
            _ => return None,
        })
    }

    fn operation_limit(id: VariableId) -> Option<LiveVariable> {
        use VariableId as V;
        let limit: fn(&Limits) -> usize = match id {
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerRead => {
                |limits| limits.operational.max_nodes_per_read
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerWrite => {
                |limits| limits.operational.max_nodes_per_write
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerBrowse => {
                |limits| limits.operational.max_nodes_per_browse
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerTranslateBrowsePathsToNodeIds => {
                |limits| limits.operational.max_nodes_per_translate_browse_paths_to_node_ids
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerRegisterNodes => {
                |limits| limits.operational.max_nodes_per_register_nodes
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerMethodCall => {
                |limits| limits.operational.max_nodes_per_method_call
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerNodeManagement => {
                |limits| limits.operational.max_nodes_per_node_management
            }
            V::Server_ServerCapabilities_OperationLimits_MaxMonitoredItemsPerCall => {
                |limits| limits.operational.max_monitored_items_per_call
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerHistoryReadData => {
                |limits| limits.operational.max_nodes_per_history_read_data
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerHistoryReadEvents => {
                |limits| limits.operational.max_nodes_per_history_read_events
            }
            V::Server_ServerCapabilities_OperationLimits_MaxNodesPerHistoryUpdateData
            | V::Server_ServerCapabilities_OperationLimits_MaxNodesPerHistoryUpdateEvents => {
                |limits| limits.operational.max_nodes_per_history_update
            }
            _ => return None,
        };
        Some(LiveVariable::Limit(limit))
    }

    /// Whether the value differs at each moment, so that its time is the time of the read.
    pub(super) fn moves(self) -> bool {
        matches!(
            self,
            LiveVariable::CurrentTime | LiveVariable::ServerStatus | LiveVariable::LocalTime
        )
    }

    pub(super) fn value(self, sources: &LiveSources<'_>) -> Variant {
        let info = &sources.context.info;
        let limits = &info.config.limits;
        match self {
            LiveVariable::ServerArray => info.servers.clone().into(),
            LiveVariable::NamespaceArray => namespace_array(sources).into(),
            LiveVariable::ServiceLevel => info.service_level.load(Ordering::Relaxed).into(),
            LiveVariable::LocalTime => local_time().into(),
            LiveVariable::ServerStatus => server_status(sources.status).into(),
            LiveVariable::CurrentTime => DateTime::now().into(),
            LiveVariable::StartTime => sources.status.start_time().into(),
            LiveVariable::State => (sources.status.state() as i32).into(),
            LiveVariable::Build(part) => part(sources.status.build_info()),
            LiveVariable::Limit(limit) => reported_limit(limit(limits)).into(),
            LiveVariable::ContinuationPoints(limit) => u16::try_from(limit(limits)).unwrap_or(0).into(),
            LiveVariable::MinSupportedSampleRate => limits.subscriptions.min_sampling_interval_ms.into(),
        }
    }
}

/// A limit beyond 32 bits is none, which clients read as 0.
pub(super) fn reported_limit(limit: usize) -> u32 {
    u32::try_from(limit).unwrap_or(0)
}

/// The structure ServerStatusDataType with the current time.
pub(super) fn server_status(status: &ServerStatusWrapper) -> ExtensionObject {
    ExtensionObject::from_message(ServerStatusDataType {
        start_time: status.start_time(),
        current_time: DateTime::now(),
        state: status.state(),
        build_info: status.build_info(),
        // A simulator stops without an announcement.
        seconds_till_shutdown: 0,
        shutdown_reason: LocalizedText::null(),
    })
}

/// The namespaces of all node managers by their index, with an empty text for an index that none has.
fn namespace_array(sources: &LiveSources<'_>) -> Vec<String> {
    let mut uris: Vec<String> = Vec::new();
    for manager in sources.managers.iter() {
        for namespace in manager.namespaces_for_user(sources.context) {
            let index = usize::from(namespace.namespace_index);
            uris.resize(uris.len().max(index + 1), String::new());
            if let Some(uri) = uris.get_mut(index) {
                *uri = namespace.namespace_uri;
            }
        }
    }
    uris
}

/// The distance of local time from UTC, in which daylight saving time is contained.
fn local_time() -> ExtensionObject {
    let now = chrono::DateTime::<chrono::Local>::from(clock::wall());
    let minutes = now.offset().local_minus_utc() / 60;
    ExtensionObject::from_message(TimeZoneDataType {
        offset: i16::try_from(minutes).unwrap_or(0),
        daylight_saving_in_offset: false,
    })
}
