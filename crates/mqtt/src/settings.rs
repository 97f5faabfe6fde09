//! What an operator sets for the broker.

use std::time::Duration;

use thalweg_log::Durability;
use thalweg_mqtt_store::groups::SharedStrategy;
use thalweg_mqtt_wire::QoS;

/// Settings of the broker, apart from its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct MqttSettings {
    /// A CONNECT without user name is accepted, with the roles `read` and `write`.
    pub anonymous: bool,
    /// Who may publish and subscribe. `None`: the roles of the logins decide; an empty list allows nothing.
    pub acl: Option<Vec<AclRule>>,
    /// A session belongs to the user that created it.
    pub client_id_binding: bool,
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
    /// Outgoing topic aliases of a connection, at most the client's.
    pub topic_alias_max_out: u16,
    pub max_topic_levels: usize,
    pub max_qos: QoS,
    pub retain_available: bool,
    pub strict_utf8: bool,
    pub check_payload_format: bool,
    /// What becomes of a publish of a 3.1 or 3.1.1 client that it may not make.
    pub v3_denied_publish: DeniedV3Publish,
    /// Seconds. Larger requests are capped; `u32::MAX` allows sessions that never expire.
    pub max_session_expiry: u32,
    /// Seconds, of 3.1 and 3.1.1 sessions with clean session 0.
    pub v3_session_expiry: u32,
    /// Messages that wait for one session.
    pub max_queued: usize,
    /// Which message is dropped when a session has as many as it may have.
    pub overflow: SessionOverflow,
    /// Outgoing QoS 1 and 2 messages of a connection that are not acknowledged.
    pub max_inflight: u16,
    /// Bytes per connection, for sessions that end with it.
    pub memory_queue: usize,
    /// Bytes that wait for a socket.
    pub send_buffer: usize,
    /// Bytes of the messages that are stored for sessions, all together.
    pub store_bytes: u64,
    /// The most retained messages, and the bytes of all of them.
    pub retained_messages: usize,
    pub retained_bytes: u64,
    pub durability: Durability,
    /// How long acknowledgements of subscribers may wait for their record.
    pub ack_flush: Duration,
    /// Which member of a shared subscription gets a message.
    pub shared_strategy: SharedStrategy,
    /// Filters per session.
    pub subscriptions: usize,
    /// Clients that are connected at a time, of all listeners together.
    pub connections: usize,
    /// Connections without a complete CONNECT, of all listeners together. At the limit the oldest is closed.
    pub connecting: usize,
    /// Connections from one source address.
    pub connect_rate: Option<RateLimit>,
    /// Publishes of one client. Beyond it the client is not read, and after 10 s it is disconnected.
    pub publish_rate: Option<RateLimit>,
    /// Packets with subscriptions of one client, likewise.
    pub subscribe_rate: Option<RateLimit>,
    /// Another broker, which clients of 5.0 are told to use when this one stops.
    pub server_reference: Option<String>,
    /// Sent to clients of 5.0 that ask for it, with their user name in place of `%u` and their client id in place of `%c`.
    pub response_information: Option<String>,
    /// How often `$SYS` is published. Zero: never.
    pub sys_interval: Duration,
    /// Bytes of connections, filters and interest lists. At the limit new connections and subscriptions are refused.
    pub memory: usize,
}

/// A rule about who may do what. The first rule that matches decides; where none does, the answer is no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclRule {
    pub who: AclSubject,
    pub is_allowed: bool,
    pub action: AclAction,
    /// Filters of topics. `%u` is the user's name, `%c` the client id.
    pub topics: Vec<String>,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AclSubject {
    User(String),
    Role(String),
    /// By client id.
    Client(String),
    /// Clients without a user name.
    Anonymous,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclAction {
    Publish,
    Subscribe,
    All,
}

impl AclAction {
    /// All actions by their names in the configuration.
    pub const ALL: [(&str, AclAction); 3] = [
        ("publish", AclAction::Publish),
        ("subscribe", AclAction::Subscribe),
        ("all", AclAction::All),
    ];
}

/// What becomes of a publish of a 3.1 or 3.1.1 client that it may not make. These versions have no code for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeniedV3Publish {
    /// It is acknowledged and dropped.
    #[default]
    Acknowledge,
    /// The connection is closed.
    Close,
}

/// Which message is dropped when too many wait for a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionOverflow {
    #[default]
    DropOldest,
    DropNewest,
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
            anonymous: false,
            acl: None,
            client_id_binding: true,
            connect_timeout: Duration::from_secs(10),
            max_keep_alive: 0,
            max_packet_size: 1 << 20,
            receive_maximum: 1024,
            topic_alias_max: 64,
            topic_alias_max_out: 64,
            max_topic_levels: 128,
            max_qos: QoS::ExactlyOnce,
            retain_available: true,
            strict_utf8: false,
            check_payload_format: false,
            v3_denied_publish: DeniedV3Publish::Acknowledge,
            max_session_expiry: 720 * 3600,
            v3_session_expiry: 168 * 3600,
            max_queued: 100_000,
            overflow: SessionOverflow::DropOldest,
            max_inflight: 256,
            memory_queue: 1 << 20,
            send_buffer: 1 << 20,
            store_bytes: 10 << 30,
            retained_messages: 1_000_000,
            retained_bytes: 1 << 30,
            durability: Durability::Fsync,
            ack_flush: Duration::from_millis(200),
            shared_strategy: SharedStrategy::RoundRobin,
            subscriptions: 10_000,
            connections: 100_000,
            connecting: 1000,
            connect_rate: None,
            publish_rate: None,
            subscribe_rate: None,
            server_reference: None,
            response_information: None,
            sys_interval: Duration::from_secs(10),
            memory: 1 << 30,
        }
    }
}
