//! A response as bytes: the id of its type and the encoded structure.

use std::io::Cursor;
use std::sync::Arc;

use bytes::Bytes;
use opcua::types::{
    BinaryDecodable as _, Context, ContextOwned, NamespaceMap, NodeId, ObjectId, ServiceFault, TypeLoaderCollection,
};

use super::limits;
use super::pending::BudgetReservation;
use super::service::{CallError, ServiceRequest};

/// One whole response. Clones share the bytes.
#[derive(Clone, Debug)]
pub(crate) struct AnswerBody {
    bytes: Bytes,
    /// The share of the channel's budget that these bytes take.
    _share: Option<Arc<BudgetReservation>>,
}

impl AnswerBody {
    /// Wraps bytes that count against no budget.
    pub fn from_bytes(bytes: Bytes) -> AnswerBody {
        AnswerBody { bytes, _share: None }
    }

    pub(super) fn with_share(bytes: Bytes, share: BudgetReservation) -> AnswerBody {
        AnswerBody {
            bytes,
            _share: Some(Arc::new(share)),
        }
    }

    #[cfg(test)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes a whole response of a service and checks its result.
    pub fn decode<S: ServiceRequest>(&self) -> Result<S::Response, CallError> {
        self.decode_with(|cursor, context| {
            expect_type(cursor, context, S::RESPONSE)?;
            S::decode(cursor, context).map_err(unreadable)
        })
    }

    /// Returns the bytes after the type id, which must be that of the service's response.
    pub fn content<S: ServiceRequest>(&self) -> Result<Bytes, CallError> {
        let start = self.decode_with(|cursor, context| {
            expect_type(cursor, context, S::RESPONSE)?;
            Ok(usize::try_from(cursor.position()).unwrap_or(usize::MAX))
        })?;
        Ok(self.bytes.slice(start.min(self.bytes.len())..))
    }

    pub(super) fn check_fault(&self) -> Result<(), CallError> {
        self.decode_with(|cursor, context| type_unless_fault(cursor, context).map(drop))
    }

    fn decode_with<T>(
        &self,
        decode: impl FnOnce(&mut Cursor<&[u8]>, &Context<'_>) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let options = limits::decoding_options(self.bytes.len());
        let context = ContextOwned::new(NamespaceMap::new(), TypeLoaderCollection::new(), options);
        let mut cursor = Cursor::new(&*self.bytes);
        decode(&mut cursor, &context.context())
    }
}

/// Returns the type of the response. Any service may respond with a fault instead of its own type.
fn type_unless_fault(cursor: &mut Cursor<&[u8]>, context: &Context<'_>) -> Result<NodeId, CallError> {
    let id = NodeId::decode(cursor, context).map_err(unreadable)?;
    if id != ObjectId::ServiceFault_Encoding_DefaultBinary {
        return Ok(id);
    }
    let fault = ServiceFault::decode(cursor, context).map_err(unreadable)?;
    Err(CallError::Refused(fault.response_header.service_result.bits()))
}

fn expect_type(cursor: &mut Cursor<&[u8]>, context: &Context<'_>, wanted: ObjectId) -> Result<(), CallError> {
    let id = type_unless_fault(cursor, context)?;
    if id == wanted {
        return Ok(());
    }
    Err(CallError::Unreadable(format!(
        "the server answered with message type {id} instead of {wanted:?}"
    )))
}

fn unreadable(error: opcua::types::Error) -> CallError {
    CallError::Unreadable(format!("the server's answer cannot be decoded: {error}"))
}
