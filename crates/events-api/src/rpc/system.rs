//! `sys.*`: about the server.

use std::sync::atomic::Ordering;

use thalweg_events::Health;

use super::{Answer, Call};
use crate::problem::Result;
use crate::write::text;

pub(super) fn version(call: Call<'_>) -> Result<Answer> {
    let mut out = String::new();
    text(&mut out, &call.server.options.version);
    Ok(Answer::Text(out))
}

pub(super) fn health(call: Call<'_>) -> Result<Answer> {
    let store = &call.server.store;
    let status = match store.health() {
        Health::Healthy => "ok",
        Health::ReadOnly(_) => "degraded",
    };
    let connections = call.server.connections.load(Ordering::Relaxed);
    let (backend, durability) = (store.backend(), store.durability());
    Ok(Answer::Text(format!(
        "{{\"backend\":\"{backend}\",\"connections\":{connections},\"status\":\"{status}\",\"durability\":\"{durability}\"}}"
    )))
}
