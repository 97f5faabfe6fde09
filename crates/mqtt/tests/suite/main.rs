//! The broker over a real log and real sockets, spoken to in bytes. One test binary, because each one costs a link.

#![allow(clippy::unwrap_used)]

mod access;
mod crash;
mod exactly_once;
mod full_disk;
mod limits;
mod listeners;
mod packets;
mod retained;
mod sessions;
mod shared;
mod storm;
mod support;
mod wills;
