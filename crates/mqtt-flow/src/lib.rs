//! MQTT as an end of flows: the input `mqtt` subscribes to topics of any broker, the output `mqtt` publishes to one.
//!
//! The client is two pure state machines, [`incoming`] and [`outgoing`], one for each direction, and what drives them: [`dial`]
//! makes connections, [`link`] carries packets over them, [`input_session`] and [`publisher`] work with them.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod broker_url;
mod dial;
mod feed;
mod incoming;
mod input;
mod input_session;
mod link;
mod metadata;
mod options;
mod outgoing;
mod output;
mod publisher;
mod websocket;

use thalweg_flow::ComponentRegistry;

/// Registers the components.
pub fn register(registry: &mut ComponentRegistry) {
    registry.input("mqtt", include_str!("../reference/input-mqtt.txt"), input::parse);
    registry.output("mqtt", include_str!("../reference/output-mqtt.txt"), output::parse);
}

/// Reads bytes as the WebSocket frames of a server.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    websocket::fuzz(data);
}
