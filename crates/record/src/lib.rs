//! The data that moves through Thalweg: values, messages, batches, and their mass balance.
//!
//! This crate does no I/O. A [`Message`] is a [`Payload`] with [`Metadata`] whose constant part is shared per tag; a
//! stage that leaves it unchanged copies nothing. A [`Batch`] is a vector of messages with one [`Ack`]. The `Ack` is
//! the only way to report their outcome, and it cannot be dropped without being counted.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod ack;
mod balance;
mod batch;
pub mod codec;
mod exact;
#[doc(hidden)]
pub mod growth;
pub mod json;
mod message;
mod metadata;
mod number;
mod per_map_cache;
mod remembered;
mod source;
mod time;
mod value;

pub use ack::{Ack, AckResult};
pub use balance::{BalanceCounts, DropReason, FilterReason, FlowBalance};
pub use batch::Batch;
pub use exact::Number;
pub use message::{Failure, Message, Payload};
pub use metadata::{MetaMap, Metadata, QualityDetails, ValueQuality, key};
pub use number::{g_form, parse_decimal, write_f32, write_f64};
pub use per_map_cache::{DerivedMap, PerMapCache};
pub use remembered::{CacheLimits, Remembered};
pub use source::SourceName;
pub use time::{Ticks, TimeForm};
pub use value::{Guid, Object, Structured, Value};

/// Short immutable text: up to 23 bytes inline, longer ones shared. Cloning never copies the characters.
pub type Text = smol_str::SmolStr;
