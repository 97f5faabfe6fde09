//! Chooses one of a server's endpoints. The result depends only on the offers and the configuration, and is never
//! weaker than the configuration.

use opcua::crypto::SecurityPolicy;
use opcua::types::{EndpointDescription, MessageSecurityMode, UserTokenPolicy, UserTokenType};

use crate::config::{Identity, PolicyChoice, SecurityChoice, policy_name};

/// The policies considered for "the strongest", strongest first. Basic128Rsa15 is used only if named.
const STRONGEST: [SecurityPolicy; 4] = [
    SecurityPolicy::Aes256Sha256RsaPss,
    SecurityPolicy::Aes128Sha256RsaOaep,
    SecurityPolicy::Basic256Sha256,
    SecurityPolicy::Basic256,
];

/// An endpoint, as far as the choice and the connection need it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EndpointOffer {
    pub url: String,
    pub mode: MessageSecurityMode,
    /// `Unknown` for policies that the library does not support.
    pub policy: SecurityPolicy,
    pub policy_uri: String,
    /// DER, possibly followed by its issuers; empty without one.
    pub certificate: Vec<u8>,
    pub tokens: Vec<UserTokenPolicy>,
    pub application_uri: String,
    /// Whether the server sent the certificate, as opposed to a file.
    pub shown: bool,
}

impl EndpointOffer {
    /// An endpoint that was not announced.
    pub fn assumed(url: String, mode: MessageSecurityMode, policy: SecurityPolicy) -> EndpointOffer {
        let policy_uri = policy.to_uri().to_owned();
        EndpointOffer {
            url,
            mode,
            policy,
            policy_uri,
            certificate: Vec::new(),
            tokens: Vec::new(),
            application_uri: String::new(),
            shown: false,
        }
    }

    fn accepts(&self, identity: &Identity) -> bool {
        let kind = token_type(identity);
        // A server that lists no logins at all accepts anonymous ones.
        (self.tokens.is_empty() && matches!(identity, Identity::Anonymous))
            || self.tokens.iter().any(|token| token.token_type == kind)
    }

    fn is_open(&self) -> bool {
        self.mode == MessageSecurityMode::None && self.policy == SecurityPolicy::None
    }
}

impl From<&EndpointDescription> for EndpointOffer {
    fn from(endpoint: &EndpointDescription) -> EndpointOffer {
        let policy_uri = endpoint.security_policy_uri.as_ref().to_owned();
        EndpointOffer {
            url: endpoint.endpoint_url.as_ref().to_owned(),
            mode: endpoint.security_mode,
            policy: policy_of_uri(&policy_uri),
            policy_uri,
            certificate: endpoint.server_certificate.as_ref().to_vec(),
            tokens: endpoint.user_identity_tokens.clone().unwrap_or_default(),
            application_uri: endpoint.server.application_uri.as_ref().to_owned(),
            shown: true,
        }
    }
}

/// Whether an endpoint uses TCP; others, such as HTTPS, are not supported.
pub(crate) fn is_binary(endpoint: &EndpointDescription) -> bool {
    const BINARY: &str = "http://opcfoundation.org/UA-Profile/Transport/uatcp-uasc-uabinary";
    matches!(endpoint.transport_profile_uri.as_ref(), "" | BINARY)
}

/// Returns `Unknown` for unsupported policies, without the log line of the library's own look-up.
pub(super) fn policy_of_uri(uri: &str) -> SecurityPolicy {
    let known = STRONGEST
        .into_iter()
        .chain([SecurityPolicy::None, SecurityPolicy::Basic128Rsa15]);
    known
        .into_iter()
        .find(|policy| policy.to_uri() == uri)
        .unwrap_or(SecurityPolicy::Unknown)
}

pub(super) fn token_type(identity: &Identity) -> UserTokenType {
    match identity {
        Identity::Anonymous => UserTokenType::Anonymous,
        Identity::User { .. } => UserTokenType::UserName,
        Identity::Certificate(_) => UserTokenType::Certificate,
    }
}

