//! The sending half: encodes requests into chunks and writes all waiting ones to the socket at once.

use std::sync::Arc;

use bytes::BytesMut;
use opcua::core::RequestMessage;
use opcua::core::comms::chunker::Chunker;
use opcua::core::comms::message_chunk::MessageChunk;
use opcua::core::comms::sequence_number::SequenceNumberHandle;
use opcua::types::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, mpsc};

use super::handshake::PeerLimits;
use super::pending::PendingRequests;
use super::service::CallError;
use super::{OutgoingRequest, SharedSecureChannel, limits};

/// Requests are combined into one write up to this size.
const WRITE_BYTES: usize = 256 << 10;

/// Encryption makes chunks a little longer than their content.
const SECURITY_BYTES_MAX: usize = 4096;

/// What happens after a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterRequest {
    GoOn,
    Close,
    /// Servers may drop the old token as soon as they issue a new one, so nothing more is sent under it.
    WaitForToken,
}

pub(super) struct ChannelWriter {
    write: OwnedWriteHalf,
    peer_chunk_bytes: usize,
    peer_message_bytes: usize,
    peer_chunks: usize,
    secure: SharedSecureChannel,
    pending: Arc<PendingRequests>,
    token_answered: Arc<Notify>,
    outgoing: mpsc::Receiver<OutgoingRequest>,
    sequence: SequenceNumberHandle,
    request_id: u32,
    buffer: Vec<u8>,
    /// Reused for all requests.
    storage: BytesMut,
    chunks: Vec<MessageChunk>,
}

impl ChannelWriter {
    pub fn new(
        write: OwnedWriteHalf,
        peer: &PeerLimits,
        secure: SharedSecureChannel,
        pending: Arc<PendingRequests>,
        token_answered: Arc<Notify>,
        outgoing: mpsc::Receiver<OutgoingRequest>,
    ) -> ChannelWriter {
        let legacy = secure.read().security_policy().legacy_sequence_numbers();
        ChannelWriter {
            write,
            peer_chunk_bytes: peer.chunk_bytes,
            peer_message_bytes: match peer.message_bytes {
                0 => limits::MESSAGE_BYTES_MAX,
                limit => limit.min(limits::MESSAGE_BYTES_MAX),
            },
            peer_chunks: if peer.chunks == 0 { usize::MAX } else { peer.chunks },
            secure,
            pending,
            token_answered,
            outgoing,
            sequence: SequenceNumberHandle::new(legacy),
            request_id: 0,
            buffer: Vec::new(),
            storage: BytesMut::new(),
            chunks: Vec::new(),
        }
    }

    /// Returns why the connection ended.
    pub async fn run(mut self) -> String {
        loop {
            let Some(first) = self.outgoing.recv().await else {
                return "the connection was closed".to_owned();
            };
            self.buffer.clear();
            let mut then = self.encode(first);
            while then == AfterRequest::GoOn && self.buffer.len() < WRITE_BYTES {
                let Ok(next) = self.outgoing.try_recv() else { break };
                then = self.encode(next);
            }
            if let Err(error) = self.write.write_all(&self.buffer).await {
                return format!("the connection broke: {error}");
            }
            match then {
                AfterRequest::GoOn => {}
                AfterRequest::Close => return "the connection was closed".to_owned(),
                // The caller that requested the token bounds this wait.
                AfterRequest::WaitForToken => self.token_answered.notified().await,
            }
        }
    }

    /// Appends a request to the buffer; a request that cannot be sent fails alone.
    fn encode(&mut self, outgoing: OutgoingRequest) -> AfterRequest {
        let OutgoingRequest { request, reply } = outgoing;
        let then = match &request {
            RequestMessage::CloseSecureChannel(_) => AfterRequest::Close,
            RequestMessage::OpenSecureChannel(_) => AfterRequest::WaitForToken,
            _ => AfterRequest::GoOn,
        };
        self.request_id = self.request_id.wrapping_add(1);
        let request_id = self.request_id;
        if let Some(reply) = reply {
            self.pending.add(request_id, reply);
        }
        if let Err(error) = self.chunks_of(request_id, &request) {
            self.pending.fail(request_id, error);
            return AfterRequest::GoOn;
        }
        then
    }

    fn chunks_of(&mut self, request_id: u32, request: &RequestMessage) -> Result<(), CallError> {
        let secure = self.secure.read();
        self.chunks.clear();
        let unsendable = |error: opcua::types::Error| match error.status() {
            StatusCode::BadRequestTooLarge => CallError::RequestTooLarge,
            _ => CallError::Unreadable(format!("the request cannot be encoded: {error}")),
        };
        let count = Chunker::encode_into(
            self.sequence.clone(),
            request_id,
            self.peer_message_bytes,
            self.peer_chunk_bytes,
            &secure,
            request,
            &mut self.storage,
            &mut self.chunks,
        )
        .map_err(unsendable)?;
        if count > self.peer_chunks {
            return Err(CallError::RequestTooLarge);
        }
        self.sequence.increment(u32::try_from(count).unwrap_or(u32::MAX));
        for chunk in self.chunks.drain(..) {
            let start = self.buffer.len();
            self.buffer.resize(start + chunk.data.len() + SECURITY_BYTES_MAX, 0);
            let room = self.buffer.get_mut(start..).unwrap_or_default();
            let written = secure.apply_security(&chunk, room);
            self.buffer.truncate(start + *written.as_ref().unwrap_or(&0));
            written.map_err(|status| CallError::Unreadable(format!("the request cannot be secured: {status}")))?;
        }
        Ok(())
    }
}
