//! The receiving half: assembles bytes from the socket into whole responses. It ends, with the reason, at the first
//! protocol violation; a response that cannot be decoded later affects only its own request.

use std::io::Cursor;
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use opcua::core::comms::message_chunk::{
    MESSAGE_CHUNK_HEADER_SIZE, MessageChunk, MessageChunkHeader, MessageChunkType, MessageIsFinalType,
};
use opcua::core::comms::security_header::SecurityHeader;
use opcua::core::comms::tcp_types::ErrorMessage;
use opcua::types::{MessageSecurityMode, SimpleBinaryDecodable as _};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::Notify;

use super::body::AnswerBody;
use super::pending::PendingRequests;
use super::service::CallError;
use super::{ChannelSecurity, SharedSecureChannel, chain, handshake, limits};
use crate::security::leaf_certificate;
use crate::value::status;

/// Header of any message: type, finality, size.
const FRAME_HEADER_BYTES: usize = 8;

const SEQUENCE_HEADER_BYTES: usize = 8;
const TOKEN_ID_BYTES: usize = 4;

/// Read buffer size; several small messages arrive in one read.
const READ_BYTES: usize = 64 << 10;

pub(super) struct ChannelReader<R> {
    pub read: R,
    pub chunk_bytes_max: usize,
    pub secure: SharedSecureChannel,
    pub security: ChannelSecurity,
    pub pending: Arc<PendingRequests>,
    /// Notified of every OpenSecureChannel response, once its token is in effect.
    pub token_answered: Arc<Notify>,
    pub buffer: BytesMut,
    /// The sequence number of the last chunk.
    pub sequence: Option<u32>,
}

