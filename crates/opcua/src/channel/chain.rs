//! Handles a response to OpenSecureChannel from a server that sends its issuers along with its certificate. The
//! specification allows that; the library parses such a sender as one certificate and fails. So the message is
//! decrypted and verified here with the library's cryptography, and passed on as if only the first certificate had
//! come.

use bytes::Bytes;
use opcua::core::comms::message_chunk::MESSAGE_CHUNK_HEADER_SIZE;
use opcua::core::comms::secure_channel::SecureChannel;
use opcua::core::comms::security_header::AsymmetricSecurityHeader;
use opcua::crypto::{KeySize as _, X509};
use opcua::types::{ByteString, SimpleBinaryEncodable};

use super::ChannelSecurity;

/// Longer keys, in bytes, have padding with two length bytes.
const KEY_BYTES_OF_ONE_PADDING_BYTE: usize = 256;

/// `server` is the trusted certificate, which the caller has found first in the chain. The security header ends at
/// `encrypted_from`. Returns the plain message without padding and signature.
pub(super) fn opened(
    frame: &Bytes,
    header: &AsymmetricSecurityHeader,
    encrypted_from: usize,
    server: &X509,
    security: &ChannelSecurity,
) -> Result<Bytes, String> {
    let failed = |why: &str| format!("the server's answer to opening the channel fails its security check: {why}");
    let (own, key) = security.own.as_ref().ok_or_else(|| failed("a key is missing"))?;
    if header.receiver_certificate_thumbprint.as_ref() != own.thumbprint().value() {
        return Err(failed("it is for another certificate than Thalweg's"));
    }
    let (head, encrypted) = frame
        .split_at_checked(encrypted_from)
        .ok_or_else(|| failed("it ends too early"))?;
    // The library decrypts block by block and slices by the size of the key.
    if encrypted.is_empty() || !encrypted.len().is_multiple_of(key.size()) {
        return Err(failed("it has an impossible size"));
    }
    let cryptography = |error: opcua::types::Error| failed(&error.to_string());
    let mut plain = vec![0; encrypted.len()];
    let length = security
        .policy
        .asymmetric_decrypt(key, encrypted, &mut plain)
        .map_err(cryptography)?;
    plain.truncate(length);
    let verifier = server.public_key().map_err(cryptography)?;
    let (content, signature) = plain
        .len()
        .checked_sub(verifier.size())
        .and_then(|at| plain.split_at_checked(at))
        .ok_or_else(|| failed("it ends too early"))?;
    let signed = [head, content].concat();
    security
        .policy
        .asymmetric_verify_signature(&verifier, &signed, signature)
        .map_err(cryptography)?;
    let content = without_padding(content, key.size()).ok_or_else(|| failed("its padding is wrong"))?;
    Ok(rebuilt(head, header, server, content))
}

/// The padding contains its own length: in its last byte, or in the last two if our key is long.
fn without_padding(content: &[u8], key_bytes: usize) -> Option<&[u8]> {
    let (extra, content) = match key_bytes > KEY_BYTES_OF_ONE_PADDING_BYTE {
        true => content.split_last().map(|(extra, rest)| (usize::from(*extra), rest))?,
        false => (0, content),
    };
    let low = content.last()?;
    let length = extra << 8 | usize::from(*low);
    let (content, padding) = content.split_at_checked(content.len().checked_sub(length + 1)?)?;
    padding.iter().all(|byte| byte == low).then_some(content)
}

fn rebuilt(head: &[u8], header: &AsymmetricSecurityHeader, server: &X509, content: &[u8]) -> Bytes {
    let header = AsymmetricSecurityHeader {
        security_policy_uri: header.security_policy_uri.clone(),
        sender_certificate: server.as_byte_string(),
        receiver_certificate_thumbprint: ByteString::from(header.receiver_certificate_thumbprint.as_ref().to_vec()),
    };
    let header = SimpleBinaryEncodable::encode_to_vec(&header);
    let message_header = head.get(..MESSAGE_CHUNK_HEADER_SIZE).unwrap_or_default();
    let whole = [message_header, &header, content].concat();
    let length = whole.len();
    SecureChannel::update_message_size_and_truncate(whole, length)
        .unwrap_or_default()
        .into()
}

#[cfg(test)]
mod tests;
