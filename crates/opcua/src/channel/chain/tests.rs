use std::sync::Arc;

use bytes::BytesMut;
use opcua::core::comms::security_header::SecurityHeader;
use opcua::crypto::{PrivateKey, SecurityPolicy, X509Data};
use opcua::types::{
    BinaryEncodable, ChannelSecurityToken, ContextOwned, DateTime, DecodingOptions, MessageSecurityMode, NamespaceMap,
    NodeId, ObjectId, OpenSecureChannelResponse, ResponseHeader,
};
use parking_lot::RwLock;
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::channel::pending::{AnswerSink, PendingRequests};
use crate::channel::reader::ChannelReader;
use crate::channel::{handshake, limits};

const CONTENT: &[u8] = b"sequence header and body";

fn pair(key_size: u32) -> (X509, PrivateKey) {
    let data = X509Data {
        key_size,
        ..X509Data::sample_cert()
    };
    X509::cert_and_pkey(&data).unwrap()
}

fn answer(server: &(X509, PrivateKey), own: &X509, policy: SecurityPolicy) -> (Bytes, AsymmetricSecurityHeader, usize) {
    answer_with(CONTENT, server, own, policy)
}

/// The message of a server that also sends its issuer, and where its security header ends.
fn answer_with(
    content: &[u8],
    server: &(X509, PrivateKey),
    own: &X509,
    policy: SecurityPolicy,
) -> (Bytes, AsymmetricSecurityHeader, usize) {
    let header = AsymmetricSecurityHeader {
        security_policy_uri: policy.to_uri().into(),
        sender_certificate: ByteString::from([server.0.to_der().unwrap(), own.to_der().unwrap()].concat()),
        receiver_certificate_thumbprint: ByteString::from(own.thumbprint().value().to_vec()),
    };
    let ours = own.public_key().unwrap();
    let (signature_bytes, padding) = (server.1.size(), policy.asymmetric_padding_info(&ours));
    let unpadded = content.len() + padding.minimum_padding + signature_bytes;
    let fill = unpadded.next_multiple_of(padding.block_size) - unpadded;
    let mut plain = content.to_vec();
    plain.resize(plain.len() + fill + 1, fill as u8);
    if padding.minimum_padding == 2 {
        plain.push((fill >> 8) as u8);
    }
    let encrypted_bytes = policy.calculate_cipher_text_size(plain.len() + signature_bytes, &ours);
    let mut head = b"OPNF".to_vec();
    let encoded = SimpleBinaryEncodable::encode_to_vec(&header);
    let encrypted_from = MESSAGE_CHUNK_HEADER_SIZE + encoded.len();
    head.extend((encrypted_from as u32 + encrypted_bytes as u32).to_le_bytes());
    head.extend(7u32.to_le_bytes());
    head.extend(encoded);
    let mut signature = vec![0; signature_bytes];
    let signed = [&head[..], &plain].concat();
    policy.asymmetric_sign(&server.1, &signed, &mut signature).unwrap();
    let mut encrypted = vec![0; encrypted_bytes + 512];
    let written = policy
        .asymmetric_encrypt(&ours, &[plain, signature].concat(), &mut encrypted)
        .unwrap();
    head.extend(&encrypted[..written]);
    (head.into(), header, encrypted_from)
}

fn security(own: &(X509, PrivateKey), server: &X509, policy: SecurityPolicy) -> ChannelSecurity {
    ChannelSecurity {
        mode: MessageSecurityMode::SignAndEncrypt,
        policy,
        own: Some(own.clone()),
        server_certificate: Some(server.clone()),
    }
}

#[test]
fn an_answer_with_issuers_is_opened_as_if_the_certificate_had_come_alone() {
    let policies = [
        SecurityPolicy::Basic256Sha256,
        SecurityPolicy::Aes128Sha256RsaOaep,
        SecurityPolicy::Aes256Sha256RsaPss,
    ];
    for (server_bits, own_bits) in [(2048, 2048), (2048, 3072), (3072, 2048)] {
        let (server, own) = (pair(server_bits), pair(own_bits));
        for policy in policies {
            let (frame, header, at) = answer(&server, &own.0, policy);
            let opened = opened(&frame, &header, at, &server.0, &security(&own, &server.0, policy)).unwrap();
            let mut rest = std::io::Cursor::new(opened.get(MESSAGE_CHUNK_HEADER_SIZE..).unwrap());
            let alone = SecurityHeader::decode_from_stream(&mut rest, true, &DecodingOptions::default()).unwrap();
            let SecurityHeader::Asymmetric(alone) = alone else {
                panic!("{alone:?}")
            };
            assert_eq!(alone.sender_certificate, server.0.as_byte_string());
            assert!(opened.ends_with(CONTENT));
            assert_eq!(
                opened.len(),
                MESSAGE_CHUNK_HEADER_SIZE + rest.position() as usize + CONTENT.len()
            );
            assert_eq!(opened[4..8], (opened.len() as u32).to_le_bytes());
        }
    }
}

