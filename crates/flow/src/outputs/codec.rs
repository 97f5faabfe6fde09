//! How messages are put one after the other into a stream: `lines`, `all-bytes`, `append`, `delim:x`.

use thalweg_config::Fields;
use thalweg_record::{Message, Payload};

/// What follows each message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Ends(Vec<u8>),
    /// Each message replaces the file's content.
    Replaces,
}

impl Codec {
    pub fn read(fields: &mut Fields<'_>) -> Codec {
        let name = fields.string("codec", "lines");
        match name.as_str() {
            "lines" => Codec::Ends(b"\n".to_vec()),
            "append" => Codec::Ends(Vec::new()),
            "all-bytes" => Codec::Replaces,
            other => match other.strip_prefix("delim:") {
                Some(delimiter) if !delimiter.is_empty() => Codec::Ends(delimiter.as_bytes().to_vec()),
                _ => {
                    fields.error(
                        "codec",
                        format!("unknown codec \"{other}\"; valid: lines, append, all-bytes, delim:x"),
                    );
                    Codec::Replaces
                }
            },
        }
    }

    pub fn encode(&self, message: &Message, out: &mut Vec<u8>) {
        match &message.payload {
            Payload::Raw(bytes) => out.extend_from_slice(bytes),
            _ => out.extend_from_slice(&message.bytes()),
        }
        if let Codec::Ends(end) = self {
            out.extend_from_slice(end);
        }
    }
}
