//! Opens a session from the configuration: discovery, choice of the endpoint, trust, channel, login.
//!
//! Every failure becomes one sentence that says what to do. The configured requirements are enforced at every attempt;
//! nothing is remembered that could make a later connection weaker.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opcua::crypto::{SecurityPolicy, X509};
use opcua::types::{EndpointDescription, GetEndpointsRequest, MessageSecurityMode, NodeId, StatusCode, UAString};
use thalweg_kit::blocking;

use crate::channel::{CallError, Channel, ChannelOpenError, ChannelSecurity};
use crate::config::{ConnectionConfig, Identity, PolicyChoice};
use crate::endpoint_url::EndpointUrl;
use crate::security::{
    ClientCertificates, EndpointOffer, ServerCertificate, Trust, advice, application_uri_of, as_given, choose,
    is_binary, leaf_certificate,
};
use crate::session::{Credentials, LoginError, REQUEST_TIMEOUT, Session};
use crate::value::status;

/// Why there is no connection, in one sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ConnectError {
    pub text: String,
    /// The server asked to wait, because it limits attempts or sessions.
    pub wait: bool,
    /// The server did not respond at all; a session may still exist there.
    pub unreachable: bool,
}

impl ConnectError {
    fn new(text: impl Into<String>) -> ConnectError {
        ConnectError {
            text: text.into(),
            wait: false,
            unreachable: false,
        }
    }

    /// Returns the wait before the next attempt. A server that counts sessions and attempts forgets them after the
    /// session timeout at the earliest.
    pub fn pause(&self, backoff: Duration, session_timeout: Duration) -> Duration {
        match self.wait {
            true => backoff.max(session_timeout),
            false => backoff,
        }
    }
}

/// Opens connections to one server. All sessions of a component share it.
pub(crate) struct Connector {
    config: ConnectionConfig,
    certificates: ClientCertificates,
    trust: Arc<Trust>,
    warned_of_no_security: AtomicBool,
}

impl Connector {
    pub fn new(config: ConnectionConfig, certificates: ClientCertificates, trust: Trust) -> Connector {
        Connector {
            config,
            certificates,
            trust: Arc::new(trust),
            warned_of_no_security: AtomicBool::new(false),
        }
    }

    /// Uses this folder to store keys and certificates.
    pub fn with_keys_in(folder: &Path, config: ConnectionConfig) -> Connector {
        let given = &config.certificates;
        let certificates = ClientCertificates::new(given.client.clone(), folder);
        let trust = Trust::new(given.fingerprint.clone(), given.trust_folder.as_deref(), folder);
        Connector::new(config, certificates, trust)
    }

    /// Opens a new session. `name` appears in the server's list of sessions.
    pub async fn connect(&self, name: &str) -> Result<Session, ConnectError> {
        let offer = self.offer().await?;
        let assumed = self.config.direct_connect && offer.policy != SecurityPolicy::None && !offer.shown;
        let (channel, credentials) = match self.open(offer.clone(), name).await {
            Err(failed) if assumed && !failed.unreachable => self.open_as_shown(&offer, failed, name).await?,
            opened => opened?,
        };
        Session::create(channel, credentials.clone())
            .await
            .map_err(|error| self.login_error(error, &credentials))
    }

    async fn open(&self, offer: EndpointOffer, name: &str) -> Result<(Channel, Arc<Credentials>), ConnectError> {
        let credentials = Arc::new(self.credentials(offer, name).await?);
        let channel = self.channel(&credentials).await?;
        Ok((channel, credentials))
    }

    /// Handles a failure with a certificate that was only assumed to be the server's. If it belongs to another server,
    /// or the server has a new one, no attempt with it can succeed and no error says why; so the server is asked for
    /// its certificate.
    async fn open_as_shown(
        &self,
        assumed: &EndpointOffer,
        failed: ConnectError,
        name: &str,
    ) -> Result<(Channel, Arc<Credentials>), ConnectError> {
        let offers = discover(&self.config.endpoint).await.map_err(|error| ConnectError {
            text: format!("{failed}; cannot query whether the certificate in trusted/ is this server's: {error}"),
            ..failed.clone()
        })?;
        let shown = self.direct_offer_of(&offers)?;
        if leaf_certificate(&shown.certificate) == leaf_certificate(&assumed.certificate) {
            return Err(failed);
        }
        self.open(shown, name).await
    }

