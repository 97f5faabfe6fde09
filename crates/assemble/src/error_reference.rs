//! The errors of every interface, the codes of other texts and the reasons for which messages end, as the reference
//! shows them. Each crate declares its own; this is the one place that knows all of them.

use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_console::ListenerErrorKind;
use thalweg_delta::DeltaCode;
use thalweg_events_api::EventsApiErrorKind;
use thalweg_kit::error_facts::ErrorFacts;
use thalweg_lake::named_rows::BadRowReason;
use thalweg_lake::{ImportCode, LakeCode};
use thalweg_lake_api::LakeApiErrorKind;
use thalweg_otlp::OtlpErrorKind;
use thalweg_query::QueryErrorKind;
use thalweg_queue::{QueueErrorKind, RemovalReason};
use thalweg_queue_api::RequestErrorKind;
use thalweg_record::{DropReason, FilterReason};

/// An interface and its errors.
#[derive(Clone, Debug)]
pub struct ErrorFace {
    pub name: &'static str,
    /// Its paths, and where the code is in an answer.
    pub about: &'static str,
    /// In the order of their statuses.
    pub errors: Vec<ErrorEntry>,
}

/// A kind of error.
#[derive(Clone, Debug)]
pub struct ErrorEntry {
    pub facts: ErrorFacts,
    /// The name of its status in gRPC, for interfaces that speak it, too.
    pub grpc: Option<&'static str>,
}

/// Codes or reasons of one kind.
#[derive(Clone, Debug)]
pub struct MeaningTable {
    pub name: &'static str,
    /// Where they are seen.
    pub about: &'static str,
    /// Each with its meaning.
    pub rows: Vec<(&'static str, &'static str)>,
}

/// All interfaces that answer with codes.
pub fn error_faces() -> Vec<ErrorFace> {
    let of_queues = QueueErrorKind::ALL.iter().map(|kind| kind.facts());
    let of_queues = of_queues.chain(RequestErrorKind::ALL.iter().map(|kind| kind.facts()));
    let otlp = OtlpErrorKind::ALL.iter().map(|kind| ErrorEntry {
        facts: kind.facts(),
        grpc: Some(kind.grpc().name()),
    });
    vec![
        face(
            "Queues",
            "Paths below `/api/v1/queues`. An answer is `application/problem+json`; its member `code` is the code.",
            of_queues,
        ),
        face(
            "Events",
            "The paths `/rpc`, `/subscribe`, `/import` and `/api/v1/events/backup`. An answer is \
             `{\"error\": {\"code\", \"message\", \"details\"}}`. After an import has started to answer, the \
             status stays 200 and the last event carries the code in `error`.",
            EventsApiErrorKind::ALL.iter().map(|kind| kind.facts()),
        ),
        face(
            "SQL",
            "The path `/api/sql`. An answer is `{\"error\": {\"code\", \"message\"}}`. A query that fails after its \
             first rows breaks the connection.",
            QueryErrorKind::ALL.iter().map(|kind| kind.facts()),
        ),
        face(
            "Lake",
            "Paths below `/api/lake`. An answer is `{\"error\": {\"code\", \"message\"}}`.",
            LakeApiErrorKind::ALL.iter().map(|kind| kind.facts()),
        ),
        ErrorFace {
            name: "OpenTelemetry",
            about: "The paths `/v1/logs`, `/v1/metrics` and `/v1/traces`, and the services of gRPC. An answer is \
                    `google.rpc.Status`; the code begins its message, and is the reason of its detail `ErrorInfo`.",
            errors: sorted(otlp),
        },
        face(
            "Listener",
            "All paths, before the component of a path gets the request. The answer is the sentence alone, and \
             `application/problem+json` with the code where queues answer.",
            ListenerErrorKind::ALL.iter().map(|kind| kind.facts()),
        ),
    ]
}

