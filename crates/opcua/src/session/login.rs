//! Creating, activating and reactivating a session, with the proofs that both sides owe each other.

use std::sync::Arc;
use std::time::Duration;

use opcua::crypto::{SecurityPolicy, X509, create_signature_data, random, verify_signature_data};
use opcua::types::{
    ActivateSessionRequest, ActivateSessionResponse, ApplicationDescription, ApplicationType, ByteString,
    CreateSessionRequest, CreateSessionResponse, LocalizedText, NodeId, SignatureData, UAString,
};
use parking_lot::Mutex;

use super::{Inner, REQUEST_TIMEOUT, Session};
use crate::channel::{CallError, Channel, ChannelSecurity, MESSAGE_BYTES_MAX};
use crate::config::Identity;
use crate::security::{Offer, leaf_certificate, login};
use crate::value::status;

/// Everything needed to log in, again and again.
pub(crate) struct Credentials {
    pub offer: Offer,
    pub security: ChannelSecurity,
    /// The server's certificate also where the channel does not use it: passwords are encrypted for it.
    pub server_certificate: Option<X509>,
    pub identity: Identity,
    /// From our certificate.
    pub application_uri: String,
    pub session_name: String,
    pub session_timeout: Duration,
}

/// Why there is no session.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoginError {
    #[error("{0}")]
    Call(#[from] CallError),
    /// The server's proof or ours cannot be made or is wrong.
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
    /// A new session on a channel.
    pub async fn create(channel: Channel, credentials: Arc<Credentials>) -> Result<Session, LoginError> {
        let client_nonce = random::byte_string(NONCE_BYTES);
        let request = create_request(&credentials, &client_nonce);
        let response = channel.call(&NodeId::null(), request, REQUEST_TIMEOUT).await?;
        refused(response.response_header.service_result.bits())?;
        verify_server(&credentials, &response, &client_nonce)?;
        let credentials = with_tokens(credentials, &response);
        let timeout = response.revised_session_timeout;
        let session = Session {
            inner: Arc::new(Inner {
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

    /// The same session on another channel, secured in the same way. A refusal means that the server has forgotten it.
    pub async fn reactivate(&self, channel: Channel) -> Result<Session, LoginError> {
        let old = &self.inner;
        let session = Session {
            inner: Arc::new(Inner {
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
                "the password is sent readable, since the server offers no encryption for it; choose a secured endpoint"
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

/// The server proves that it holds the key of the certificate that was trusted.
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
    // The certificate may come with its issuers behind it.
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
    .map_err(|_| wrong("its signature does not fit its certificate"))
}

/// An endpoint that was opened without discovery learns its logins from the session.
fn with_tokens(credentials: Arc<Credentials>, response: &CreateSessionResponse) -> Arc<Credentials> {
    if !credentials.offer.tokens.is_empty() {
        return credentials;
    }
    let announced = response.server_endpoints.iter().flatten().map(Offer::from);
    let same = |offer: &Offer| offer.mode == credentials.offer.mode && offer.policy == credentials.offer.policy;
    let Some(found) = announced.into_iter().find(same) else {
        return credentials;
    };
    let server_certificate = credentials
        .server_certificate
        .clone()
        .or_else(|| X509::from_der(&leaf_certificate(&found.certificate)?).ok());
    Arc::new(Credentials {
        offer: Offer {
            tokens: found.tokens,
            ..credentials.offer.clone()
        },
        security: credentials.security.clone(),
        server_certificate,
        identity: credentials.identity.clone(),
        application_uri: credentials.application_uri.clone(),
        session_name: credentials.session_name.clone(),
        session_timeout: credentials.session_timeout,
    })
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
