//! The contract of a message, and its outcome: the message is checked, or passes with the reason why it is not.

use std::sync::Arc;

use serde_json::{Value, json};
use thalweg_record::Message;
use thalweg_tags::topic::TopicParts;

use super::bypass::{Bypass, BypassReason};
use super::registry::{ContractLookup, SchemaRegistryClient, Subject};

/// The parts of a name such as `_pump_v2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedContract<'c> {
    /// Includes the underscore.
    pub name: &'c str,
    pub version: &'c str,
}

impl<'c> VersionedContract<'c> {
    pub fn of(contract: &'c str) -> Option<VersionedContract<'c>> {
        let (name, version) = contract.rsplit_once("_v")?;
        let is_number = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
        (name.len() > 1 && is_number).then_some(VersionedContract { name, version })
    }
}

/// What the headers of a record say about its contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContractVerdict<'c> {
    Checked(VersionedContract<'c>),
    Bypassed(Bypass),
}

/// A message must satisfy one of these.
type SubjectList = Arc<Vec<Arc<Subject>>>;

/// Returns the subjects to check a message with; `Err` is why it is not checked.
pub fn subjects<'c>(
    contract: &'c str,
    message: &Message,
    registry: &SchemaRegistryClient,
) -> Result<(VersionedContract<'c>, SubjectList), Bypass> {
    let Some(versioned) = VersionedContract::of(contract) else {
        let why = format!("{contract} has no version; only contracts that end in _v and a number are checked");
        return Err(Bypass::new(BypassReason::NoVersion, why));
    };
    // A deletion has no content that could break a contract, and must pass where its key passed.
    if message.bytes().is_empty() {
        let why = "the message has no payload: it deletes its key";
        return Err(Bypass::new(BypassReason::Tombstone, why));
    }
    match registry.known(contract) {
        ContractLookup::Subjects(subjects) => Ok((versioned, subjects)),
        ContractLookup::Bypassed(bypass) => Err(bypass),
    }
}

/// `Err`: the message breaks its contract.
pub fn check<'c>(
    place: TopicParts<'c>,
    message: &Message,
    registry: &SchemaRegistryClient,
) -> Result<ContractVerdict<'c>, String> {
    let name = place.contract;
    let (versioned, subjects) = match subjects(name, message, registry) {
        Ok(found) => found,
        Err(bypass) => return Ok(ContractVerdict::Bypassed(bypass)),
    };
    let payload: Value = serde_json::from_slice(&message.bytes())
        .map_err(|error| format!("the payload is not the JSON that the contract {name} requires: {error}"))?;
    let sample = json!({"fields": payload, "virtual_path": place.path});
    let mut nearest: Option<String> = None;
    for subject in subjects.iter() {
        let Err(why) = subject.schema.check(&sample) else {
            return Ok(ContractVerdict::Checked(versioned));
        };
        // The error of a schema for this virtual path is more useful than one of a schema for another path.
        let says_more = !why.starts_with("virtual_path");
        if nearest.is_none() || says_more {
            nearest = Some(format!("{}: {why}", subject.name));
        }
    }
    let why = nearest.unwrap_or_else(|| "it has no schema".to_owned());
    Err(format!("the message breaks the contract {name} ({why})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_number_at_the_end() {
        let versioned = |name, version| Some(VersionedContract { name, version });
        for (contract, expected) in [
            ("_pump_v1", versioned("_pump", "1")),
            ("_pump_v2_v13", versioned("_pump_v2", "13")),
            ("_pump", None),
            ("_pump_v", None),
            ("_pump_v1a", None),
            ("_v1", None),
            ("_raw", None),
        ] {
            assert_eq!(VersionedContract::of(contract), expected, "{contract}");
        }
    }
}
