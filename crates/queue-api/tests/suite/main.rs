//! The routes of queues over a real log, called by a real client. One test binary, because each one costs a link.

#![allow(clippy::unwrap_used)]

mod events;
mod http;
mod long;
mod receipts;
mod rules;
mod support;
