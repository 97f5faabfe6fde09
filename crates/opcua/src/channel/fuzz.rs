//! Runs the receiving half on bytes instead of a socket, for the fuzz targets.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use opcua::core::comms::message_chunk::MessageChunk;
use opcua::core::comms::secure_channel::SecureChannel;
use opcua::core::comms::security_header::AsymmetricSecurityHeader;
use opcua::crypto::{PrivateKey, SecurityPolicy, X509, X509Data};
use opcua::types::{
    ByteString, ChannelSecurityToken, DateTime, MessageSecurityMode, ObjectId, SimpleBinaryEncodable as _,
};
use parking_lot::RwLock;
use tokio::sync::{Notify, oneshot};

use super::pending::{AnswerSink, PendingRequests};
use super::reader::ChannelReader;
use super::{ChannelSecurity, handshake, limits};

/// Pending requests.
const REQUESTS: u32 = 4;

/// Security makes a frame longer.
const SECURITY_BYTES_MAX: usize = 4096;

/// A server that sends frames and closes the connection. The first byte chooses the security; then each frame has two
/// bytes of flags and length (see [`Frame`]) and its content. Sizes and signatures, which the fuzzer could never guess,
/// are correct unless a flag says otherwise.
pub(crate) fn frames(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else {
        return;
    };
    let security = match first % 4 {
        0 => secured(MessageSecurityMode::Sign),
        1 => secured(MessageSecurityMode::SignAndEncrypt),
        _ => ChannelSecurity::none(),
    };
    let secure = secure_channel(&security);
    let mut stream = Vec::new();
    let mut sequence = 0;
    while let [kind, size, after @ ..] = rest {
        let (content, next) = after.split_at(usize::from(*size).min(after.len()));
        rest = next;
        sequence += 1;
        let frame = Frame {
            flags: *kind,
            sequence,
            content,
        };
        frame.write(&secure, &security, &mut stream);
    }
    receive(&stream, secure, security);
}

/// The bits of `flags`: 0-1 the kind, 2-3 the finality, 4 a wrong sequence number, 5 a changed byte at the end, 6 no
/// frame at all, 7 a response that begins with its correct type.
struct Frame<'a> {
    flags: u8,
    sequence: u32,
    content: &'a [u8],
}

impl Frame<'_> {
    fn write(&self, secure: &SecureChannel, security: &ChannelSecurity, stream: &mut Vec<u8>) {
        if self.flags & 0x40 != 0 {
            return stream.extend(self.content);
        }
        let kind = [*b"MSG", *b"OPN", *b"CLO", *b"ERR"]
            .into_iter()
            .nth(usize::from(self.flags & 3))
            .unwrap_or_default();
        let finality = *b"FCA?".get(usize::from(self.flags >> 2 & 3)).unwrap_or(&b'F');
        let mut frame = kind.to_vec();
        frame.push(finality);
        frame.extend([0; 4]);
        if &kind == b"ERR" {
            frame.extend(self.content);
            set_size(&mut frame);
            return stream.extend(frame);
        }
        self.write_headers(&kind, security, &mut frame);
        if self.flags & 0x80 != 0 {
            let id = match &kind {
                b"OPN" => ObjectId::OpenSecureChannelResponse_Encoding_DefaultBinary,
                _ => ObjectId::ServiceFault_Encoding_DefaultBinary,
            };
            frame.extend([1, 0]);
            frame.extend(u16::try_from(id as u32).unwrap_or_default().to_le_bytes());
        }
        frame.extend(self.content);
        set_size(&mut frame);
        // The library accepts only valid finalities.
        if !security.is_none() && finality != b'?' {
            let mut written = vec![0; frame.len() + SECURITY_BYTES_MAX];
            let chunk = MessageChunk { data: frame.into() };
            let size = secure.apply_security(&chunk, &mut written).unwrap_or(0);
            written.truncate(size);
            frame = written;
        }
        if let (true, Some(last)) = (self.flags & 0x20 != 0, frame.last_mut()) {
            *last ^= 1;
        }
        stream.extend(frame);
    }

    fn write_headers(&self, kind: &[u8; 3], security: &ChannelSecurity, frame: &mut Vec<u8>) {
        frame.extend([0; 4]);
        match (kind, &security.own) {
            (b"OPN", Some((certificate, _))) => {
                let header = AsymmetricSecurityHeader {
                    security_policy_uri: security.policy.to_uri().into(),
                    sender_certificate: certificate.as_byte_string(),
                    receiver_certificate_thumbprint: ByteString::from(certificate.thumbprint().value().to_vec()),
                };
                frame.extend(header.encode_to_vec());
            }
            (b"OPN", None) => frame.extend(AsymmetricSecurityHeader::none().encode_to_vec()),
            _ => frame.extend([0; 4]),
        }
        let skipped = u32::from(self.flags & 0x10 != 0);
        frame.extend((self.sequence + skipped).to_le_bytes());
        // One more than there are requests.
        let request_id = 1 + u32::from(self.content.first().copied().unwrap_or_default()) % (REQUESTS + 1);
        frame.extend(request_id.to_le_bytes());
    }
}

