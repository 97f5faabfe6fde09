//! Why the listener did not start, in one sentence with the cure.

use thalweg_http::ProtectionError;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "cannot listen on {address}: the port is taken by another process; stop it or set {section}.address to another port"
    )]
    Taken { section: &'static str, address: String },
    #[error(
        "cannot listen on {address}: the system keeps this port for privileged processes; set {section}.address to a port above 1023"
    )]
    Forbidden { section: &'static str, address: String },
    #[error(
        "cannot listen on {address}: this machine has no such address; set {section}.address to 127.0.0.1:{port}, or to 0.0.0.0:{port} for all its addresses", port = port_of(.address)
    )]
    NoSuchAddress { section: &'static str, address: String },
    #[error("cannot listen on {address}: {error}; set {section}.address to host:port, for example 127.0.0.1:{port}", port = port_of(.address))]
    Listen {
        section: &'static str,
        address: String,
        error: std::io::Error,
    },
    #[error("{text}")]
    Exposed { text: String },
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    #[error("{setting}: {origin:?} is not an origin; write it like https://example.org, or * for all")]
    Origin { setting: String, origin: String },
    #[error("http.root_path: \"{path}\" cannot be used; choose a plain path such as /benthos")]
    RootPath { path: String },
    #[error("the path {path} is already served by Thalweg or by another component; choose another one")]
    PathTaken { path: String },
    #[error("two components serve the same path: {problem}")]
    PathsClash { problem: String },
}

fn port_of(address: &str) -> &str {
    address.rsplit_once(':').map_or("4195", |(_, port)| port)
}
