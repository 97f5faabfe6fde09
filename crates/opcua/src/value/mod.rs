//! Converts the bytes of OPC UA values to [`thalweg_record::Value`]s with status and timestamps.

pub(crate) mod answers;
pub(crate) mod decode;
#[cfg(test)]
pub(crate) mod generated;
mod standard_types;
pub(crate) mod status;
pub(crate) mod ticks;
pub(crate) mod types;

pub(crate) use decode::{ANSWER_ELEMENTS_MAX, DataValue, DecodeError, Decoder, ValueContent};
pub(crate) use types::StructureRegistry;