fn set_size(frame: &mut [u8]) {
    let size = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&size.to_le_bytes());
    }
}

fn receive(stream: &[u8], secure: SecureChannel, security: ChannelSecurity) {
    let pending = Arc::new(PendingRequests::default());
    let answers: Vec<_> = (1..=REQUESTS)
        .map(|request_id| {
            let (reply, answer) = oneshot::channel();
            pending.add(request_id, AnswerSink::One(reply));
            answer
        })
        .collect();
    let reader = ChannelReader {
        read: stream,
        chunk_bytes_max: limits::CHUNK_BYTES_MAX,
        secure: Arc::new(RwLock::new(secure)),
        security,
        pending: pending.clone(),
        token_answered: Arc::new(Notify::new()),
        buffer: BytesMut::new(),
        sequence: None,
    };
    // Bytes in memory are always ready.
    let why = futures::executor::block_on(reader.run());
    assert!(!why.is_empty());
    pending.close(&why);
    for mut answer in answers {
        if let Ok(Ok(body)) = answer.try_recv() {
            let _fault = body.check_fault();
        }
    }
}

/// Uses keys as if both ends had agreed on them; they are the same for both.
fn secure_channel(security: &ChannelSecurity) -> SecureChannel {
    let mut secure = handshake::secure_channel(security);
    if !security.is_none() {
        let nonce = [7; 32];
        secure.set_local_nonce(&nonce);
        secure.set_security_token(ChannelSecurityToken {
            channel_id: 0,
            token_id: 0,
            created_at: DateTime::now(),
            revised_lifetime: limits::TOKEN_LIFETIME_MS,
        });
        let _known_length = secure.set_remote_nonce_from_byte_string(&nonce.to_vec().into());
        secure.derive_keys();
    }
    secure
}

/// One key for both ends.
fn secured(mode: MessageSecurityMode) -> ChannelSecurity {
    static PAIR: OnceLock<Option<(X509, PrivateKey)>> = OnceLock::new();
    let pair = PAIR.get_or_init(|| X509::cert_and_pkey(&X509Data::sample_cert()).ok());
    match pair {
        Some((certificate, key)) => ChannelSecurity {
            mode,
            policy: SecurityPolicy::Basic256Sha256,
            own: Some((certificate.clone(), key.clone())),
            server_certificate: Some(certificate.clone()),
        },
        None => ChannelSecurity::none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three valid frames: a part of a response, its end, and the end of the channel.
    #[test]
    fn frames_that_are_right_are_taken_whatever_the_security() {
        for mode in [
            MessageSecurityMode::None,
            MessageSecurityMode::Sign,
            MessageSecurityMode::SignAndEncrypt,
        ] {
            let security = match mode {
                MessageSecurityMode::None => ChannelSecurity::none(),
                mode => secured(mode),
            };
            let secure = secure_channel(&security);
            let mut stream = Vec::new();
            for (sequence, flags) in [(1, 0b0100), (2, 0), (3, 2)] {
                let content = &[0, 1, 2, 3][..];
                let frame = Frame {
                    flags,
                    sequence,
                    content,
                };
                frame.write(&secure, &security, &mut stream);
            }
            let pending = Arc::new(PendingRequests::default());
            let (reply, answer) = oneshot::channel();
            pending.add(1, AnswerSink::One(reply));
            let reader = ChannelReader {
                read: &stream[..],
                chunk_bytes_max: limits::CHUNK_BYTES_MAX,
                secure: Arc::new(RwLock::new(secure)),
                security,
                pending,
                token_answered: Arc::new(Notify::new()),
                buffer: BytesMut::new(),
                sequence: None,
            };
            let why = futures::executor::block_on(reader.run());
            assert_eq!(why, "the server closed the secure channel", "{mode:?}");
            assert_eq!(
                answer.blocking_recv().unwrap().unwrap().bytes(),
                [0, 1, 2, 3, 0, 1, 2, 3]
            );
        }
    }
}
