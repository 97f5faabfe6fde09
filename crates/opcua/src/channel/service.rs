//! The services that Thalweg calls: which response belongs to which request, and how a call can fail.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use opcua::core::RequestMessage;
use opcua::types::{
    ActivateSessionRequest, ActivateSessionResponse, BinaryDecodable as _, BrowseNextRequest, BrowseNextResponse,
    BrowseRequest, BrowseResponse, CallRequest, CallResponse, CloseSecureChannelRequest, CloseSecureChannelResponse,
    CloseSessionRequest, CloseSessionResponse, Context, CreateMonitoredItemsRequest, CreateMonitoredItemsResponse,
    CreateSessionRequest, CreateSessionResponse, CreateSubscriptionRequest, CreateSubscriptionResponse,
    DeleteMonitoredItemsRequest, DeleteMonitoredItemsResponse, DeleteSubscriptionsRequest, DeleteSubscriptionsResponse,
    EncodingResult, GetEndpointsRequest, GetEndpointsResponse, ObjectId, OpenSecureChannelRequest,
    OpenSecureChannelResponse, PublishRequest, PublishResponse, ReadRequest, ReadResponse, RepublishRequest,
    RepublishResponse, RequestHeader, StatusCode, TransferSubscriptionsRequest, TransferSubscriptionsResponse,
    TranslateBrowsePathsToNodeIdsRequest, TranslateBrowsePathsToNodeIdsResponse, WriteRequest, WriteResponse,
};

use crate::value::status;

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The connection is gone.
    #[error("{0}")]
    Closed(Arc<str>),
    #[error("the server did not answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// The server refused the whole call with this status.
    #[error("{}", status::text(*.0))]
    Refused(u32),
    #[error("{0}")]
    Unreadable(String),
    /// It is unknown which operation each result belongs to.
    #[error("the server answered {answered} of {asked} {what}")]
    WrongCount {
        answered: usize,
        asked: usize,
        what: &'static str,
    },
    #[error("the server's answer is larger than {} MiB", super::MESSAGE_BYTES_MAX >> 20)]
    TooLarge,
    /// The request exceeds the server's message limits.
    #[error("the request is larger than the server accepts")]
    RequestTooLarge,
}

/// How to continue after a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailureKind {
    /// The connection or the session is gone: repeat on another one.
    Lost,
    /// The call timed out, and may have been executed: the server was overloaded, or the network stalled.
    TimedOut,
    /// The server serves nobody at the moment: repeat after a pause.
    Later,
    /// Too many operations, in one call or in all calls in flight.
    TooMany,
    /// Fewer operations per call may succeed.
    TooLarge,
    /// The server may fail on one of the operations.
    Other,
}

impl CallError {
    pub fn failure(&self) -> CallFailureKind {
        match self {
            CallError::Closed(_) => CallFailureKind::Lost,
            CallError::Timeout(_) => CallFailureKind::TimedOut,
            CallError::Refused(status) if status::says_session_gone(*status) => CallFailureKind::Lost,
            CallError::Refused(status) if status::says_timed_out(*status) => CallFailureKind::TimedOut,
            CallError::Refused(status) if status::says_later(*status) => CallFailureKind::Later,
            CallError::Refused(status) if status::says_too_many(*status) => CallFailureKind::TooMany,
            _ if self.is_too_large() => CallFailureKind::TooLarge,
            _ => CallFailureKind::Other,
        }
    }

    /// The server's status, if it sent one.
    pub fn status(&self) -> Option<u32> {
        match self {
            CallError::Refused(status) => Some(*status),
            _ => None,
        }
    }

    /// The server's status, or the one that best describes the failure.
    pub fn nearest_status(&self) -> u32 {
        let status = match self {
            CallError::Refused(status) => return *status,
            CallError::Timeout(_) => StatusCode::BadTimeout,
            CallError::TooLarge => StatusCode::BadResponseTooLarge,
            CallError::RequestTooLarge => StatusCode::BadRequestTooLarge,
            CallError::Unreadable(_) => StatusCode::BadDecodingError,
            CallError::WrongCount { .. } => StatusCode::BadUnknownResponse,
            CallError::Closed(_) => StatusCode::BadConnectionClosed,
        };
        status.bits()
    }

