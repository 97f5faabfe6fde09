//! Requests to a running process: address, token and trusted certificates. The callers interpret the answers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ureq::http::Response;
use ureq::{AsSendBody, Body};

/// The target of requests, and their timeouts.
pub struct HttpTarget<'t> {
    pub url: &'t str,
    pub token: Option<&'t str>,
    /// Certificates to trust in addition to the system's.
    pub ca_file: Option<&'t Path>,
    /// For each request and its answer; `None`: unlimited, once there is a connection.
    pub timeout: Option<Duration>,
    /// Until the answer begins; `None`: unlimited.
    pub answer: Option<Duration>,
}

/// Longer than connecting to any server takes.
const CONNECT: Duration = Duration::from_secs(20);

pub struct HttpClient {
    agent: ureq::Agent,
    base: String,
    authorization: Option<String>,
}

impl HttpClient {
    pub fn new(target: HttpTarget<'_>) -> Result<HttpClient> {
        let url = target.url.trim_end_matches('/');
        let encrypted = url.starts_with("https://");
        anyhow::ensure!(
            encrypted || url.starts_with("http://"),
            "--url {url}: expected http://host:port or https://host:port"
        );
        anyhow::ensure!(
            encrypted || target.ca_file.is_none(),
            "--ca-file is for https:// only, --url is {url}"
        );
        // The address is explicit, so HTTP_PROXY does not apply.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(target.timeout)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(target.answer)
            .proxy(None)
            .build();
        Ok(HttpClient {
            agent: match encrypted {
                true => thalweg_http::tls_client::agent(config, target.ca_file)?,
                false => config.into(),
            },
            base: url.to_owned(),
            authorization: target.token.map(|token| format!("Bearer {token}")),
        })
    }

    /// The address without a path.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Returns the response whatever its status is. `path` begins with a slash.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsSendBody,
    ) -> Result<Response<Body>> {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).context("the address or the token is invalid")?;
        self.agent.run(request).map_err(|error| self.no_answer(error))
    }

    fn no_answer(&self, error: ureq::Error) -> anyhow::Error {
        let base = &self.base;
        let about_tls = match &error {
            ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
            // The other side did not speak TLS, or its certificate is not trusted.
            ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        };
        let cure = match about_tls && base.starts_with("https:") {
            true => "name the certificate to trust with --ca-file, or use http:// if there is no TLS",
            false => "is thalweg running there?",
        };
        anyhow::Error::new(error).context(format!("cannot reach {base}; {cure}"))
    }
}

/// The token given directly, or from its file.
pub fn token(given: Option<&String>, file: Option<&PathBuf>) -> Result<Option<String>> {
    match (given, file) {
        (Some(token), _) => Ok(Some(token.clone())),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read the token in {}", file.display()))?;
            let token = text.trim();
            anyhow::ensure!(!token.is_empty(), "{} contains no token", file.display());
            Ok(Some(token.to_owned()))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_a_request_and_says_nothing_is_not_waited_for_without_end() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let http = HttpClient::new(HttpTarget {
            url: &url,
            token: None,
            ca_file: None,
            timeout: None,
            answer: Some(Duration::from_secs(1)),
        });
        let told = http.unwrap().send("GET", "/", &[], ()).unwrap_err();
        assert_eq!(
            told.to_string(),
            format!("cannot reach {url}; is thalweg running there?")
        );
        assert!(format!("{told:#}").contains("timeout"), "{told:#}");
    }
}
