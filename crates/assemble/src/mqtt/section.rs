//! The section `mqtt`: reads all keys and their ranges into the settings of the broker and of its listeners. A key that the broker
//! does not honour yet is an error, never silently without effect.

use std::ops::RangeInclusive;
use std::time::Duration;

use thalweg_config::{Config, Diagnostics, Fields, Node, Pos, kind};
use thalweg_log::Durability;
use thalweg_mqtt::{
    AclAction, AclRule, AclSubject, DeniedV3Publish, MqttSettings, RateLimit, SessionOverflow, SharedStrategy,
};
use thalweg_mqtt_wire::QoS;
use thalweg_mqtt_wire::topic::is_filter;

use super::listeners::{MqttListenerSection, read_listeners};

/// Keys that the broker does not honour yet, by their paths below `mqtt`; with a value behind a colon, only that value.
pub(super) const NOT_YET: &[&str] = &[
    "limits.publish_rate",
    "limits.subscribe_rate",
    "memory",
    "sys_interval",
    "topic_alias_max_out",
];

/// Below this, matching and connections have no room.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Seconds of the longest session that ends.
const EXPIRY_MAX: u64 = u32::MAX as u64 - 1;
/// Texts of a packet have 65,535 bytes at most.
const TEXT_BYTES_MAX: usize = 65_535;

/// The broker and its listeners, if the section is given.
#[derive(Clone, Debug)]
pub(crate) struct MqttSection {
    pub broker: MqttSettings,
    pub listeners: Vec<MqttListenerSection>,
    /// `None`: that of the log.
    pub durability: Option<Durability>,
    /// Listeners that other hosts reach may lack TLS or a login.
    pub is_insecure: bool,
    /// `memory`, if given; the value in the settings is set when the memory is divided.
    pub memory: Option<(u64, Pos)>,
    /// The section itself.
    pub pos: Pos,
    /// Whether every client must show a login of `auth`.
    pub needs_login: bool,
    has_connections: bool,
}

impl MqttSection {
    /// The key of the most connections, if the file has it. The default is more than many machines allow, and no reason for a
    /// warning.
    pub fn connections_key(&self) -> Option<&'static str> {
        self.has_connections.then_some("mqtt.limits.connections")
    }
}

/// Reads the section; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> Option<MqttSection> {
    let node = config.mqtt.as_ref()?;
    let mut fields = Fields::new(node, diagnostics);
    let listeners = read_listeners(&mut fields);
    let anonymous = fields.bool("anonymous", false);
    let is_insecure = fields.bool("insecure", false);
    let durability = fields.opt_one_of("durability", &["fsync", "interval", "os"]);
    let memory = fields.opt_size("memory").map(|bytes| (bytes, fields.pos_of("memory")));
    let broker = MqttSettings {
        anonymous,
        acl: read_acl(&mut fields),
        client_id_binding: fields.bool("client_id_binding", true),
        ..MqttSettings::default()
    };
    let broker = read_packets(&mut fields, broker);
    let broker = read_sessions(&mut fields, broker);
    let broker = read_stores(&mut fields, broker);
    let broker = read_limits(&mut fields, broker);
    fields.finish();
    refuse_not_yet(node, "", diagnostics);
    let has_logins = config.auth.is_given() || config.http.basic_auth.is_some();
    Some(MqttSection {
        broker,
        listeners,
        durability: durability.map(durability_of),
        is_insecure,
        memory,
        pos: node.pos(),
        needs_login: has_logins && !anonymous,
        has_connections: node
            .get("limits")
            .and_then(|limits| limits.get("connections"))
            .is_some(),
    })
}

fn durability_of(word: &str) -> Durability {
    match word {
        "interval" => Durability::Interval,
        "os" => Durability::Os,
        _ => Durability::Fsync,
    }
}