/// Returns the endpoint to use, or one sentence that lists what was offered instead.
pub(crate) fn choose<'a>(
    offers: &'a [EndpointOffer],
    choice: &SecurityChoice,
    identity: &Identity,
) -> Result<&'a EndpointOffer, String> {
    let fits = |offer: &&EndpointOffer| offer.accepts(identity);
    if choice.is_none() {
        let mut open = offers.iter().filter(|offer| offer.is_open()).peekable();
        if open.peek().is_none() {
            return Err(format!(
                "could not connect to any endpoint without security; offered: {}",
                list(offers)
            ));
        }
        return open.find(fits).ok_or_else(|| no_login(offers, identity));
    }
    let candidates = || offers.iter().filter(|offer| matches(offer, choice));
    let found = match choice {
        SecurityChoice {
            mode: Some(_),
            policy: Some(_),
        } => candidates().find(fits),
        _ => STRONGEST
            .into_iter()
            .chain(named(choice))
            .find_map(|policy| candidates().filter(fits).find(|offer| offer.policy == policy)),
    };
    found.ok_or_else(|| match candidates().next() {
        Some(_) => no_login(offers, identity),
        None => format!(
            "no suitable endpoint found for {}; offered: {}",
            wanted(choice),
            list(offers)
        ),
    })
}

/// A policy that the user named counts even if it is not among the strongest.
fn named(choice: &SecurityChoice) -> Option<SecurityPolicy> {
    choice.policy.map(|PolicyChoice(policy)| policy)
}

fn matches(offer: &EndpointOffer, choice: &SecurityChoice) -> bool {
    if offer.policy == SecurityPolicy::Unknown {
        return false;
    }
    // A policy alone implies SignAndEncrypt.
    let mode = choice.mode.unwrap_or(MessageSecurityMode::SignAndEncrypt);
    offer.mode == mode && choice.policy.is_none_or(|PolicyChoice(policy)| offer.policy == policy)
}

fn wanted(choice: &SecurityChoice) -> String {
    let mode = choice.mode.unwrap_or(MessageSecurityMode::SignAndEncrypt);
    match choice.policy {
        Some(PolicyChoice(policy)) => format!("securityMode {mode:?} and securityPolicy {}", policy_name(policy)),
        None => format!("securityMode {mode:?}"),
    }
}

fn no_login(offers: &[EndpointOffer], identity: &Identity) -> String {
    format!(
        "no suitable endpoint found: none of those with the wanted security accepts {} login; offered: {}",
        identity.as_str(),
        list(offers)
    )
}

/// `SignAndEncrypt/Basic256Sha256 (anonymous, user name), …`
fn list(offers: &[EndpointOffer]) -> String {
    if offers.is_empty() {
        return "nothing".to_owned();
    }
    let each = offers.iter().map(|offer| {
        let policy = match offer.policy {
            SecurityPolicy::Unknown => offer.policy_uri.rsplit('#').next().unwrap_or_default(),
            known => policy_name(known),
        };
        format!("{:?}/{policy} ({})", offer.mode, logins(offer))
    });
    let mut each: Vec<String> = each.collect();
    each.dedup();
    each.join("; ")
}

fn logins(offer: &EndpointOffer) -> String {
    let mut logins: Vec<&str> = offer.tokens.iter().map(|token| login_name(token.token_type)).collect();
    logins.dedup();
    logins.join(", ")
}

fn login_name(kind: UserTokenType) -> &'static str {
    match kind {
        UserTokenType::Anonymous => "anonymous",
        UserTokenType::UserName => "user name",
        UserTokenType::Certificate => "certificate",
        UserTokenType::IssuedToken => "issued token",
    }
}

