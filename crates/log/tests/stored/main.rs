//! What a log finds on a disk, through its public face.

#![allow(clippy::unwrap_used)]

mod damage;
mod rolls;
#[path = "../support/mod.rs"]
mod support;
