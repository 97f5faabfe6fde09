//! The server library's configuration: limits raised for 100,000 changing and 1,000,000 static nodes, the endpoints and
//! logins from the options, and the node managers: of the standard nodes, of the library's own, and of the plant.

use opcua::crypto::SecurityPolicy;
use opcua::types::{BuildInfo, DateTime, MessageSecurityMode};
use opcua_server::diagnostics::DiagnosticsNodeManagerBuilder;
use opcua_server::node_manager::ServerContext;
use opcua_server::{
    ANONYMOUS_USER_TOKEN_ID, Limits, OperationalLimits, ServerBuilder, ServerEndpoint, ServerUserToken,
    SubscriptionLimits,
};
use std::sync::Arc;

use crate::manager::SimulatorNodeManager;
use crate::space::PlcAddressSpace;
use crate::ticker::TickerSender;
use crate::{SimulatorOptions, standard};

pub(crate) const APPLICATION_URI: &str = "urn:thalweg:simulator";
const APPLICATION_NAME: &str = "Thalweg OPC UA simulator";
const USER: &str = "user";
const CERTIFICATE: &str = "certificate";

/// Beyond 32 bits: the library enforces it, and clients read 0, "no limit".
const UNLIMITED: usize = 1 << 32;
const HOUR_MS: u32 = 3_600_000;
/// The library polls for due subscriptions this often, so publishing intervals are met to this precision.
const POLL_INTERVAL_MS: u64 = 20;
const SUBSCRIPTIONS_MAX: usize = 1_000;
const PUBLISHING_INTERVAL_MS_MIN: f64 = 10.0;
/// Notification messages that wait for a publish request, per subscription. The library drops older ones silently. The
/// ticker holds values back from a late client, so this many accumulate only if the client asks for tiny messages.
const MESSAGES_QUEUED_MAX: usize = 1_000;

const POLICIES: [(&str, SecurityPolicy); 5] = [
    ("basic128rsa15", SecurityPolicy::Basic128Rsa15),
    ("basic256", SecurityPolicy::Basic256),
    ("basic256sha256", SecurityPolicy::Basic256Sha256),
    ("aes128sha256rsaoaep", SecurityPolicy::Aes128Sha256RsaOaep),
    ("aes256sha256rsapss", SecurityPolicy::Aes256Sha256RsaPss),
];

/// Returns the complete builder; `host` and `port` are the ones that clients see.
pub(crate) fn builder(
    options: &SimulatorOptions,
    host: &str,
    port: u16,
    space: &Arc<PlcAddressSpace>,
    events: &TickerSender,
) -> ServerBuilder {
    let (space, events, refuse_filters) = (Arc::clone(space), events.clone(), options.refuse_filters);
    let builder = ServerBuilder::new()
        .application_name(APPLICATION_NAME)
        .application_uri(APPLICATION_URI)
        .product_uri(APPLICATION_URI)
        .build_info(build_info(options))
        .create_sample_keypair(options.secure)
        .certificate_path("own/cert.der")
        .private_key_path("private/private.pem")
        .pki_dir(options.pki_dir.clone())
        .trust_client_certs(options.auto_accept)
        .host(host)
        .port(port)
        .discovery_urls(vec![format!("opc.tcp://{host}:{port}/")])
        .max_session_timeout_ms(u64::from(HOUR_MS))
        .max_secure_channel_token_lifetime_ms(HOUR_MS)
        .subscription_poll_interval_ms(POLL_INTERVAL_MS)
        .limits(limits(options))
        .with_node_manager(standard::node_manager())
        .with_node_manager(DiagnosticsNodeManagerBuilder)
        .with_node_manager(move |context: ServerContext| {
            SimulatorNodeManager::new(space, events, refuse_filters, &context)
        });
    endpoints(users(builder, options), options)
}