    /// Reactivates the previous session on a new channel, otherwise opens a new one. Returns true if it is the previous
    /// session, which is forgotten when it cannot be resumed.
    pub async fn resume(&self, previous: &mut Option<Session>, name: &str) -> Result<(Session, bool), ConnectError> {
        if let Some(old) = previous.as_ref() {
            // A session may outlive the trust in the server's certificate.
            if let Err(error) = self.check_again(&old.credentials().offer).await {
                *previous = None;
                return Err(error);
            }
            match self.channel(old.credentials()).await {
                Ok(channel) => match old.reactivate(channel).await {
                    Ok(session) => return Ok((session, true)),
                    // The server has forgotten the session, or disconnects clients that ask for it: a new one is
                    // needed.
                    Err(LoginError::Call(_) | LoginError::Proof(_)) => *previous = None,
                },
                Err(error) if error.unreachable => return Err(error),
                // The server's certificate may have changed, for example; discovery and trust decide about that.
                Err(_) => *previous = None,
            }
        }
        Ok((self.connect(name).await?, false))
    }

    async fn check_again(&self, offer: &EndpointOffer) -> Result<(), ConnectError> {
        match offer.policy {
            SecurityPolicy::None => Ok(()),
            _ => self.judge(offer, Trust::check_again).await,
        }
    }

    /// Runs on a blocking thread: files are read, and a revocation list may be long.
    async fn judge(
        &self,
        offer: &EndpointOffer,
        judge: fn(&Trust, &ServerCertificate) -> Result<(), String>,
    ) -> Result<(), ConnectError> {
        let shown = ServerCertificate {
            chain: offer.certificate.clone(),
            url: offer.url.clone(),
            host: self.config.endpoint.host.clone(),
            application_uri: offer.application_uri.clone(),
            policy: offer.policy,
        };
        let trust = self.trust.clone();
        let judged = aside(move || judge(&trust, &shown)).await;
        let failed = || Err("the server's certificate could not be checked".to_owned());
        judged.unwrap_or_else(failed).map_err(ConnectError::new)
    }

    async fn trusted_certificate(&self) -> Option<Vec<u8>> {
        let (trust, host) = (self.trust.clone(), self.config.endpoint.host.clone());
        aside(move || trust.certificate_of(&host)).await.flatten()
    }

    async fn remembered_certificate(&self) -> Option<Vec<u8>> {
        let (trust, url) = (self.trust.clone(), self.config.endpoint.to_string());
        aside(move || trust.remembered_certificate_of(&url)).await.flatten()
    }

    /// Opens a channel for an existing session, with the same security as its first one.
    pub async fn channel(&self, credentials: &Credentials) -> Result<Channel, ConnectError> {
        let opened = Channel::open(&credentials.offer.url, &credentials.security).await;
        opened.map_err(|error| self.open_error(error, credentials))
    }

    /// Returns the endpoint to use, by discovery unless that is disabled or fails.
    async fn offer(&self) -> Result<EndpointOffer, ConnectError> {
        let config = &self.config;
        let unsecured = config.security.is_none();
        if config.direct_connect {
            return match unsecured {
                true => Ok(self.unsecured_direct_offer()),
                false => self.secured_direct_offer().await,
            };
        }
        let offers = match discover(&config.endpoint).await {
            Ok(offers) => offers,
            // An unreachable server stays unreachable; one that only refuses discovery may still accept a session.
            Err(ChannelOpenError::Call(error)) => return self.offer_without_discovery(&error).await,
            Err(error) => return Err(open_error(&error)),
        };
        let offer = choose(&offers, &config.security, &config.identity).map_err(ConnectError::new)?;
        if unsecured {
            self.warn_of_no_security(Some(&offers));
        }
        Ok(offer.clone())
    }

    /// Returns the endpoint as configured, if everything discovery would provide is known without it.
    async fn offer_without_discovery(&self, error: &CallError) -> Result<EndpointOffer, ConnectError> {
        let config = &self.config;
        let offer = if config.security.is_none() {
            self.unsecured_direct_offer()
        } else {
            let known = match self.trusted_certificate().await {
                None => self.remembered_certificate().await,
                trusted => trusted,
            };
            known.and_then(|certificate| self.direct_offer_to(certificate)).ok_or_else(|| {
                ConnectError::new(format!(
                    "discovery failed ({error}), and {} cannot be opened directly with security: that takes securityPolicy, and the server's certificate as the only one in trusted/ of the trustFolder, or remembered from an earlier connection",
                    config.endpoint
                ))
            })?
        };
        tracing::warn!(endpoint = %config.endpoint, "discovery failed ({error}); the endpoint is opened directly");
        Ok(offer)
    }