    /// Checks that each operation of a call has its result.
    pub fn check_count(answered: usize, asked: usize, what: &'static str) -> Result<(), CallError> {
        match answered == asked {
            true => Ok(()),
            false => Err(CallError::WrongCount { answered, asked, what }),
        }
    }

    /// Whether fewer operations per call may succeed where this call failed: servers truncate responses at their own
    /// limits, or omit the operation on which they fail.
    pub fn is_too_large(&self) -> bool {
        match self {
            CallError::TooLarge | CallError::RequestTooLarge | CallError::WrongCount { .. } => true,
            CallError::Refused(status) => status::says_too_large(*status),
            _ => false,
        }
    }
}

/// A request of a service and its response.
pub(crate) trait ServiceRequest: Into<RequestMessage> + Send {
    type Response: Send;
    const RESPONSE: ObjectId;

    fn header(&mut self) -> &mut RequestHeader;

    /// Decodes the response; the caller checks the service result in it.
    fn decode(cursor: &mut Cursor<&[u8]>, context: &Context<'_>) -> EncodingResult<Self::Response>;
}

macro_rules! services {
    ($($request:ident => $response:ident, $id:ident;)+) => {
        $(impl ServiceRequest for $request {
            type Response = $response;
            const RESPONSE: ObjectId = ObjectId::$id;

            fn header(&mut self) -> &mut RequestHeader {
                &mut self.request_header
            }

            fn decode(cursor: &mut Cursor<&[u8]>, context: &Context<'_>) -> EncodingResult<$response> {
                $response::decode(cursor, context)
            }
        })+
    };
}

services! {
    ActivateSessionRequest => ActivateSessionResponse, ActivateSessionResponse_Encoding_DefaultBinary;
    BrowseNextRequest => BrowseNextResponse, BrowseNextResponse_Encoding_DefaultBinary;
    BrowseRequest => BrowseResponse, BrowseResponse_Encoding_DefaultBinary;
    CallRequest => CallResponse, CallResponse_Encoding_DefaultBinary;
    CloseSecureChannelRequest => CloseSecureChannelResponse, CloseSecureChannelResponse_Encoding_DefaultBinary;
    CloseSessionRequest => CloseSessionResponse, CloseSessionResponse_Encoding_DefaultBinary;
    CreateMonitoredItemsRequest => CreateMonitoredItemsResponse, CreateMonitoredItemsResponse_Encoding_DefaultBinary;
    CreateSessionRequest => CreateSessionResponse, CreateSessionResponse_Encoding_DefaultBinary;
    CreateSubscriptionRequest => CreateSubscriptionResponse, CreateSubscriptionResponse_Encoding_DefaultBinary;
    DeleteMonitoredItemsRequest => DeleteMonitoredItemsResponse, DeleteMonitoredItemsResponse_Encoding_DefaultBinary;
    DeleteSubscriptionsRequest => DeleteSubscriptionsResponse, DeleteSubscriptionsResponse_Encoding_DefaultBinary;
    GetEndpointsRequest => GetEndpointsResponse, GetEndpointsResponse_Encoding_DefaultBinary;
    OpenSecureChannelRequest => OpenSecureChannelResponse, OpenSecureChannelResponse_Encoding_DefaultBinary;
    PublishRequest => PublishResponse, PublishResponse_Encoding_DefaultBinary;
    ReadRequest => ReadResponse, ReadResponse_Encoding_DefaultBinary;
    RepublishRequest => RepublishResponse, RepublishResponse_Encoding_DefaultBinary;
    TransferSubscriptionsRequest => TransferSubscriptionsResponse, TransferSubscriptionsResponse_Encoding_DefaultBinary;
    TranslateBrowsePathsToNodeIdsRequest => TranslateBrowsePathsToNodeIdsResponse, TranslateBrowsePathsToNodeIdsResponse_Encoding_DefaultBinary;
    WriteRequest => WriteResponse, WriteResponse_Encoding_DefaultBinary;
}
