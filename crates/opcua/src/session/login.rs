//! Creates, activates and reactivates a session, including the proofs that client and server must exchange.

use std::sync::Arc;
use std::time::Duration;

use opcua::crypto::{SecurityPolicy, X509, create_signature_data, random, verify_signature_data};
use opcua::types::{
    ActivateSessionRequest, ActivateSessionResponse, ApplicationDescription, ApplicationType, ByteString,
    CreateSessionRequest, CreateSessionResponse, LocalizedText, NodeId, SignatureData, UAString,
};
use parking_lot::Mutex;

use super::{REQUEST_TIMEOUT, Session, SessionInner};
use crate::channel::{CallError, Channel, ChannelSecurity, MESSAGE_BYTES_MAX};
use crate::config::{Identity, SecurityChoice};
use crate::endpoint_url::EndpointUrl;
use crate::security::{EndpointOffer, is_binary, leaf_certificate, login, stronger};
use crate::value::status;

/// Everything needed to log in repeatedly.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub offer: EndpointOffer,
    pub security: ChannelSecurity,
    /// The server's certificate, also where the channel does not use it: passwords are encrypted for it.
    pub server_certificate: Option<X509>,
    /// The criteria by which the endpoint was chosen.
    pub choice: SecurityChoice,
    pub identity: Identity,
    /// Taken from our certificate.
    pub application_uri: String,
    pub session_name: String,
    pub session_timeout: Duration,
}

/// Reason why no session could be established.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoginError {
    #[error("{0}")]
    Call(#[from] CallError),
    /// The server's proof or ours cannot be created or is wrong.
    #[error("{0}")]
    Proof(String),
}

impl LoginError {
    pub fn status(&self) -> Option<u32> {
        match self {
            LoginError::Call(error) => error.status(),
            LoginError::Proof(_) => None,
        }
    }
}

const NONCE_BYTES: usize = 32;

impl Session {
    /// Opens a new session on a channel.
    pub async fn create(channel: Channel, credentials: Arc<Credentials>) -> Result<Session, LoginError> {
        let client_nonce = random::byte_string(NONCE_BYTES);
        let request = create_request(&credentials, &client_nonce);
        let response = channel.call(&NodeId::null(), request, REQUEST_TIMEOUT).await?;
        refused(response.response_header.service_result.bits())?;
        verify_server(&credentials, &response, &client_nonce)?;
        let credentials = as_announced(credentials, &response)?;
        let timeout = response.revised_session_timeout;
        let session = Session {
            inner: Arc::new(SessionInner {
                channel,
                credentials,
                token: response.authentication_token,
                timeout: Duration::from_millis(if timeout.is_finite() {
                    timeout.clamp(1.0, 86_400_000.0) as u64
                } else {
                    1000
                }),
                nonce: Mutex::new(response.server_nonce),
            }),
        };
        session.activate().await?;
        Ok(session)
    }

    /// Moves the session to another channel with the same security. A rejection means that the server no longer has the
    /// session.
    pub async fn reactivate(&self, channel: Channel) -> Result<Session, LoginError> {
        let old = &self.inner;
        let session = Session {
            inner: Arc::new(SessionInner {
                channel,
                credentials: old.credentials.clone(),
                token: old.token.clone(),
                timeout: old.timeout,
                nonce: Mutex::new(old.nonce.lock().clone()),
            }),
        };
        session.activate().await?;
        Ok(session)
    }

    async fn activate(&self) -> Result<(), LoginError> {
        let inner = &self.inner;
        let credentials = &inner.credentials;
        let nonce = inner.nonce.lock().clone();
        let certificate = credentials.server_certificate.as_ref();
        let login = login(&credentials.identity, &credentials.offer, certificate, &nonce).map_err(LoginError::Proof)?;
        if login.clear_text {
            tracing::warn!(
                endpoint = credentials.offer.url,
                "the password is sent in plain text, since the server offers no encryption for it; choose a secured endpoint"
            );
        }
        let request = ActivateSessionRequest {
            request_header: Default::default(),
            client_signature: client_signature(credentials, &nonce)?,
            client_software_certificates: None,
            locale_ids: None,
            user_identity_token: login.token,
            user_token_signature: login.signature,
        };
        let response: ActivateSessionResponse = inner.channel.call(&inner.token, request, REQUEST_TIMEOUT).await?;
        refused(response.response_header.service_result.bits())?;
        *inner.nonce.lock() = response.server_nonce;
        Ok(())
    }
}

fn refused(status: u32) -> Result<(), CallError> {
    if status::is_bad(status) {
        Err(CallError::Refused(status))
    } else {
        Ok(())
    }
}

