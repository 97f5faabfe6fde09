//! What a server reports about itself, read once per session: service limits, product, namespaces, start time.

use opcua::types::{AttributeId, NodeId, TimestampsToReturn};
use thalweg_record::{Ticks, Value};

use crate::channel::CallError;
use crate::namespace_array::NamespaceArray;
use crate::profile::{Profile, ProfileName, ServerProduct};
use crate::session::{Session, read_id};
use crate::value::{StructureRegistry, ValueContent, status};

/// Operations per call that the server allows; 0 means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperationLimits {
    pub nodes_per_read: u32,
    pub nodes_per_write: u32,
    pub nodes_per_browse: u32,
    pub items_per_call: u32,
    pub continuation_points: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServerFacts {
    pub limits: OperationLimits,
    /// `None` if it could not be read.
    pub product: Option<ServerProduct>,
    pub namespaces: NamespaceArray,
    /// Missing if the server does not report it.
    pub start_time: Ticks,
}

const MAX_NODES_PER_READ: u32 = 11705;
const MAX_NODES_PER_WRITE: u32 = 11707;
const MAX_NODES_PER_BROWSE: u32 = 11710;
const MAX_ITEMS_PER_CALL: u32 = 11714;
/// Two places where servers report the number of continuation points.
const MAX_CONTINUATION_POINTS: [u32; 2] = [3089, 2735];
const MANUFACTURER: u32 = 2263;
const PRODUCT_NAME: u32 = 2261;
const SOFTWARE_VERSION: u32 = 2264;
const NAMESPACE_ARRAY: u32 = 2255;
const START_TIME: u32 = 2257;

impl ServerFacts {
    /// Unreadable values count as unknown; only a lost connection is an error.
    pub async fn read(session: &Session) -> Result<ServerFacts, CallError> {
        let [points_a, points_b] = MAX_CONTINUATION_POINTS;
        let ids = [
            MAX_NODES_PER_READ,
            MAX_NODES_PER_WRITE,
            MAX_NODES_PER_BROWSE,
            MAX_ITEMS_PER_CALL,
            points_a,
            points_b,
        ];
        let values = read_values(session, &ids).await?;
        let number = |i: usize| values.get(i).and_then(Option::as_ref).and_then(as_u32).unwrap_or(0);
        let limits = OperationLimits {
            nodes_per_read: number(0),
            nodes_per_write: number(1),
            nodes_per_browse: number(2),
            items_per_call: number(3),
            continuation_points: [number(4), number(5)].into_iter().filter(|n| *n > 0).min().unwrap_or(0),
        };
        let said = read_values(session, &[MANUFACTURER, PRODUCT_NAME, SOFTWARE_VERSION]).await?;
        let text = |i: usize| {
            said.get(i)
                .and_then(Option::as_ref)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let product = said.iter().any(Option::is_some).then(|| ServerProduct {
            manufacturer: text(0),
            product: text(1),
            version: text(2),
        });
        let rest = read_values(session, &[NAMESPACE_ARRAY, START_TIME]).await?;
        let namespaces = uris(rest.first());
        let start_time = match rest.get(1) {
            Some(Some(Value::Time(time))) => *time,
            _ => Ticks::MISSING,
        };
        Ok(ServerFacts {
            limits,
            product,
            namespaces,
            start_time,
        })
    }

    /// Returns the configured profile, or the detected one.
    pub fn profile(&self, configured: Option<ProfileName>) -> Profile {
        configured
            .unwrap_or_else(|| ProfileName::detect(self.product.as_ref()))
            .profile()
    }

    /// Whether the address space may have changed.
    pub fn differs_from(&self, earlier: &ServerFacts) -> bool {
        self.start_time != earlier.start_time || self.namespaces != earlier.namespaces
    }
}

/// Reads the server's current namespaces; empty if they cannot be read.
pub(crate) async fn namespaces(session: &Session) -> Result<NamespaceArray, CallError> {
    Ok(uris(read_values(session, &[NAMESPACE_ARRAY]).await?.first()))
}

fn uris(namespace_array: Option<&Option<Value>>) -> NamespaceArray {
    match namespace_array {
        Some(Some(Value::Array(uris))) => {
            let uris = uris.iter().map(|uri| uri.as_str().unwrap_or_default().to_owned());
            NamespaceArray::new(uris.collect())
        }
        _ => NamespaceArray::default(),
    }
}

fn as_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_i64()?).ok()
}

/// Reads values of variables in namespace 0; `None` for unreadable ones. A call that is too large for the server is
/// repeated in halves.
async fn read_values(session: &Session, ids: &[u32]) -> Result<Vec<Option<Value>>, CallError> {
    let types = StructureRegistry::default();
    let mut values = Vec::with_capacity(ids.len());
    let mut size = ids.len();
    while let Some(rest) = ids.get(values.len()..).filter(|rest| !rest.is_empty()) {
        let some = rest.get(..size.min(rest.len())).unwrap_or(rest);
        let nodes = some
            .iter()
            .map(|id| read_id(NodeId::new(0, *id), AttributeId::Value))
            .collect();
        match session.read(nodes, TimestampsToReturn::Neither, 0.0, &types).await {
            Ok(read) => values.extend(read.into_iter().map(|read| match read.content {
                ValueContent::Value(value) if !status::is_bad(read.stamps.status) => Some(value),
                _ => None,
            })),
            Err(error @ CallError::Closed(_)) => return Err(error),
            Err(error) if error.is_too_large() && size > 1 => size /= 2,
            Err(_) => values.extend(some.iter().map(|_| None)),
        }
    }
    Ok(values)
}