/// Connecting, and what packets may have.
fn read_packets(fields: &mut Fields<'_>, broker: MqttSettings) -> MqttSettings {
    let time = Duration::from_millis(100)..=Duration::from_secs(3600);
    let connect_timeout = duration_in(fields, "connect_timeout", "10s", ("100ms to 1h", time));
    let no_cap = "0s to 65535s in whole seconds";
    let keep_alive = duration_in(
        fields,
        "max_keep_alive",
        "0s",
        (no_cap, Duration::ZERO..=Duration::from_secs(65_535)),
    );
    if keep_alive.subsec_nanos() != 0 {
        fields.error("max_keep_alive", format!("expected {no_cap}"));
    }
    let packet = ("16KiB to 24MiB", 16 * KIB..=24 * MIB);
    let max_packet_size = count(size_in(fields, "max_packet_size", "1MiB", packet));
    let send = ("16KiB to 1GiB", 16 * KIB..=GIB);
    let qos = fields.int_in("max_qos", 2, 0..=2);
    MqttSettings {
        connect_timeout,
        max_keep_alive: u16::try_from(keep_alive.as_secs()).unwrap_or(u16::MAX),
        max_packet_size,
        receive_maximum: number(fields.int_in("receive_maximum", 1024, 1..=65_535)),
        topic_alias_max: number(fields.int_in("topic_alias_max", 64, 0..=65_535)),
        topic_alias_max_out: number(fields.int_in("topic_alias_max_out", 64, 0..=65_535)),
        max_topic_levels: count(fields.int_in("max_topic_levels", 128, 1..=1024).unsigned_abs()),
        max_qos: u8::try_from(qos).ok().and_then(QoS::of).unwrap_or(QoS::ExactlyOnce),
        retain_available: fields.bool("retain_available", true),
        strict_utf8: fields.bool("strict_utf8", false),
        check_payload_format: fields.bool("check_payload_format", false),
        v3_denied_publish: match fields.one_of("v3_denied_publish", &["ack", "close"], "ack") {
            "close" => DeniedV3Publish::Close,
            _ => DeniedV3Publish::Acknowledge,
        },
        send_buffer: count(size_in(fields, "send_buffer", "1MiB", send)),
        server_reference: short_text(fields, "server_reference"),
        response_information: short_text(fields, "response_information"),
        ..broker
    }
}

fn read_sessions(fields: &mut Fields<'_>, broker: MqttSettings) -> MqttSettings {
    let max_session_expiry = session_expiry(fields);
    let most = ("0s to 49710d", Duration::ZERO..=Duration::from_secs(EXPIRY_MAX));
    let v3_session_expiry = duration_in(fields, "v3_session_expiry", "168h", most);
    let strategies = SharedStrategy::ALL.map(|(name, _)| name);
    let strategy = fields.one_of("shared_strategy", &strategies, "round-robin");
    let mut session = fields.fields("session");
    let queue = ("0B to 1GiB", 0..=GIB);
    let broker = MqttSettings {
        max_session_expiry,
        v3_session_expiry: u32::try_from(v3_session_expiry.as_secs()).unwrap_or(u32::MAX - 1),
        shared_strategy: chosen(&SharedStrategy::ALL, strategy).unwrap_or_default(),
        max_queued: count(session.int_in("max_queued", 100_000, 1..=10_000_000).unsigned_abs()),
        overflow: match session.one_of("overflow", &["drop-oldest", "drop-newest"], "drop-oldest") {
            "drop-newest" => SessionOverflow::DropNewest,
            _ => SessionOverflow::DropOldest,
        },
        max_inflight: number(session.int_in("max_inflight", 256, 1..=65_535)),
        memory_queue: count(size_in(&mut session, "memory_queue", "1MiB", queue)),
        ..broker
    };
    session.finish();
    broker
}

