//! Fields that the OPC UA input and output share: the server's address, the security of the connection, and the login.

use std::path::PathBuf;
use std::time::Duration;

use opcua::crypto::SecurityPolicy;
use opcua::types::MessageSecurityMode;
use thalweg_config::Fields;

use crate::endpoint_url::EndpointUrl;
use crate::profile;
use crate::security::{Fingerprint, KeyPair};

const MODES: [&str; 3] = ["None", "Sign", "SignAndEncrypt"];

const POLICIES: [(&str, SecurityPolicy); 6] = [
    ("None", SecurityPolicy::None),
    ("Basic128Rsa15", SecurityPolicy::Basic128Rsa15),
    ("Basic256", SecurityPolicy::Basic256),
    ("Basic256Sha256", SecurityPolicy::Basic256Sha256),
    ("Aes128Sha256RsaOaep", SecurityPolicy::Aes128Sha256RsaOaep),
    ("Aes256Sha256RsaPss", SecurityPolicy::Aes256Sha256RsaPss),
];

const SESSION_TIMEOUT_MS: i64 = 10_000;
const SESSION_TIMEOUT_MS_IF_NOT_POSITIVE: u64 = 5_000;

/// Longest session timeout and reconnect interval: a day.
const DAY_MS: i64 = 86_400_000;

#[derive(Clone, Debug)]
pub(crate) struct ConnectionConfig {
    pub endpoint: EndpointUrl,
    pub identity: Identity,
    pub session_timeout: Duration,
    pub security: SecurityChoice,
    pub certificates: Certificates,
    pub direct_connect: bool,
    /// First delay between attempts.
    pub reconnect_interval: Duration,
    /// `None`: detected from what the server reports about itself.
    pub profile: Option<profile::ProfileName>,
}

/// The login.
#[derive(Clone)]
pub(crate) enum Identity {
    Anonymous,
    User { name: String, password: String },
    Certificate(Box<KeyPair>),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Identity {
    /// The name of the kind of login for errors and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Identity::Anonymous => "anonymous",
            Identity::User { .. } => "user name",
            Identity::Certificate(_) => "certificate",
        }
    }
}

/// Mode and policy as far as the user set them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SecurityChoice {
    pub mode: Option<MessageSecurityMode>,
    pub policy: Option<PolicyChoice>,
}

/// A security policy with its short name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PolicyChoice(pub SecurityPolicy);

/// The name of a policy in the configuration, which differs from the library's.
pub(crate) fn policy_name(policy: SecurityPolicy) -> &'static str {
    POLICIES
        .into_iter()
        .find(|(_, known)| *known == policy)
        .map_or("unknown", |(name, _)| name)
}

/// Which certificates to trust and which to present.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    /// `None`: one is generated and stored in the data folder.
    pub client: Option<KeyPair>,
    pub fingerprint: Option<Fingerprint>,
    pub trust_folder: Option<PathBuf>,
}

impl ConnectionConfig {
    /// Reports every mistake; `None` if no usable configuration remains.
    pub fn parse(fields: &mut Fields<'_>) -> Option<ConnectionConfig> {
        let endpoint = endpoint(fields);
        let identity = identity(fields);
        let session_timeout = match fields.int("sessionTimeout", SESSION_TIMEOUT_MS) {
            ..=0 => SESSION_TIMEOUT_MS_IF_NOT_POSITIVE,
            ms => ms.min(DAY_MS).unsigned_abs(),
        };
        let security = security(fields);
        let certificates = certificates(fields);
        warn_of_trust_without_effect(fields, certificates.as_ref(), security);
        let direct_connect = fields.bool("directConnect", false);
        let reconnect = fields
            .int_in("reconnectIntervalInSeconds", 5, 1..=86_400)
            .unsigned_abs();
        let profile = profile::ProfileName::parse(fields.one_of("profile", &profile::NAMES, ""));
        Some(ConnectionConfig {
            endpoint: endpoint?,
            identity: identity?,
            session_timeout: Duration::from_millis(session_timeout),
            security,
            certificates: certificates?,
            direct_connect,
            reconnect_interval: Duration::from_secs(reconnect),
            profile,
        })
    }
}

fn endpoint(fields: &mut Fields<'_>) -> Option<EndpointUrl> {
    let given = fields.has("endpoint");
    let text = fields.required_string("endpoint");
    if !given {
        return None;
    }
    EndpointUrl::parse(&text)
        .map_err(|why| fields.error("endpoint", why))
        .ok()
}