/// All codes of texts that are no answer of an interface.
pub fn text_codes() -> MeaningTable {
    let of_storage = DeltaCode::ALL.iter().map(|code| (code.as_str(), code.meaning()));
    let of_tables = LakeCode::ALL.iter().map(|code| (code.as_str(), code.meaning()));
    let of_imports = ImportCode::ALL.iter().map(|code| (code.as_str(), code.meaning()));
    MeaningTable {
        name: "Codes in logs and command output",
        about: "The beginning of an error in the log of the process, in `/ready`, in the output of `thalweg lake`, and \
                in the metadata `thalweg_error` of a message that no table can have. The error of an interface may \
                contain such a text after its own code.",
        rows: of_storage.chain(of_tables).chain(of_imports).collect(),
    }
}

/// All reasons for which messages and records end otherwise than by being delivered.
pub fn reason_tables() -> Vec<MeaningTable> {
    let of_records = RejectionReason::ALL.into_iter().map(BadRowReason::Record);
    let of_rows = of_records.chain([BadRowReason::Line]);
    vec![
        MeaningTable {
            name: "Dropped messages of flows",
            about: "The label `reason` of `thalweg_flow_dropped_total`, and the metadata `thalweg_reason` of a message \
                    that goes to `dead_letter`.",
            rows: DropReason::ALL
                .iter()
                .map(|reason| (reason.as_str(), reason.meaning()))
                .collect(),
        },
        MeaningTable {
            name: "Filtered messages of flows",
            about: "The label `reason` of `thalweg_flow_filtered_total`. These messages were removed as intended.",
            rows: FilterReason::ALL
                .iter()
                .map(|reason| (reason.as_str(), reason.meaning()))
                .collect(),
        },
        MeaningTable {
            name: "Removed messages of queues",
            about: "The property `x-dlq-reason` of a dead letter, and the label `reason` of `mqtt_queue_dlq_total` and \
                    `mqtt_queue_dropped_total`.",
            rows: RemovalReason::ALL
                .iter()
                .map(|reason| (reason.name(), reason.meaning()))
                .collect(),
        },
        MeaningTable {
            name: "Rejected records of the lake",
            about: "The label `reason` of `thalweg_lake_rejected_records_total`, the message of an OTLP answer, and \
                    the report of `lake ingest`.",
            rows: of_rows.map(|reason| (reason.name(), reason.meaning())).collect(),
        },
    ]
}

fn face(name: &'static str, about: &'static str, errors: impl Iterator<Item = ErrorFacts>) -> ErrorFace {
    ErrorFace {
        name,
        about,
        errors: sorted(errors.map(|facts| ErrorEntry { facts, grpc: None })),
    }
}

/// By status; errors of one status keep their order.
fn sorted(errors: impl Iterator<Item = ErrorEntry>) -> Vec<ErrorEntry> {
    let mut errors: Vec<ErrorEntry> = errors.collect();
    errors.sort_by_key(|error| error.facts.status);
    errors
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn is_one_sentence(text: &str) -> bool {
        text.ends_with('.') && !text.contains(". ") && !text.contains(['\n', '|']) && text.len() < 120
    }

    fn meaning_tables() -> impl Iterator<Item = MeaningTable> {
        std::iter::once(text_codes()).chain(reason_tables())
    }

    #[test]
    fn every_error_and_every_reason_has_a_meaning_in_one_sentence() {
        for face in error_faces() {
            for ErrorEntry { facts, .. } in &face.errors {
                assert!(
                    is_one_sentence(facts.meaning),
                    "{} {}: {}",
                    face.name,
                    facts.code,
                    facts.meaning
                );
            }
        }
        for table in meaning_tables() {
            for (name, meaning) in &table.rows {
                assert!(is_one_sentence(meaning), "{} {name}: {meaning}", table.name);
            }
        }
    }

    #[test]
    fn an_interface_has_no_two_errors_of_one_code_and_one_status() {
        for face in error_faces() {
            let mut known = BTreeSet::new();
            for ErrorEntry { facts, .. } in &face.errors {
                assert!(known.insert((facts.code, facts.status)), "{} {}", face.name, facts.code);
                let is_status = facts.status == 200 || (400..600).contains(&facts.status);
                assert!(is_status, "{} {}: {}", face.name, facts.code, facts.status);
            }
        }
        for table in meaning_tables() {
            let known: BTreeSet<&str> = table.rows.iter().map(|(name, _)| *name).collect();
            assert_eq!(known.len(), table.rows.len(), "{}", table.name);
        }
    }
}
