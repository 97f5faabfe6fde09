//! Why a message is not checked by its contract: it says so in its headers, a counter counts it, and the log tells when checking begins
//! and ends.

use thalweg_flow::Component;
use thalweg_record::Text;
use thalweg_telemetry::IntCounter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The contract has no version.
    NoVersion,
    /// The message has no payload: it deletes its key.
    Tombstone,
    /// The registry has no schema for the contract.
    NoSubject,
    /// The registry has a schema of a type that is not JSON.
    OtherType,
    /// The registry has a JSON schema that is none, or has parts that are not known here.
    UnsupportedSchema,
    /// The registry answers with an error, or with nonsense.
    RegistryRefuses,
    /// The registry does not answer.
    RegistrySilent,
    /// The registry has not answered yet.
    RegistrySlow,
}

impl Reason {
    const ALL: [Reason; 8] = [
        Reason::NoVersion,
        Reason::Tombstone,
        Reason::NoSubject,
        Reason::OtherType,
        Reason::UnsupportedSchema,
        Reason::RegistryRefuses,
        Reason::RegistrySilent,
        Reason::RegistrySlow,
    ];

    /// As metrics call it.
    fn name(self) -> &'static str {
        match self {
            Reason::NoVersion => "no_version",
            Reason::Tombstone => "tombstone",
            Reason::NoSubject => "no_subject",
            Reason::OtherType => "other_schema_type",
            Reason::UnsupportedSchema => "unsupported_schema",
            Reason::RegistryRefuses => "registry_refuses",
            Reason::RegistrySilent => "registry_silent",
            Reason::RegistrySlow => "registry_slow",
        }
    }

    /// Whether the registry may have a schema, and cannot be asked for it now.
    pub fn is_registry_failure(self) -> bool {
        matches!(
            self,
            Reason::RegistryRefuses | Reason::RegistrySilent | Reason::RegistrySlow
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    pub reason: Reason,
    /// As headers and the log say it.
    pub why: Text,
}

impl Bypass {
    pub fn new(reason: Reason, why: impl Into<Text>) -> Bypass {
        let why = why.into();
        Bypass { reason, why }
    }
}

/// Messages that are not checked, by reason.
pub struct Meters([IntCounter; Reason::ALL.len()]);

impl Meters {
    pub fn new(component: &Component) -> Meters {
        let counter = |reason: Reason| {
            component.metrics.counter_with(
                &component.id,
                "output_uns_contract_bypassed",
                "Messages that are written without a check of their contract.",
                &[("reason", reason.name())],
            )
        };
        Meters(Reason::ALL.map(counter))
    }

    pub fn count(&self, reason: Reason) {
        let counters = self.0.iter().zip(Reason::ALL);
        if let Some((counter, _)) = counters.into_iter().find(|(_, other)| *other == reason) {
            counter.inc();
        }
    }
}