fn build_info(options: &SimulatorOptions) -> BuildInfo {
    let version = env!("CARGO_PKG_VERSION");
    BuildInfo {
        product_uri: APPLICATION_URI.into(),
        manufacturer_name: options.manufacturer.as_str().into(),
        product_name: options.product.as_str().into(),
        software_version: version.into(),
        build_number: version.into(),
        build_date: DateTime::now(),
    }
}

fn limits(options: &SimulatorOptions) -> Limits {
    Limits {
        max_array_length: 1_000_000,
        max_string_length: 1 << 20,
        max_byte_string_length: 1 << 20,
        max_message_size: 64 << 20,
        max_chunk_count: 4_096,
        subscriptions: SubscriptionLimits {
            max_subscriptions_per_session: match options.max_subscriptions {
                0 => SUBSCRIPTIONS_MAX,
                max => max as usize,
            },
            max_pending_publish_requests: 1_000,
            max_publish_requests_per_subscription: 16,
            min_sampling_interval_ms: 0.0,
            min_publishing_interval_ms: PUBLISHING_INTERVAL_MS_MIN,
            max_monitored_items_per_sub: options.max_items_per_subscription as usize,
            max_monitored_item_queue_size: 10_000,
            max_queued_notifications: MESSAGES_QUEUED_MAX,
            ..SubscriptionLimits::default()
        },
        operational: OperationalLimits {
            max_nodes_per_browse: limit(options.max_nodes_per_browse),
            max_nodes_per_read: limit(options.max_nodes_per_read),
            max_nodes_per_write: UNLIMITED,
            max_monitored_items_per_call: limit(options.max_items_per_call),
            max_nodes_per_translate_browse_paths_to_node_ids: UNLIMITED,
            max_nodes_per_register_nodes: UNLIMITED,
            max_subscriptions_per_call: UNLIMITED,
            max_references_per_browse_node: options.max_references_per_node as usize,
            ..OperationalLimits::default()
        },
        max_sessions: 1_000,
        ..Limits::default()
    }
}

fn limit(option: u32) -> usize {
    if option == 0 { UNLIMITED } else { option as usize }
}

fn users(mut builder: ServerBuilder, options: &SimulatorOptions) -> ServerBuilder {
    if let Some((name, password)) = &options.user {
        builder = builder.add_user_token(USER, ServerUserToken::user_pass(name, password));
    }
    if let Some(certificate) = &options.user_certificate {
        builder = builder.add_user_token(CERTIFICATE, ServerUserToken::x509(CERTIFICATE, certificate));
    }
    builder
}

/// Anonymous clients are accepted on the None endpoint, and on the secured ones only if no login is configured.
fn endpoints(mut builder: ServerBuilder, options: &SimulatorOptions) -> ServerBuilder {
    let mut logins = Vec::new();
    logins.extend(options.user.as_ref().map(|_| USER));
    logins.extend(options.user_certificate.as_ref().map(|_| CERTIFICATE));
    if options.insecure {
        let mut tokens = vec![ANONYMOUS_USER_TOKEN_ID];
        tokens.extend(&logins);
        builder = builder.add_endpoint(
            "none",
            endpoint(SecurityPolicy::None, MessageSecurityMode::None, &tokens),
        );
        builder = builder.default_endpoint("none");
    }
    if options.secure {
        let tokens = if logins.is_empty() {
            vec![ANONYMOUS_USER_TOKEN_ID]
        } else {
            logins
        };
        for (id, policy) in POLICIES {
            let sign = endpoint(policy, MessageSecurityMode::Sign, &tokens);
            let encrypt = endpoint(policy, MessageSecurityMode::SignAndEncrypt, &tokens);
            builder = builder
                .add_endpoint(format!("{id}_sign"), sign)
                .add_endpoint(format!("{id}_encrypt"), encrypt);
        }
    }
    builder
}

fn endpoint(policy: SecurityPolicy, mode: MessageSecurityMode, tokens: &[&str]) -> ServerEndpoint {
    ServerEndpoint::from(("/", policy, mode, tokens))
}