    /// Returns a secured endpoint of a server with a known certificate; `None` without a policy, which only the
    /// server's list could provide.
    fn direct_offer_to(&self, certificate: Vec<u8>) -> Option<EndpointOffer> {
        let config = &self.config;
        let PolicyChoice(policy) = config.security.policy?;
        let mode = config.security.mode.unwrap_or(MessageSecurityMode::SignAndEncrypt);
        Some(EndpointOffer {
            // The server is not asked for its application URI, so the one in the certificate is used.
            application_uri: application_uri_of(&certificate).unwrap_or_default(),
            certificate,
            ..EndpointOffer::assumed(config.endpoint.to_string(), mode, policy)
        })
    }

    fn unsecured_direct_offer(&self) -> EndpointOffer {
        self.warn_of_no_security(None);
        EndpointOffer::assumed(
            self.config.endpoint.to_string(),
            MessageSecurityMode::None,
            SecurityPolicy::None,
        )
    }

    /// A secured connection needs the server's certificate first. If the trust folder contains it, the server is not
    /// asked; otherwise it is asked only for that.
    async fn secured_direct_offer(&self) -> Result<EndpointOffer, ConnectError> {
        let trusted = self.trusted_certificate().await;
        if let Some(offer) = trusted.and_then(|certificate| self.direct_offer_to(certificate)) {
            return Ok(offer);
        }
        let offers = discover(&self.config.endpoint).await.map_err(|error| {
            let mut failed = open_error(&error);
            failed.text = format!(
                "cannot query the server's certificate, which directConnect needs: {}; or put it into trusted/ of the trustFolder",
                failed.text
            );
            failed
        })?;
        self.direct_offer_of(&offers)
    }

    fn direct_offer_of(&self, offers: &[EndpointOffer]) -> Result<EndpointOffer, ConnectError> {
        let config = &self.config;
        let url = config.endpoint.to_string();
        as_given(offers, url, &config.security, &config.identity).map_err(ConnectError::new)
    }

    /// Warns once per component. `None` if no offers were requested.
    fn warn_of_no_security(&self, offers: Option<&[EndpointOffer]>) {
        if !self.warned_of_no_security.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                endpoint = %self.config.endpoint,
                "the connection is not encrypted, {}",
                advice(offers, &self.config.identity)
            );
        }
    }

    async fn credentials(&self, offer: EndpointOffer, name: &str) -> Result<Credentials, ConnectError> {
        let secured = offer.policy != SecurityPolicy::None;
        let announced = leaf_certificate(&offer.certificate);
        let server_certificate = announced.as_deref().and_then(|der| X509::from_der(der).ok());
        let mut security = ChannelSecurity::none();
        let mut application_uri = self.certificates.application_uri_if_known();
        if secured {
            let url = &offer.url;
            if announced.is_none() {
                let text =
                    format!("the endpoint {url} shows no certificate, so it cannot be secured; check the server");
                return Err(ConnectError::new(text));
            }
            let certificate = server_certificate.clone().ok_or_else(|| {
                ConnectError::new(format!(
                    "the certificate of endpoint {url} cannot be read; check the server"
                ))
            })?;
            self.judge(&offer, Trust::check).await?;
            let own = self
                .certificates
                .for_policy(offer.policy)
                .await
                .map_err(ConnectError::new)?;
            application_uri = own.application_uri;
            security = ChannelSecurity {
                mode: offer.mode,
                policy: offer.policy,
                own: Some((own.pair.certificate, own.pair.key)),
                server_certificate: Some(certificate),
            };
        }
        Ok(Credentials {
            offer,
            security,
            server_certificate,
            choice: self.config.security,
            identity: self.config.identity.clone(),
            application_uri,
            session_name: name.to_owned(),
            session_timeout: self.config.session_timeout,
        })
    }

    fn open_error(&self, error: ChannelOpenError, credentials: &Credentials) -> ConnectError {
        let status = error.status().unwrap_or(0);
        match self.untrusted_by_server(status, &error.to_string(), credentials) {
            Some(text) => ConnectError::new(text),
            None => open_error(&error),
        }
    }

    fn login_error(&self, error: LoginError, credentials: &Credentials) -> ConnectError {
        let Some(status) = error.status() else {
            return ConnectError::new(error.to_string());
        };
        if let Some(text) = self.untrusted_by_server(status, &error.to_string(), credentials) {
            return ConnectError::new(text);
        }
        let reason = status::text(status);
        let text = match StatusCode::from(status) {
            StatusCode::BadUserAccessDenied
            | StatusCode::BadIdentityTokenRejected
            | StatusCode::BadIdentityTokenInvalid => match &self.config.identity {
                Identity::User { name, .. } => {
                    format!("the server refused the login of user \"{name}\" ({reason}); check username and password")
                }
                Identity::Certificate(_) => format!(
                    "the server refused the login by certificate ({reason}); check userCertificate, and that the server trusts it"
                ),
                Identity::Anonymous => {
                    format!("the server refused an anonymous login ({reason}); set username and password")
                }
            },
            StatusCode::BadTooManySessions => {
                format!("the server has no session left ({reason}); close other clients or raise its limit")
            }
            _ => format!("the server refused the session: {reason}"),
        };
        ConnectError {
            text,
            wait: status::says_wait(status),
            unreachable: false,
        }
    }

    /// Explains refusals that mean that the server's operator must accept our certificate.
    fn untrusted_by_server(&self, status: u32, text: &str, credentials: &Credentials) -> Option<String> {
        const CODES: [StatusCode; 4] = [
            StatusCode::BadSecurityChecksFailed,
            StatusCode::BadCertificateUntrusted,
            StatusCode::BadCertificateInvalid,
            StatusCode::BadCertificateUriInvalid,
        ];
        let (certificate, _) = credentials.security.own.as_ref()?;
        let named = CODES
            .iter()
            .any(|code| code.bits() == status || text.contains(&format!("(0x{:X})", code.bits())));
        named.then(|| {
            format!(
                "the server does not accept Thalweg's certificate {} ({}); trust it on the server: {text}",
                crate::security::sha256_hex(certificate.as_byte_string().as_ref()),
                credentials.application_uri,
            )
        })
    }
}

