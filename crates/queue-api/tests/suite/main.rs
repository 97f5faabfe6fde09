//! The routes of queues over a real log, asked by a real client. One program, because each one costs a link.

#![allow(clippy::unwrap_used)]

mod events;
mod http;
mod long;
mod receipts;
mod rules;
mod support;