fn create_request(credentials: &Credentials, client_nonce: &ByteString) -> CreateSessionRequest {
    let own = credentials.security.own.as_ref();
    CreateSessionRequest {
        request_header: Default::default(),
        client_description: ApplicationDescription {
            application_uri: UAString::from(credentials.application_uri.as_str()),
            product_uri: UAString::from("urn:thalweg"),
            application_name: LocalizedText::from("thalweg"),
            application_type: ApplicationType::Client,
            ..ApplicationDescription::default()
        },
        server_uri: UAString::null(),
        endpoint_url: UAString::from(credentials.offer.url.as_str()),
        session_name: UAString::from(credentials.session_name.as_str()),
        client_nonce: client_nonce.clone(),
        client_certificate: own
            .map(|(certificate, _)| certificate.as_byte_string())
            .unwrap_or_default(),
        requested_session_timeout: credentials.session_timeout.as_secs_f64() * 1000.0,
        max_response_message_size: u32::try_from(MESSAGE_BYTES_MAX).unwrap_or(u32::MAX),
    }
}

/// Checks that the server has the private key of the trusted certificate.
fn verify_server(
    credentials: &Credentials,
    response: &CreateSessionResponse,
    client_nonce: &ByteString,
) -> Result<(), LoginError> {
    if credentials.security.is_none() {
        return Ok(());
    }
    let wrong = |why: &str| LoginError::Proof(format!("the server's session is not trustworthy: {why}"));
    let (Some((own, _)), Some(server)) = (&credentials.security.own, &credentials.security.server_certificate) else {
        return Err(wrong("a certificate is missing"));
    };
    let expected = server.as_byte_string();
    // The certificate may be followed by its issuers.
    if !response.server_certificate.as_ref().starts_with(expected.as_ref()) {
        return Err(wrong("it shows another certificate than its endpoint"));
    }
    verify_signature_data(
        &response.server_signature,
        credentials.security.policy,
        server,
        own,
        client_nonce.as_ref(),
    )
    .map_err(|_| wrong("its signature does not match its certificate"))
}

/// Applies what the CreateSession response says about the endpoint. Unlike the discovery response, the response on a
/// secured channel cannot have been altered in transit. It therefore determines how to log in and whether discovery hid
/// a stronger endpoint. Without security it proves no more than discovery did, but an endpoint that was opened without
/// discovery gets its login types from it.
fn as_announced(
    credentials: Arc<Credentials>,
    response: &CreateSessionResponse,
) -> Result<Arc<Credentials>, LoginError> {
    let offer = &credentials.offer;
    let secured = !credentials.security.is_none();
    if !secured && !offer.tokens.is_empty() {
        return Ok(credentials);
    }
    let announced = response.server_endpoints.iter().flatten();
    let announced: Vec<EndpointOffer> = announced
        .filter(|endpoint| is_binary(endpoint))
        .map(EndpointOffer::from)
        .collect();
    if secured && let Some((best, used)) = stronger(&announced, offer, &credentials.choice, &credentials.identity) {
        return Err(LoginError::Proof(format!(
            "the server offers {best} as its signed answer says, but discovery led to the weaker {used}: the discovery answer may have been altered in transit; check the network, or set securityPolicy to the one to use"
        )));
    }
    let Some(found) = same_endpoint(&announced, offer) else {
        return Ok(credentials);
    };
    let server_certificate = credentials
        .server_certificate
        .clone()
        .or_else(|| X509::from_der(&leaf_certificate(&found.certificate)?).ok());
    Ok(Arc::new(Credentials {
        offer: EndpointOffer {
            tokens: found.tokens.clone(),
            ..offer.clone()
        },
        server_certificate,
        ..Credentials::clone(&credentials)
    }))
}

/// Finds the endpoint in use among those that list their login types. If several have its mode and policy, the one with
/// the same path wins.
fn same_endpoint<'a>(announced: &'a [EndpointOffer], used: &EndpointOffer) -> Option<&'a EndpointOffer> {
    let same = || {
        let listed = announced.iter().filter(|offer| !offer.tokens.is_empty());
        listed.filter(|offer| offer.mode == used.mode && offer.policy == used.policy)
    };
    let path = |offer: &EndpointOffer| EndpointUrl::parse(&offer.url).map(|url| url.path).ok();
    same().find(|offer| path(offer) == path(used)).or_else(|| same().next())
}

fn client_signature(credentials: &Credentials, nonce: &ByteString) -> Result<SignatureData, LoginError> {
    if credentials.security.policy == SecurityPolicy::None {
        return Ok(SignatureData::null());
    }
    let (Some((_, key)), Some(server)) = (&credentials.security.own, &credentials.security.server_certificate) else {
        return Err(LoginError::Proof(
            "the session cannot be signed: a certificate is missing".to_owned(),
        ));
    };
    create_signature_data(key, credentials.security.policy, &server.as_byte_string(), nonce)
        .map_err(|error| LoginError::Proof(format!("the session cannot be signed: {error}")))
}

