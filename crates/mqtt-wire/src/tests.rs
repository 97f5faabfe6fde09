//! What is written is read again, in both directions and all versions, and nothing that is received panics.

mod connect;
mod forbidden;
mod round_trip;

use bytes::Bytes;

use crate::{ConnectRefusal, DecodeContext, FixedHeader, Packet, ProtocolVersion, ReasonCode, Sender};

const MAX: usize = 1 << 20;
const VERSIONS: [ProtocolVersion; 3] = [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5];

fn context(version: ProtocolVersion, sender: Sender) -> DecodeContext {
    DecodeContext {
        version,
        sender,
        strict_utf8: false,
    }
}

/// Decodes one whole packet.
fn decode(bytes: &[u8], version: ProtocolVersion, sender: Sender) -> Result<Packet, ReasonCode> {
    let header = FixedHeader::parse(bytes, MAX).map_err(|error| error.code)?;
    let header = header.unwrap();
    assert_eq!(header.packet_len(), bytes.len(), "{bytes:02x?}");
    let decoded = Packet::decode(Bytes::copy_from_slice(bytes), &header, context(version, sender));
    decoded.map_err(|error| error.code)
}

/// Decodes a CONNECT.
fn decode_connect(bytes: &[u8]) -> Result<crate::Connect, ConnectRefusal> {
    let header = FixedHeader::parse(bytes, MAX).unwrap().unwrap();
    assert_eq!(header.packet_len(), bytes.len(), "{bytes:02x?}");
    crate::Connect::decode(&Bytes::copy_from_slice(bytes), &header, false)
}

/// A packet of a first byte and a body.
fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    crate::encode::variable(&mut out, body.len());
    out.extend_from_slice(body);
    out
}