/// Runs work that waits for disks on a blocking thread, with the current logging context. `None` if it panics.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let span = tracing::Span::current();
    let work = move || tracing::dispatcher::with_default(&dispatch, || span.in_scope(work));
    blocking::spawn(work).await.ok()
}

fn open_error(error: &ChannelOpenError) -> ConnectError {
    let unreachable = matches!(
        error,
        ChannelOpenError::Unreachable { .. } | ChannelOpenError::UnknownHost { .. }
    );
    ConnectError {
        unreachable,
        ..ConnectError::new(error.to_string())
    }
}

/// Returns the endpoints that a server announces, with the host and port that the user configured.
async fn discover(url: &EndpointUrl) -> Result<Vec<EndpointOffer>, ChannelOpenError> {
    let mut endpoints = get_endpoints(url).await?;
    if let [only] = endpoints.as_slice() {
        let named = only
            .server
            .discovery_urls
            .iter()
            .flatten()
            .find(|named| !named.is_empty());
        let named = named
            .map(|named| url.with_path_of(named.as_ref()))
            .filter(|named| named != url);
        // A discovery server returns one endpoint of another server; if that does not respond, this one must suffice.
        if let Some(named) = named
            && let Ok(found) = get_endpoints(&named).await
            && !found.is_empty()
        {
            endpoints = found;
        }
    }
    let offers = endpoints.iter().map(|endpoint| {
        let offer = EndpointOffer::from(endpoint);
        EndpointOffer {
            url: url.with_path_of(&offer.url).to_string(),
            ..offer
        }
    });
    Ok(offers.collect())
}

async fn get_endpoints(url: &EndpointUrl) -> Result<Vec<EndpointDescription>, ChannelOpenError> {
    let text = url.to_string();
    let channel = Channel::open(&text, &ChannelSecurity::none()).await?;
    let request = GetEndpointsRequest {
        request_header: Default::default(),
        endpoint_url: UAString::from(text),
        locale_ids: None,
        profile_uris: None,
    };
    let response = channel.call(&NodeId::null(), request, REQUEST_TIMEOUT).await?;
    channel
        .post(
            &NodeId::null(),
            opcua::types::CloseSecureChannelRequest {
                request_header: Default::default(),
            },
        )
        .await;
    let status = response.response_header.service_result.bits();
    if status::is_bad(status) {
        return Err(CallError::Refused(status).into());
    }
    let mut endpoints = response.endpoints.unwrap_or_default();
    endpoints.retain(is_binary);
    Ok(endpoints)
}

#[cfg(test)]
mod tests;
