//! Sends a query to the process that holds the lake, over its own connection: closing it cancels the query.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use axum::body::Body;
use axum::http::uri::{Authority, Scheme, Uri};
use axum::http::{Request, StatusCode, header};
use futures::StreamExt as _;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use thalweg_http::tls_client::client_config;
use thalweg_query::arrow_stream;
use thalweg_query::print::RowStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::session::SqlSource;
use crate::refusal::refusal;

/// Longer than connecting to a process takes, including the handshakes.
const CONNECT: Duration = Duration::from_secs(20);
/// Limit for an error, which is one sentence.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// A process that answers queries.
pub(super) struct SqlEndpoint {
    url: String,
    /// The process id, if the address was found in the folder that it holds.
    holder: Option<u64>,
}

impl fmt::Display for SqlEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.holder {
            Some(process) => write!(f, "process {process} at {}", self.url),
            None => write!(f, "the process at {}", self.url),
        }
    }
}

impl SqlEndpoint {
    pub fn at(url: &str, holder: Option<u64>) -> SqlEndpoint {
        SqlEndpoint {
            url: url.trim_end_matches('/').to_owned(),
            holder,
        }
    }

    /// Returns once the columns are known.
    pub async fn ask(&self, query: &str, source: &SqlSource) -> Result<RowStream> {
        let (authority, has_tls) = self.address()?;
        if source.ca_file.is_some() && !has_tls {
            bail!("--ca-file is for https:// only, and {self} is asked without TLS");
        }
        let connected = tokio::time::timeout(CONNECT, connect(&authority, has_tls, source.ca_file.as_deref()));
        let connected = connected.await.unwrap_or_else(|_| {
            let seconds = CONNECT.as_secs();
            Err(ConnectError::Unreachable(anyhow!(
                "there was no answer within {seconds} s"
            )))
        });
        let (mut sender, driver) = connected.map_err(|why| self.cannot_ask(why))?;
        let response = sender.send_request(request(&authority, query, source)?).await;
        let response = response.map_err(|error| self.cannot_ask(ConnectError::Unreachable(error.into())))?;
        let status = response.status();
        let body = Body::new(response.into_body());
        if !status.is_success() {
            let text = axum::body::to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
            bail!("{}", refused(&String::from_utf8_lossy(&text), status, source));
        }
        let bytes = body.into_data_stream().map(move |bytes| {
            let _driven_until_it_is_read = &driver;
            bytes.map_err(|error| error.to_string())
        });
        // Dropping the sender lets the connection end with the answer.
        Ok(arrow_stream::rows(bytes.boxed()).await?)
    }

    /// Host and port, and whether the connection uses TLS.
    fn address(&self) -> Result<(Authority, bool)> {
        let url = &self.url;
        let parsed: Option<Uri> = url.parse().ok();
        let parts = parsed.map(Uri::into_parts).unwrap_or_default();
        let has_tls = match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTP => Some(false),
            Some(scheme) if scheme == Scheme::HTTPS => Some(true),
            _ => None,
        };
        match (parts.authority, has_tls) {
            (Some(authority), Some(has_tls)) => Ok((authority, has_tls)),
            _ => bail!("--url {url}: expected http://host:port or https://host:port"),
        }
    }

    /// Adds a remedy to the error.
    fn cannot_ask(&self, why: ConnectError) -> Error {
        let (error, cure) = match why {
            ConnectError::Settings(error) => return error,
            ConnectError::NotTrusted(error) => (
                error,
                "name its certificate, or that of the authority that signed it, with --ca-file, and with --url the host that it is for",
            ),
            ConnectError::Unreachable(error) => (error, "name an address at which it answers with --url"),
        };
        let files = match self.holder {
            Some(_) => "; or read what it has committed to files, without its newest rows, with --committed",
            None => "",
        };
        error.context(format!("cannot reach {self}; {cure}{files}"))
    }
}

/// Why there is no connection.
enum ConnectError {
    /// This program cannot connect with these settings.
    Settings(Error),
    NotTrusted(Error),
    Unreachable(Error),
}

async fn connect(
    authority: &Authority,
    has_tls: bool,
    ca_file: Option<&Path>,
) -> Result<(SendRequest<Body>, Driver), ConnectError> {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(if has_tls { 443 } else { 80 });
    let unreachable = |error: std::io::Error| ConnectError::Unreachable(error.into());
    let stream = TcpStream::connect((host, port)).await.map_err(unreachable)?;
    if !has_tls {
        return speak(stream).await;
    }
    let config = client_config(ca_file).map_err(ConnectError::Settings)?;
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| ConnectError::Settings(anyhow!("no certificate can be for the host {host}")))?;
    match TlsConnector::from(config).connect(name, stream).await {
        Ok(stream) => speak(stream).await,
        // The peer does not speak TLS, or its certificate is not trusted.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(ConnectError::NotTrusted(error.into())),
        Err(error) => Err(unreachable(error)),
    }
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<(SendRequest<Body>, Driver), ConnectError> {
    let spoken = handshake(TokioIo::new(stream)).await;
    let (sender, connection) = spoken.map_err(|error| ConnectError::Unreachable(error.into()))?;
    let driver = Driver(tokio::spawn(async move {
        // The reader of the answer gets the error.
        let _ = connection.await;
    }));
    Ok((sender, driver))
}

fn request(authority: &Authority, query: &str, source: &SqlSource) -> Result<Request<Body>> {
    let mut asked = serde_json::json!({"sql": query, "format": "arrow"});
    if let Some(positions) = &source.wait_for {
        asked["wait_for"] = positions.as_str().into();
    }
    let mut request = Request::post(thalweg_query::http::PATH)
        .header(header::HOST, authority.as_str())
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = &source.token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::from(asked.to_string()));
    request.context("the token cannot be sent")
}

fn refused(body: &str, status: StatusCode, source: &SqlSource) -> String {
    let text = refusal(body, status.as_u16());
    match status == StatusCode::UNAUTHORIZED && source.token.is_none() && !text.contains("--token") {
        true => format!("{text}; give a token with --token-file"),
        false => text,
    }
}

/// Ends the connection when nobody reads from it any more.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
