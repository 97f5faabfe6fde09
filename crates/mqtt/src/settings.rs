//! What an operator sets for the broker.

use std::time::Duration;

use thalweg_log::Durability;
use thalweg_mqtt_wire::QoS;

/// Settings of the broker, apart from its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct MqttSettings {
    /// From accept to a complete CONNECT, TLS and WebSocket handshake included.
    pub connect_timeout: Duration,
    /// Seconds. Longer ones, and 0, are replaced by it in 5.0. 0: no cap.
    pub max_keep_alive: u16,
    /// Bytes of a whole incoming packet.
    pub max_packet_size: usize,
    /// Unacknowledged QoS 1 and 2 publishes of a client.
    pub receive_maximum: u16,
    /// Incoming topic aliases of a connection.
    pub topic_alias_max: u16,
    pub max_topic_levels: usize,
    pub max_qos: QoS,
    pub retain_available: bool,
    pub strict_utf8: bool,
    pub check_payload_format: bool,
    /// Seconds. Larger requests are capped; `u32::MAX` allows sessions that never expire.
    pub max_session_expiry: u32,
    /// Seconds, of 3.1 and 3.1.1 sessions with clean session 0.
    pub v3_session_expiry: u32,
    /// Outgoing QoS 1 and 2 messages of a connection that are not acknowledged.
    pub max_inflight: u16,
    /// Bytes per connection, for sessions that end with it.
    pub memory_queue: usize,
    /// Bytes that wait for a socket.
    pub send_buffer: usize,
    /// The most retained messages, and the bytes of all of them.
    pub retained_messages: usize,
    pub retained_bytes: u64,
    pub durability: Durability,
    /// How long acknowledgements of subscribers may wait for their record.
    pub ack_flush: Duration,
    /// Filters per session.
    pub subscriptions: usize,
    /// Clients that are connected at a time, of all listeners together.
    pub connections: usize,
    /// Connections without a complete CONNECT, of all listeners together. At the limit the oldest is closed.
    pub connecting: usize,
    /// Connections from one source address.
    pub connect_rate: Option<RateLimit>,
    /// Another broker, which clients of 5.0 are told to use when this one stops.
    pub server_reference: Option<String>,
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    pub per_second: f64,
    /// How many may come at once.
    pub burst: u32,
}

impl Default for MqttSettings {
    fn default() -> MqttSettings {
        MqttSettings {
            connect_timeout: Duration::from_secs(10),
            max_keep_alive: 0,
            max_packet_size: 1 << 20,
            receive_maximum: 1024,
            topic_alias_max: 64,
            max_topic_levels: 128,
            max_qos: QoS::ExactlyOnce,
            retain_available: true,
            strict_utf8: false,
            check_payload_format: false,
            max_session_expiry: 720 * 3600,
            v3_session_expiry: 168 * 3600,
            max_inflight: 256,
            memory_queue: 1 << 20,
            send_buffer: 1 << 20,
            retained_messages: 1_000_000,
            retained_bytes: 1 << 30,
            durability: Durability::Fsync,
            ack_flush: Duration::from_millis(200),
            subscriptions: 10_000,
            connections: 100_000,
            connecting: 1000,
            connect_rate: None,
            server_reference: None,
        }
    }
}
