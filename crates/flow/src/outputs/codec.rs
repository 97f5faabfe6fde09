//! How messages are written to a stream: `lines`, `all-bytes`, `append`, `delim:x`.

use thalweg_config::Fields;
use thalweg_record::{Message, Payload};

/// The bytes after each message, or the replacement of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OutputCodec {
    Ends(Vec<u8>),
    /// Each message replaces the file's content.
    Replaces,
}

impl OutputCodec {
    pub fn read(fields: &mut Fields<'_>) -> OutputCodec {
        let name = fields.string("codec", "lines");
        match name.as_str() {
            "lines" => OutputCodec::Ends(b"\n".to_vec()),
            "append" => OutputCodec::Ends(Vec::new()),
            "all-bytes" => OutputCodec::Replaces,
            other => match other.strip_prefix("delim:") {
                Some(delimiter) if !delimiter.is_empty() => OutputCodec::Ends(delimiter.as_bytes().to_vec()),
                _ => {
                    fields.error(
                        "codec",
                        format!("unknown codec \"{other}\"; valid: lines, append, all-bytes, delim:x"),
                    );
                    OutputCodec::Replaces
                }
            },
        }
    }

    pub fn encode(&self, message: &Message, out: &mut Vec<u8>) {
        match &message.payload {
            Payload::Raw(bytes) => out.extend_from_slice(bytes),
            _ => out.extend_from_slice(&message.bytes()),
        }
        if let OutputCodec::Ends(end) = self {
            out.extend_from_slice(end);
        }
    }
}