impl<R: AsyncRead + Unpin> ChannelReader<R> {
    /// Returns why the connection ended.
    pub async fn run(mut self) -> String {
        loop {
            loop {
                match self.frame() {
                    Ok(Some(frame)) => {
                        if let Err(why) = self.message(frame) {
                            return why;
                        }
                    }
                    Ok(None) => break,
                    Err(why) => return why,
                }
            }
            self.buffer.reserve(READ_BYTES);
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) => return "the server closed the connection".to_owned(),
                Ok(_) => {}
                Err(error) => return format!("the connection broke: {error}"),
            }
        }
    }

    /// Returns the next whole message in the buffer.
    fn frame(&mut self) -> Result<Option<Bytes>, String> {
        let Some(header) = self.buffer.get(..FRAME_HEADER_BYTES) else {
            return Ok(None);
        };
        let mut size = header.get(4..).unwrap_or_default();
        let size = size.try_get_u32_le().unwrap_or(0) as usize;
        if !(FRAME_HEADER_BYTES..=self.chunk_bytes_max).contains(&size) {
            return Err(format!(
                "the server announced a chunk of {size} bytes, but {} were agreed",
                self.chunk_bytes_max
            ));
        }
        if self.buffer.len() < size {
            self.buffer.reserve(size - self.buffer.len());
            return Ok(None);
        }
        Ok(Some(self.buffer.split_to(size).freeze()))
    }

    fn message(&mut self, frame: Bytes) -> Result<(), String> {
        match frame.get(..3) {
            Some(b"MSG" | b"OPN" | b"CLO") => self.chunk(frame),
            Some(b"ERR") => Err(error_text(&frame)),
            _ => Err("the server sent a message of unknown type".to_owned()),
        }
    }

    fn chunk(&mut self, frame: Bytes) -> Result<(), String> {
        let options = limits::decoding_options(frame.len());
        let wrong = |error: opcua::types::Error| format!("the server sent a chunk that cannot be read: {error}");
        let header = MessageChunkHeader::decode(&mut Cursor::new(&*frame), &options).map_err(wrong)?;
        let is_open = header.message_type.is_open_secure_channel();
        let opened = match is_open {
            true => self.check_sender(&frame)?,
            false => None,
        };
        if !is_open {
            self.check_size(frame.len())?;
        }
        let (chunk, info) = {
            let secure = self.secure.read();
            if !is_open && header.secure_channel_id != secure.secure_channel_id() {
                return Err("the server sent a chunk of another channel".to_owned());
            }
            let chunk = match opened {
                Some(data) => MessageChunk { data },
                None => secure
                    .verify_and_remove_security(frame)
                    .map_err(|error| format!("the server sent a chunk that fails its security check: {error}"))?,
            };
            let info = chunk.chunk_info(&secure).map_err(wrong)?;
            (chunk, info)
        };
        self.check_sequence(info.sequence_header.sequence_number)?;
        let request_id = info.sequence_header.request_id;
        let body = chunk.data.slice(info.body_offset.min(chunk.data.len())..);
        match header.is_final {
            MessageIsFinalType::FinalError => self.pending.fail(request_id, aborted(&chunk, &info, &options)),
            MessageIsFinalType::Intermediate => self.pending.chunk(request_id, body, false)?,
            MessageIsFinalType::Final => {
                if is_open {
                    // A refusal goes to the caller; any other problem with a token ends the channel.
                    match handshake::apply_token(&self.secure, &AnswerBody::from_bytes(body.clone())) {
                        Ok(()) | Err(CallError::Refused(_)) => {}
                        Err(error) => return Err(error.to_string()),
                    }
                    self.token_answered.notify_one();
                }
                self.pending.chunk(request_id, body, true)?;
            }
        }
        if header.message_type == MessageChunkType::CloseSecureChannel {
            return Err("the server closed the secure channel".to_owned());
        }
        Ok(())
    }

    /// An OpenSecureChannel response must use the requested policy and the trusted certificate; the library would
    /// accept whatever the header names. Returns the plain message if it had to be opened here, because issuers come
    /// with the certificate.
    fn check_sender(&self, frame: &Bytes) -> Result<Option<Bytes>, String> {
        let options = limits::decoding_options(frame.len());
        let mut cursor = Cursor::new(frame.get(MESSAGE_CHUNK_HEADER_SIZE..).unwrap_or_default());
        let header = SecurityHeader::decode_from_stream(&mut cursor, true, &options);
        let Ok(SecurityHeader::Asymmetric(header)) = header else {
            return Err("the server's answer to opening the channel cannot be read".to_owned());
        };
        if header.security_policy_uri.as_ref() != self.security.policy.to_uri() {
            return Err(format!(
                "the server answered under security policy \"{}\" instead of {}",
                header.security_policy_uri,
                self.security.policy.to_uri()
            ));
        }
        let Some(expected) = self
            .security
            .server_certificate
            .as_ref()
            .filter(|_| !self.security.is_none())
        else {
            return Ok(None);
        };
        let (sent, trusted) = (header.sender_certificate.as_ref(), expected.as_byte_string());
        if sent == trusted.as_ref() {
            return Ok(None);
        }
        if leaf_certificate(sent).as_deref() != Some(trusted.as_ref()) {
            return Err("the server answered with another certificate than the trusted one".to_owned());
        }
        let encrypted_from = MESSAGE_CHUNK_HEADER_SIZE + usize::try_from(cursor.position()).unwrap_or(usize::MAX / 2);
        chain::opened(frame, &header, encrypted_from, expected, &self.security).map(Some)
    }

    /// The library slices by sizes that it computes from the chunk's size, so a chunk must be large enough for them.
    fn check_size(&self, bytes: usize) -> Result<(), String> {
        let headers = MESSAGE_CHUNK_HEADER_SIZE + TOKEN_ID_BYTES;
        let signature = match self.security.is_none() {
            true => 0,
            false => self.security.policy.symmetric_signature_size(),
        };
        let encrypted = self.security.mode == MessageSecurityMode::SignAndEncrypt;
        let padding = usize::from(encrypted);
        let too_short = bytes < headers + SEQUENCE_HEADER_BYTES + padding + signature;
        if too_short || (encrypted && !(bytes - headers).is_multiple_of(16)) {
            return Err("the server sent a chunk of impossible size".to_owned());
        }
        Ok(())
    }

    /// Sequence numbers count up by one and wrap to a small one. Servers may start with any number.
    fn check_sequence(&mut self, number: u32) -> Result<(), String> {
        let follows = match self.sequence {
            None => true,
            Some(last) => number == last.wrapping_add(1) || (last >= u32::MAX - 1024 && number < 1024),
        };
        self.sequence = Some(number);
        if follows {
            Ok(())
        } else {
            Err("the server's chunks arrived out of sequence".to_owned())
        }
    }
}

fn error_text(frame: &Bytes) -> String {
    let options = limits::decoding_options(frame.len());
    match ErrorMessage::decode(&mut Cursor::new(&**frame), &options) {
        Ok(error) => {
            let reason = handshake::reason(error.reason.as_ref());
            format!(
                "the server closed the connection: {}{reason}",
                status::text(error.error.bits())
            )
        }
        Err(_) => "the server closed the connection with an error that cannot be read".to_owned(),
    }
}

fn aborted(
    chunk: &MessageChunk,
    info: &opcua::core::comms::message_chunk_info::ChunkInfo,
    options: &opcua::types::DecodingOptions,
) -> CallError {
    match chunk.final_error_body(info, options) {
        Ok(error) => CallError::Refused(error.status.bits()),
        Err(_) => CallError::Unreadable("the server aborted its answer".to_owned()),
    }
}
