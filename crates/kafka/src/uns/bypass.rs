//! Why a message is not checked by its contract: it says so in its headers, a counter counts it, and the log tells when checking begins
//! and ends.

use thalweg_flow::Component;
use thalweg_record::Text;
use thalweg_telemetry::IntCounter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassReason {
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

impl BypassReason {
    const ALL: [BypassReason; 8] = [
        BypassReason::NoVersion,
        BypassReason::Tombstone,
        BypassReason::NoSubject,
        BypassReason::OtherType,
        BypassReason::UnsupportedSchema,
        BypassReason::RegistryRefuses,
        BypassReason::RegistrySilent,
        BypassReason::RegistrySlow,
    ];

    /// As metrics call it.
    fn name(self) -> &'static str {
        match self {
            BypassReason::NoVersion => "no_version",
            BypassReason::Tombstone => "tombstone",
            BypassReason::NoSubject => "no_subject",
            BypassReason::OtherType => "other_schema_type",
            BypassReason::UnsupportedSchema => "unsupported_schema",
            BypassReason::RegistryRefuses => "registry_refuses",
            BypassReason::RegistrySilent => "registry_silent",
            BypassReason::RegistrySlow => "registry_slow",
        }
    }

    /// Whether the registry may have a schema, and cannot be asked for it now.
    pub fn is_registry_failure(self) -> bool {
        matches!(
            self,
            BypassReason::RegistryRefuses | BypassReason::RegistrySilent | BypassReason::RegistrySlow
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    pub reason: BypassReason,
    /// As headers and the log say it.
    pub why: Text,
}

impl Bypass {
    pub fn new(reason: BypassReason, why: impl Into<Text>) -> Bypass {
        let why = why.into();
        Bypass { reason, why }
    }
}

/// Messages that are not checked, by reason.
pub struct BypassMetrics([IntCounter; BypassReason::ALL.len()]);

impl BypassMetrics {
    pub fn new(component: &Component) -> BypassMetrics {
        let counter = |reason: BypassReason| {
            component.metrics.counter_with(
                &component.id,
                "output_uns_contract_bypassed",
                "Messages that are written without a check of their contract.",
                &[("reason", reason.name())],
            )
        };
        BypassMetrics(BypassReason::ALL.map(counter))
    }

    pub fn count(&self, reason: BypassReason) {
        let counters = self.0.iter().zip(BypassReason::ALL);
        if let Some((counter, _)) = counters.into_iter().find(|(_, other)| *other == reason) {
            counter.inc();
        }
    }
}