/// `never`, or a duration below 2^32 - 1 seconds, which is the code for never.
fn session_expiry(fields: &mut Fields<'_>) -> u32 {
    const DEFAULT: u32 = 720 * 3600;
    let Some(node) = fields.node_or("max_session_expiry", kind::DURATION, "720h") else {
        return DEFAULT;
    };
    if node.scalar_text() == Some("never") {
        return u32::MAX;
    }
    let seconds = match node.expect_duration() {
        Ok(duration) => duration.as_secs(),
        Err(message) => {
            fields.diags().error(&node, format!("{message}, or never"));
            return DEFAULT;
        }
    };
    if seconds > EXPIRY_MAX {
        fields.error("max_session_expiry", "expected 0s to 49710d, or never");
    }
    u32::try_from(seconds).unwrap_or(DEFAULT)
}

fn read_stores(fields: &mut Fields<'_>, broker: MqttSettings) -> MqttSettings {
    let mut store = fields.fields("store");
    let store_bytes = size_in(&mut store, "max_bytes", "10GiB", ("at least 1MiB", MIB..=u64::MAX));
    let flush = ("0s to 10s", Duration::ZERO..=Duration::from_secs(10));
    let ack_flush = duration_in(&mut store, "ack_flush", "200ms", flush);
    store.finish();
    let mut retained = fields.fields("retained");
    let retained_messages = count(
        retained
            .int_in("max_messages", 1_000_000, 0..=1_000_000_000)
            .unsigned_abs(),
    );
    let retained_bytes = retained.size("max_bytes", "1GiB");
    retained.finish();
    let sys_interval = fields.duration("sys_interval", "10s");
    if !sys_interval.is_zero() && sys_interval < Duration::from_secs(1) {
        fields.error("sys_interval", "expected at least 1s, or 0s for no $SYS");
    }
    MqttSettings {
        store_bytes,
        ack_flush,
        retained_messages,
        retained_bytes,
        sys_interval,
        ..broker
    }
}

fn read_limits(fields: &mut Fields<'_>, broker: MqttSettings) -> MqttSettings {
    let mut limits = fields.fields("limits");
    let mut most = |name, default| count(limits.int_in(name, default, 1..=10_000_000).unsigned_abs());
    let connections = most("connections", 100_000);
    let connecting = most("connecting", 1000);
    let subscriptions = most("subscriptions", 10_000);
    let broker = MqttSettings {
        connections,
        connecting,
        subscriptions,
        connect_rate: rate(&mut limits, "connect_rate"),
        publish_rate: rate(&mut limits, "publish_rate"),
        subscribe_rate: rate(&mut limits, "subscribe_rate"),
        ..broker
    };
    limits.finish();
    broker
}

const RATE_MAX: f64 = 10_000_000.0;

/// `{per_second, burst}`, or `off`. Without `burst`, what comes in a second may come at once.
fn rate(fields: &mut Fields<'_>, name: &str) -> Option<RateLimit> {
    let given = fields.mapping().get(name).and_then(Node::scalar_text);
    if given == Some("off") {
        fields.node(name, kind::MAPPING);
        return None;
    }
    let mut rate = fields.opt_fields(name)?;
    let per_second = rate.required_float("per_second");
    if rate.has("per_second") && !(per_second > 0.0 && per_second <= RATE_MAX) {
        rate.error("per_second", "expected a number above 0, and at most 10000000");
    }
    let burst = rate.opt_int_in("burst", 1..=10_000_000);
    rate.finish();
    let usual = per_second.clamp(1.0, RATE_MAX).ceil() as i64;
    Some(RateLimit {
        per_second,
        burst: u32::try_from(burst.unwrap_or(usual)).unwrap_or(u32::MAX),
    })
}

fn read_acl(fields: &mut Fields<'_>) -> Option<Vec<AclRule>> {
    let is_given = fields.has("acl");
    let diags = fields.diags();
    let rules = fields.list("acl");
    let rules = rules.iter().filter_map(|rule| read_rule(rule, diags)).collect();
    is_given.then_some(rules)
}

