//! The server's clock as a sign of life: i=2258, monitored or polled beside the tags.

use std::time::Duration;

use opcua::types::{NodeId, VariableId};

/// Without a heartbeat and without data for this long the connection counts as dead.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Server_ServerStatus_CurrentTime
pub(crate) fn node() -> NodeId {
    VariableId::Server_ServerStatus_CurrentTime.into()
}
