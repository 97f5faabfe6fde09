//! Lossless binary encoding of messages, used by durable buffers.
//!
//! A **parcel** is a number of messages with one header. A [`MessageEncoder`] writes it, a [`MessageDecoder`] reads it,
//! and each parcel can be read alone. Within it texts refer to earlier ones. The constant map of a tag is defined once
//! and then referred to by number. A new map, like a message's own changes, is written as the difference to the
//! previous one (same key, same value, same beginning of a value), because tags of one machine differ in only a few
//! texts. Times are differences too. A dictionary across parcels would save more but is not used: a reader starts
//! anywhere and must not depend on freed data.
//!
//! Layout, after the version byte: count as varint, then per message a byte of [`flags`], the map (0: none, a known
//! number, or the next number with its definition), and depending on the flags stamps, changes, failure and source;
//! last the payload, a byte of kind and type, then the value. Numbers are varints (signed ones zigzag), floats 8 or 4
//! bytes, texts length and bytes.
//!
//! Decoding untrusted bytes has bounded cost: the bytes that texts copy from earlier ones are bounded per parcel
//! ([`COPIED_BYTES_MAX`], which the encoder respects), values nest at most [`DEPTH_MAX`] deep, and no count is trusted
//! beyond the available bytes.

mod decode;
mod definition_cache;
mod encode;
mod lists;
mod value;
mod wire;

#[cfg(test)]
mod tests;

pub use decode::MessageDecoder;
pub use encode::MessageEncoder;

/// The version that is written, and the only one that is read.
pub const VERSION: u8 = 1;

/// Maximum nesting of arrays and objects; scripts and the JSON parser stop at half of it.
pub const DEPTH_MAX: usize = 256;

/// Maximum bytes that the texts of one parcel copy from earlier ones in it.
const COPIED_BYTES_MAX: usize = 32 << 20;

/// Bits of a message's first byte. The lower three are the stamps that are shown as metadata.
mod flags {
    pub const SHOWN: u8 = 0b111;
    /// It is an OPC UA value.
    pub const STAMPED: u8 = 8;
    pub const CHANGED: u8 = 16;
    pub const FAILED: u8 = 32;
    /// Its stamps are not those of "nothing known".
    pub const STAMPS: u8 = 64;
    pub const SOURCE: u8 = 128;
}

/// Bits of a payload's first byte, above the type of its value.
mod kind {
    pub const RAW: u8 = 0;
    pub const VALUE: u8 = 1 << 6;
    pub const SAMPLE: u8 = 2 << 6;
    pub const MASK: u8 = 3 << 6;
}

/// Why bytes are not a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A later version of the program wrote them, or they are something else.
    #[error(
        "the messages are written in format {found}, and this version reads format {VERSION}; run the version that wrote them"
    )]
    Version { found: u8 },
    #[error("byte {at} of the stored messages: {what}")]
    Damaged { at: usize, what: &'static str },
}

/// A message that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value is nested more than {DEPTH_MAX} deep; flatten it")]
pub struct NestingTooDeep;
