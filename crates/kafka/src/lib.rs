//! Kafka as an end of flows: `kafka` reads and writes any topics, `uns` the topic of the unified namespace.
//!
//! A consumer commits only what the flow has confirmed ([`consume`]); a producer keeps the order of each key through
//! its own retries ([`produce`]). The connection state comes from probing the brokers ([`link`]).
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

/// Registers the components.
pub fn register(registry: &mut ComponentRegistry) {
    for name in ["kafka", "kafka_franz"] {
        registry.input(name, input::parse);
        registry.output(name, output::parse);
    }
    registry.input("uns", uns::input::parse);
    registry.output("uns", uns::output::parse);
}
