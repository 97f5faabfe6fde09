//! Why a message is not checked by its contract: its headers say so, a counter counts it, and the log reports when
//! checking starts and stops.

use thalweg_flow::Component;
use thalweg_record::Text;
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, metric_group};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassReason {
    /// The contract has no version.
    NoVersion,
    /// The message has no payload: it deletes its key.
    Tombstone,
    /// The registry has no schema for the contract.
    NoSubject,
    /// The registry has a schema of a type other than JSON.
    OtherType,
    /// The registry's JSON schema is invalid, or has unsupported parts.
    UnsupportedSchema,
    /// The registry returns an error, or an invalid response.
    RegistryRefuses,
    /// The registry does not respond.
    RegistrySilent,
    /// The registry has not responded yet.
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

    /// The label value in metrics.
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

    /// Whether the registry may have a schema but cannot be queried now.
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
    /// The text for headers and the log.
    pub why: Text,
}

impl Bypass {
    pub fn new(reason: BypassReason, why: impl Into<Text>) -> Bypass {
        let why = why.into();
        Bypass { reason, why }
    }
}

metric_group! {
    pub OUTPUT_UNS_METRICS("Output `uns`", COMPONENT_LABELS) {
        CONTRACT_BYPASSED = MetricDoc::counter(
            "thalweg_uns_output_contract_bypassed_total",
            "Messages that are written without a check of their contract.",
        )
        .with_labels(&["reason"]);
    }
}

/// Unchecked messages, by reason.
pub struct BypassMetrics([IntCounter; BypassReason::ALL.len()]);

impl BypassMetrics {
    pub fn new(component: &Component) -> BypassMetrics {
        let counter = |reason: BypassReason| {
            component
                .metrics
                .counter_with(&component.id, &CONTRACT_BYPASSED, &[("reason", reason.name())])
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