/// `{user | role | client | anonymous, allow | deny, topics}`.
fn read_rule(node: &Node, diags: &Diagnostics) -> Option<AclRule> {
    let mut fields = Fields::new(node, diags);
    let mut subjects = Vec::new();
    subjects.extend(fields.opt_string("user").map(AclSubject::User));
    subjects.extend(fields.opt_string("role").map(AclSubject::Role));
    subjects.extend(fields.opt_string("client").map(AclSubject::Client));
    if let Some(anonymous) = fields.opt_bool("anonymous") {
        if !anonymous {
            fields.error(
                "anonymous",
                "expected true; a rule without it is not about anonymous clients",
            );
        }
        subjects.push(AclSubject::Anonymous);
    }
    let actions = AclAction::ALL.map(|(name, _)| name);
    let allow = fields.opt_one_of("allow", &actions);
    let deny = fields.opt_one_of("deny", &actions);
    let topics = fields.string_list("topics");
    let has_topics = fields.has("topics");
    for topic in topics.iter().filter(|topic| !is_filter(topic)) {
        let text = "is no filter of topics; + and # fill a level, and # is the last one";
        fields.error("topics", format!("{topic:?} {text}"));
    }
    let has_effect = fields.has("allow") != fields.has("deny");
    fields.finish();
    if diags.is_describing() {
        return None;
    }
    let problem = if subjects.len() != 1 {
        "a rule is about one of user, role, client and anonymous; name exactly one"
    } else if !has_effect {
        "a rule has either allow or deny, with publish, subscribe or all"
    } else if !has_topics {
        "a rule needs topics, for example topics: [\"plant/%u/#\"]"
    } else {
        let action = chosen(&AclAction::ALL, allow.or(deny)?)?;
        return Some(AclRule {
            who: subjects.pop()?,
            is_allowed: allow.is_some(),
            action,
            topics,
        });
    };
    diags.error(node, problem);
    None
}

/// Reports what is given and not honoured yet.
fn refuse_not_yet(node: &Node, path: &str, diagnostics: &Diagnostics) {
    if let Some(items) = node.as_seq() {
        items
            .iter()
            .for_each(|item| refuse_not_yet(item, &format!("{path}[]"), diagnostics));
    }
    let Some(mapping) = node.as_map().filter(|_| !diagnostics.is_describing()) else {
        return;
    };
    for (key, value) in mapping.iter() {
        let path = match path {
            "" => key.as_str().to_owned(),
            path => format!("{path}.{}", key.as_str()),
        };
        let with_value = value.scalar_text().map(|text| format!("{path}: {text}"));
        let is_not_yet = |entry: &&str| **entry == path || with_value.as_deref() == Some(*entry);
        match NOT_YET.iter().find(|entry| is_not_yet(entry)) {
            Some(entry) => diagnostics.error(value, format!("{entry} is not available yet; remove it")),
            None => refuse_not_yet(value, &path, diagnostics),
        }
    }
}

/// A text that fits into a property; empty counts as none.
fn short_text(fields: &mut Fields<'_>, name: &str) -> Option<String> {
    let text = fields.opt_string(name).filter(|text| !text.is_empty())?;
    if text.len() > TEXT_BYTES_MAX || text.contains('\0') {
        fields.error(name, "expected at most 65535 bytes without U+0000");
    }
    Some(text)
}

fn duration_in(
    fields: &mut Fields<'_>,
    name: &str,
    default: &str,
    (words, range): (&str, RangeInclusive<Duration>),
) -> Duration {
    let duration = fields.duration(name, default);
    if !range.contains(&duration) {
        fields.error(name, format!("expected {words}"));
    }
    duration
}

fn size_in(fields: &mut Fields<'_>, name: &str, default: &str, (words, range): (&str, RangeInclusive<u64>)) -> u64 {
    let size = fields.size(name, default);
    if !range.contains(&size) {
        fields.error(name, format!("expected {words}"));
    }
    size
}

fn chosen<T: Copy>(all: &[(&str, T)], name: &str) -> Option<T> {
    all.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn number(number: i64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}
