//! The fields of the `opcua` components, checked and with defaults filled in.

mod connection;
mod input;
mod output;

pub(crate) use connection::{ConnectionConfig, Identity, PolicyChoice, SecurityChoice, policy_name};
pub(crate) use input::{BadValues, BrowseConfig, InputConfig, TagGroupMode};
pub(crate) use output::{NodeMapping, OutputConfig, PerMessage};