fn identity(fields: &mut Fields<'_>) -> Option<Identity> {
    let name = fields.string("username", "");
    let password = fields.string("password", "");
    let certificate = fields.string("userCertificate", "");
    let key = fields.string("userPrivateKey", "");
    if !certificate.is_empty() && !key.is_empty() {
        let pair = KeyPair::from_base64(&certificate, &key);
        return match pair {
            Ok(pair) => Some(Identity::Certificate(Box::new(pair))),
            Err(why) => {
                fields.error("userCertificate", why);
                None
            }
        };
    }
    Some(match name.is_empty() || password.is_empty() {
        true => Identity::Anonymous,
        false => Identity::User { name, password },
    })
}

fn security(fields: &mut Fields<'_>) -> SecurityChoice {
    let mode = match fields.one_of("securityMode", &MODES, "") {
        "None" => Some(MessageSecurityMode::None),
        "Sign" => Some(MessageSecurityMode::Sign),
        "SignAndEncrypt" => Some(MessageSecurityMode::SignAndEncrypt),
        _ => None,
    };
    let names = POLICIES.map(|(name, _)| name);
    let name = fields.one_of("securityPolicy", &names, "");
    let policy = POLICIES
        .into_iter()
        .find(|(known, _)| *known == name)
        .map(|(_, policy)| PolicyChoice(policy));
    let choice = SecurityChoice { mode, policy };
    let none = |is_none: bool| if is_none { "None" } else { "another value" };
    if let (Some(mode), Some(PolicyChoice(policy))) = (mode, policy) {
        let (mode, policy) = (mode == MessageSecurityMode::None, policy == SecurityPolicy::None);
        if mode != policy {
            let why = format!(
                "securityMode is {} and securityPolicy is {}, which excludes every endpoint; set both to None or neither",
                none(mode),
                none(policy)
            );
            fields.error("securityPolicy", why);
        }
    }
    choice
}

fn certificates(fields: &mut Fields<'_>) -> Option<Certificates> {
    let client = fields.string("clientCertificate", "");
    let fingerprint = fields.string("serverCertificateFingerprint", "");
    let trust_folder = fields.string("trustFolder", "");
    let mut fine = true;
    let mut checked = |name: &str, why: String| {
        fields.error(name, why);
        fine = false;
    };
    let client = match client.is_empty() {
        true => None,
        false => KeyPair::from_bundle(&client)
            .map_err(|why| checked("clientCertificate", why))
            .ok(),
    };
    let fingerprint = match fingerprint.is_empty() {
        true => None,
        false => Fingerprint::parse(&fingerprint)
            .map_err(|why| checked("serverCertificateFingerprint", why))
            .ok(),
    };
    let trust_folder = (!trust_folder.is_empty()).then(|| PathBuf::from(trust_folder));
    fine.then_some(Certificates {
        client,
        fingerprint,
        trust_folder,
    })
}

/// Trust settings apply only to secured connections; a user who sets them expects one.
fn warn_of_trust_without_effect(fields: &Fields<'_>, certificates: Option<&Certificates>, security: SecurityChoice) {
    let Some(certificates) = certificates.filter(|_| security.is_none()) else {
        return;
    };
    let given = [
        ("serverCertificateFingerprint", certificates.fingerprint.is_some()),
        ("trustFolder", certificates.trust_folder.is_some()),
    ];
    for (name, is_given) in given {
        if let (true, Some((_, value))) = (is_given, fields.mapping().as_map().and_then(|map| map.entry(name))) {
            let why = "has no effect on a connection without security; set securityMode: SignAndEncrypt to secure it";
            fields.diags().warn(value, why);
        }
    }
}

/// Obsolete fields that files may still contain.
pub(super) fn legacy_without_effect(fields: &mut Fields<'_>) {
    fields.legacy(
        "browseHierarchicalReferences",
        "has no effect: hierarchical references are always followed",
    );
    fields.legacy(
        "insecure",
        "has no effect: security is chosen by securityMode and securityPolicy",
    );
    fields.legacy("autoReconnect", "has no effect: reconnecting is always on");
}

impl SecurityChoice {
    /// Whether neither requires security.
    pub fn is_none(&self) -> bool {
        self.mode.is_none_or(|mode| mode == MessageSecurityMode::None)
            && self
                .policy
                .is_none_or(|PolicyChoice(policy)| policy == SecurityPolicy::None)
    }
}
