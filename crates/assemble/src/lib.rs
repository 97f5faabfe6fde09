//! Turns a configuration into a running process, and stops it cleanly: the only crate that depends on all others.
//!
//! [`CheckedConfig`] reads a file and finds every mistake without starting anything. [`Process`] locks the data folder,
//! starts flows, tables and the HTTP listener in order, and stops them in reverse.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(test)]
mod absent_tests;
mod checked_config;
mod clock;
mod command_settings;
mod components;
mod data_dir;
#[cfg(test)]
mod documented_limits;
mod error_reference;
mod events;
#[cfg(test)]
mod field_names_tests;
mod ingest;
mod lake;
mod lake_site;
mod log;
mod log_memory;
mod memory_shares;
mod metrics;
mod mqtt;
mod open_files;
mod process;
mod queues;
mod reference;
mod reload;
mod settings;
mod sql;

pub use checked_config::CheckedConfig;
pub use command_settings::{default_maintenance_options, default_query_options};
pub use components::Components;
pub use data_dir::{DataDir, Holder};
pub use error_reference::{ErrorEntry, ErrorFace, MeaningTable, error_faces, reason_tables, text_codes};
pub use events::{EventsServer, EventsServerOptions, EventsStorage, GeneratedToken, restore_events, verify_events};
pub use lake_site::noted_lake;
pub use log::exit_code;
pub use metrics::{METRIC_SECTIONS, MetricSection};
pub use process::{Process, ReloadReport, ShutdownReport};
pub use reference::{ReferenceEntry, ReferenceField, ReferenceKind, reference};
pub use thalweg_http::tls_server::{TlsFiles, TlsNames};