/// The strength of a policy; 0 means none.
pub(super) fn strength(policy: SecurityPolicy) -> usize {
    match policy {
        SecurityPolicy::None | SecurityPolicy::Unknown => 0,
        SecurityPolicy::Basic128Rsa15 => 1,
        known => {
            let place = STRONGEST.iter().position(|policy| *policy == known);
            place.map_or(0, |place| STRONGEST.len() + 1 - place)
        }
    }
}

/// Returns the names of the best endpoint in `offers` and of the one in use, if the best is stronger.
pub(crate) fn stronger(
    offers: &[EndpointOffer],
    used: &EndpointOffer,
    choice: &SecurityChoice,
    identity: &Identity,
) -> Option<(String, String)> {
    let best = choose(offers, choice, identity).ok()?;
    let name = |offer: &EndpointOffer| format!("{:?}/{}", offer.mode, policy_name(offer.policy));
    (strength(best.policy) > strength(used.policy)).then(|| (name(best), name(used)))
}

/// Returns the endpoint of a direct connection: mode and policy from the configuration, the rest from `offers`. An
/// endpoint that the server does not list is assumed to have the same certificate as the others.
pub(crate) fn as_given(
    offers: &[EndpointOffer],
    url: String,
    choice: &SecurityChoice,
    identity: &Identity,
) -> Result<EndpointOffer, String> {
    let policy = match (choose(offers, choice, identity), choice.policy) {
        (Ok(listed), _) => return Ok(EndpointOffer { url, ..listed.clone() }),
        // Without a policy, only the list says which there are.
        (Err(why), None) => return Err(why),
        (Err(_), Some(PolicyChoice(policy))) => policy,
    };
    let mode = choice.mode.unwrap_or(MessageSecurityMode::SignAndEncrypt);
    let shown = offers.iter().find(|offer| !offer.certificate.is_empty());
    let shown = shown
        .ok_or_else(|| format!("the endpoint {url} shows no certificate, so it cannot be secured; check the server"))?;
    Ok(EndpointOffer {
        certificate: shown.certificate.clone(),
        application_uri: shown.application_uri.clone(),
        shown: true,
        ..EndpointOffer::assumed(url, mode, policy)
    })
}

/// Returns the settings for a secured connection, as advice for a user without one: the strongest offer, with its two
/// lines. `offers` is `None` if the server was not asked.
pub(crate) fn advice(offers: Option<&[EndpointOffer]>, identity: &Identity) -> String {
    let Some(offers) = offers else {
        return format!(
            "and the server was not asked what it offers; if it offers security, write{}",
            lines(MessageSecurityMode::SignAndEncrypt, SecurityPolicy::Basic256Sha256)
        );
    };
    let accepts = |offer: &EndpointOffer| offer.accepts(identity);
    if let Some(found) = strongest(offers, accepts) {
        return format!(
            "though the server offers better; to use it, write{}",
            lines(found.mode, found.policy)
        );
    }
    match strongest(offers, |_| true) {
        Some(found) => format!(
            "though the server offers better, but not for {} login (it accepts {}); change the login and write{}",
            identity.as_str(),
            logins(found),
            lines(found.mode, found.policy)
        ),
        None => "and the server offers nothing better; enable security on the server".to_owned(),
    }
}

fn strongest(offers: &[EndpointOffer], fits: impl Fn(&EndpointOffer) -> bool) -> Option<&EndpointOffer> {
    let modes = [MessageSecurityMode::SignAndEncrypt, MessageSecurityMode::Sign];
    modes.into_iter().find_map(|mode| {
        STRONGEST.into_iter().find_map(|policy| {
            offers
                .iter()
                .find(|offer| offer.mode == mode && offer.policy == policy && fits(offer))
        })
    })
}

/// To be pasted under the input.
fn lines(mode: MessageSecurityMode, policy: SecurityPolicy) -> String {
    format!("\nsecurityMode: {mode:?}\nsecurityPolicy: {}", policy_name(policy))
}

#[cfg(test)]
mod tests;
