//! End to end: the real binary, its real protocols, real servers at the other end. One test binary for all.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod bad_input;
mod buffer;
mod command_line;
mod console;
mod demo;
mod disk;
mod events;
mod events_access;
mod events_additions;
mod events_backup;
mod events_docs;
mod events_feeds;
mod events_import;
mod events_kill;
mod events_limits;
mod events_push;
mod events_server;
mod events_shell;
mod events_start;
mod events_wire;
mod flows;
mod lake;
mod log;
mod log_tools;
mod opcua;
mod otlp;
mod otlp_senders;
mod queue_api;
mod queue_errors;
mod queues;
mod restart;
mod rollups;
mod signals;
mod sketches;
mod values;
