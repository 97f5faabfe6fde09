//! An additional address beside that of `http`, with its own TLS.

use std::path::PathBuf;

use super::http::{CorsConfig, is_address, max_connections, tls_files};
use crate::fields::Fields;
use crate::node::Node;

/// Address and TLS of a listener.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Its configuration path, such as `ingest.otlp.grpc`.
    pub section: &'static str,
    pub enabled: bool,
    /// `host:port`.
    pub address: String,
    /// Both files or neither.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Allows an address beyond loopback without TLS and authentication.
    pub insecure: bool,
    /// Maximum open connections.
    pub max_connections: usize,
    /// Which web pages of other origins may send requests; `None` if the protocol is not one that pages can speak.
    pub cors: Option<CorsConfig>,
}

impl ListenerConfig {
    /// Reads a listener whose protocol web pages can speak.
    pub fn read_for_pages(section: &'static str, mut f: Fields<'_>, usual: &str) -> ListenerConfig {
        let cors = CorsConfig::read(f.fields("cors"));
        ListenerConfig {
            cors: Some(cors),
            ..ListenerConfig::read(section, f, usual)
        }
    }

    pub fn read(section: &'static str, mut f: Fields<'_>, usual: &str) -> ListenerConfig {
        let enabled = f.bool("enabled", true);
        let address = f.string("address", usual);
        if !is_address(&address) {
            let got = f.mapping().get("address").map(Node::describe).unwrap_or_default();
            f.error("address", format!("expected host:port such as {usual}, got {got}"));
        }
        let (cert_file, key_file) = tls_files(&mut f);
        let insecure = f.bool("insecure", false);
        let max_connections = max_connections(&mut f);
        f.finish();
        ListenerConfig {
            section,
            enabled,
            address,
            cert_file,
            key_file,
            insecure,
            max_connections,
            cors: None,
        }
    }
}
