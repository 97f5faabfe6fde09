//! Kafka as an end of flows: `kafka` reads and writes topics of any kind, `uns` the one topic of the unified namespace.
//!
//! A consumer commits what the flow has confirmed and nothing else ([`consume`]); a producer keeps the order of each key through
//! its own retries ([`produce`]). Whether a broker answers is asked and not guessed ([`link`]).
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod cluster;
mod consume;
mod headers;
mod input;
mod link;
mod output;
mod produce;
mod uns;

use thalweg_flow::ComponentRegistry;

/// Names the components.
pub fn register(registry: &mut ComponentRegistry) {
    for name in ["kafka", "kafka_franz"] {
        registry.input(name, input::parse);
        registry.output(name, output::parse);
    }
    registry.input("uns", uns::input::parse);
    registry.output("uns", uns::output::parse);
}
