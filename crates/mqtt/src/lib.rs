//! An MQTT broker on the durable log. What is acknowledged is stored; what is stored is delivered, however slow or absent its
//! receiver is.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod access;
mod action;
mod broker;
mod client;
mod counters;
mod interest;
mod journal;
mod limits;
mod listener;
pub mod load;
mod maintenance;
pub mod metrics;
mod outbox;
pub mod partitions;
mod retained;
mod routing;
mod server;
mod session;
mod settings;
mod shared;
mod timers;

pub use broker::{Broker, BrokerEnvironment, OpenBrokerError, WallClock};
pub use listener::{
    CertificateIdentity, ClientAuth, ListenerKind, MqttListenerSettings, fuzz_proxy_header, fuzz_websocket, serve_tcp,
};
pub use server::{MqttBindError, MqttServer};
pub use session::DropReason;
pub use settings::{AclAction, AclRule, AclSubject, DeniedV3Publish, MqttSettings, RateLimit, SessionOverflow};
pub use thalweg_mqtt_store::groups::SharedStrategy;
