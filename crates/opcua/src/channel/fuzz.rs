//! The receiving half on bytes instead of a socket, for the fuzz targets.

use std::sync::{Arc, OnceLock};

use bytes::BytesMut;
use opcua::crypto::{PrivateKey, SecurityPolicy, X509, X509Data};
use opcua::types::{ChannelSecurityToken, DateTime, MessageSecurityMode};
use parking_lot::RwLock;
use tokio::sync::{Notify, oneshot};

use super::pending::{Pending, Reply};
use super::reader::Reader;
use super::{ChannelSecurity, handshake, limits};

/// Requests that wait for answers.
const REQUESTS: u32 = 4;

/// Everything that a server sends until it closes the connection. The first byte chooses the security.
pub(crate) fn frames(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let security = match first % 4 {
        0 => secured(MessageSecurityMode::Sign),
        1 => secured(MessageSecurityMode::SignAndEncrypt),
        _ => ChannelSecurity::none(),
    };
    let mut secure = handshake::secure_channel(&security);
    if !security.is_none() {
        // Keys that a channel would have agreed on, so that chunks get as far as their signature.
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
    let pending = Arc::new(Pending::default());
    let answers: Vec<_> = (1..=REQUESTS)
        .map(|request_id| {
            let (reply, answer) = oneshot::channel();
            pending.add(request_id, Reply::One(reply));
            answer
        })
        .collect();
    let reader = Reader {
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
    pending.close(&why);
    for mut answer in answers {
        if let Ok(Ok(body)) = answer.try_recv() {
            let _fault = body.check_fault();
        }
    }
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