#[cfg(test)]
mod tests {
    use opcua::types::{EndpointDescription, MessageSecurityMode, UserTokenPolicy, UserTokenType};

    use super::*;
    use crate::config::PolicyChoice;

    const USED: SecurityPolicy = SecurityPolicy::Basic256Sha256;

    fn endpoint(path: &str, policy: SecurityPolicy, token: &str) -> EndpointDescription {
        EndpointDescription {
            endpoint_url: format!("opc.tcp://inside:4840{path}").into(),
            security_mode: MessageSecurityMode::Sign,
            security_policy_uri: policy.to_uri().into(),
            user_identity_tokens: Some(vec![UserTokenPolicy {
                policy_id: token.into(),
                token_type: UserTokenType::Anonymous,
                ..UserTokenPolicy::default()
            }]),
            ..EndpointDescription::default()
        }
    }

    /// Returns the policies of the login types that apply after discovery returned "discovered" and the session
    /// `announced`.
    fn tokens(
        announced: Vec<EndpointDescription>,
        policy: Option<SecurityPolicy>,
        secured: bool,
    ) -> Result<String, String> {
        let mut discovered = EndpointOffer::from(&endpoint("/ua", USED, "discovered"));
        discovered.url = "opc.tcp://plc:4840/ua".to_owned();
        let mut security = ChannelSecurity::none();
        if secured {
            (security.mode, security.policy) = (MessageSecurityMode::Sign, USED);
        }
        let credentials = Credentials {
            offer: discovered,
            security,
            server_certificate: None,
            choice: SecurityChoice {
                mode: Some(MessageSecurityMode::Sign),
                policy: policy.map(PolicyChoice),
            },
            identity: Identity::Anonymous,
            application_uri: String::new(),
            session_name: String::new(),
            session_timeout: Duration::from_secs(10),
        };
        let response = CreateSessionResponse {
            server_endpoints: Some(announced),
            ..CreateSessionResponse::default()
        };
        let confirmed = as_announced(Arc::new(credentials), &response).map_err(|error| error.to_string())?;
        let ids = confirmed.offer.tokens.iter().map(|token| token.policy_id.to_string());
        Ok(ids.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn on_a_secured_channel_the_signed_list_says_how_to_log_in() {
        let of = |announced: &[EndpointDescription]| tokens(announced.to_vec(), Some(USED), true).unwrap();
        let (here, elsewhere) = (endpoint("/ua", USED, "signed"), endpoint("/other", USED, "other"));
        let another_policy = endpoint("/ua", SecurityPolicy::Basic256, "weak");
        assert_eq!(of(&[another_policy.clone(), elsewhere.clone(), here.clone()]), "signed");
        // The server may announce another path than discovery did.
        assert_eq!(of(&[another_policy.clone(), elsewhere]), "other");
        // A list without the endpoint, or without its login types, has no effect.
        let mut silent = here.clone();
        silent.user_identity_tokens = None;
        for says_nothing in [vec![], vec![another_policy], vec![silent]] {
            assert_eq!(of(&says_nothing), "discovered");
        }
        // Without security the list is no more trustworthy than discovery.
        assert_eq!(tokens(vec![here], Some(USED), false).as_deref(), Ok("discovered"));
    }

    #[test]
    fn a_stronger_endpoint_that_discovery_did_not_show_is_refused() {
        let strong = SecurityPolicy::Aes256Sha256RsaPss;
        let announced = vec![endpoint("/ua", USED, "signed"), endpoint("/ua", strong, "strong")];
        let error = tokens(announced.clone(), None, true).unwrap_err();
        assert!(
            error.contains("the server offers Sign/Aes256Sha256RsaPss") && error.contains("set securityPolicy"),
            "{error}"
        );
        // The operator chose the policy, so nobody in between can have influenced the choice.
        assert_eq!(tokens(announced.clone(), Some(USED), true).as_deref(), Ok("signed"));
        // HTTPS endpoints do not count.
        let mut https = announced;
        https[1].transport_profile_uri = "http://opcfoundation.org/UA-Profile/Transport/https-uabinary".into();
        assert_eq!(tokens(https, None, true).as_deref(), Ok("signed"));
        let weak = vec![
            endpoint("/ua", SecurityPolicy::Basic256, "weak"),
            endpoint("/ua", USED, "signed"),
        ];
        assert_eq!(tokens(weak, None, true).as_deref(), Ok("signed"));
    }
}