#[test]
fn an_answer_that_somebody_else_signed_or_changed_is_refused() {
    let (server, own, other) = (pair(2048), pair(2048), pair(2048));
    let policy = SecurityPolicy::Basic256Sha256;
    let (frame, header, at) = answer(&server, &own.0, policy);
    let refused = |frame: &Bytes, server: &X509, own: &(X509, PrivateKey)| {
        opened(frame, &header, at, server, &security(own, server, policy)).unwrap_err()
    };
    assert!(refused(&frame, &other.0, &own).contains("fails its security check"));
    assert!(refused(&frame, &server.0, &other).contains("another certificate than Thalweg's"));
    for byte in [0, at - 1, at, frame.len() - 1] {
        let mut changed = frame.to_vec();
        changed[byte] ^= 1;
        refused(&changed.into(), &server.0, &own);
    }
    for length in [0, at, at + 1, frame.len() - 1, frame.len() - 256] {
        refused(&frame.slice(..length), &server.0, &own);
    }
}

#[test]
fn padding_says_its_own_length_and_nothing_else() {
    assert_eq!(without_padding(b"ab\x02\x02\x02", 256), Some(&b"ab"[..]));
    assert_eq!(without_padding(b"ab\x00", 256), Some(&b"ab"[..]));
    assert_eq!(without_padding(b"ab\x01\x02\x02", 256), None);
    assert_eq!(without_padding(b"\x02\x02", 256), None);
    assert_eq!(without_padding(b"", 256), None);
    let long = [&b"ab"[..], &[0x2C; 0x12C + 1], &[1]].concat();
    assert_eq!(without_padding(&long, 384), Some(&b"ab"[..]));
    assert_eq!(without_padding(b"\x01", 384), None);
}

/// A server's response to opening the channel with its issuer is accepted, and its token takes effect.
#[test]
fn a_channel_opens_to_a_server_that_shows_its_issuers() {
    const REQUEST: u32 = 1;
    let (server, own) = (pair(2048), pair(2048));
    let policy = SecurityPolicy::Basic256Sha256;
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    let context = context.context();
    let response = OpenSecureChannelResponse {
        response_header: ResponseHeader::null(),
        server_protocol_version: 0,
        security_token: ChannelSecurityToken {
            channel_id: 7,
            token_id: 9,
            created_at: DateTime::now(),
            revised_lifetime: 3_600_000,
        },
        server_nonce: vec![3; 32].into(),
    };
    let id = NodeId::from(ObjectId::OpenSecureChannelResponse_Encoding_DefaultBinary);
    let mut content = [51u32.to_le_bytes(), REQUEST.to_le_bytes()].concat();
    content.extend(BinaryEncodable::encode_to_vec(&id, &context));
    content.extend(BinaryEncodable::encode_to_vec(&response, &context));
    let (frame, ..) = answer_with(&content, &server, &own.0, policy);
    let shown_by = |certificate: &X509| {
        let security = security(&own, certificate, policy);
        let secure = Arc::new(RwLock::new(handshake::secure_channel(&security)));
        secure.write().set_local_nonce(&[5; 32]);
        let pending = Arc::new(PendingRequests::default());
        let (reply, answer) = oneshot::channel();
        pending.add(REQUEST, AnswerSink::One(reply));
        let reader = ChannelReader {
            read: &frame[..],
            chunk_bytes_max: limits::CHUNK_BYTES_MAX,
            secure: secure.clone(),
            security,
            pending: pending.clone(),
            token_answered: Arc::new(Notify::new()),
            buffer: BytesMut::new(),
            sequence: None,
        };
        let why = futures::executor::block_on(reader.run());
        pending.close(&why);
        let token = secure.read().token_id();
        (why, token, answer.blocking_recv().unwrap().is_ok())
    };
    assert_eq!(
        shown_by(&server.0),
        ("the server closed the connection".to_owned(), 9, true)
    );
    // The issuer is not the server.
    let (why, token, answered) = shown_by(&own.0);
    assert!(why.contains("another certificate than the trusted one"), "{why}");
    assert_eq!((token, answered), (0, false));
}
