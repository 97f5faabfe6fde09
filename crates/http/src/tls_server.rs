//! TLS of a listener: loads PEM files into an acceptor. The files are checked for changes, and reloaded on request, so
//! a renewed certificate needs no restart; an invalid one leaves the old one in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_config::{HttpConfig, ListenerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use crate::file_watch::FileWatch;
use crate::pem;
use crate::protection_error::ProtectionError;

/// Where the certificate of a listener is, and whose clients may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, followed by its chain.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Each client needs one of these certificates, or one signed by them; `None`: everybody may connect.
    pub client_ca: Option<PathBuf>,
    pub names: TlsNames,
}

/// The names of the settings for the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsNames {
    pub cert: &'static str,
    pub key: &'static str,
    pub client_ca: &'static str,
}

impl TlsNames {
    const OF_HTTP: TlsNames = TlsNames {
        cert: "http.cert_file",
        key: "http.key_file",
        client_ca: "http.client_ca_file",
    };
    /// Within the section of the listener.
    const OF_LISTENER: TlsNames = TlsNames {
        cert: "cert_file",
        key: "key_file",
        client_ca: "client_ca_file",
    };
}

/// The TLS of a listener, as its files are now.
pub struct ServerTls {
    files: TlsFiles,
    current: Mutex<LoadedTls>,
}

struct LoadedTls {
    acceptor: TlsAcceptor,
    watch: FileWatch,
}

impl ServerTls {
    /// TLS of the section `http`; `None` if the configuration asks for plain HTTP. Reads the files.
    pub fn of_http(config: &HttpConfig) -> Result<Option<ServerTls>, ProtectionError> {
        ServerTls::of_pair(&config.cert_file, &config.key_file, TlsNames::OF_HTTP)
    }

    /// TLS of another listener; `None` if the configuration asks for none. Reads the files.
    pub fn of_listener(config: &ListenerConfig) -> Result<Option<ServerTls>, ProtectionError> {
        ServerTls::of_pair(&config.cert_file, &config.key_file, TlsNames::OF_LISTENER)
    }

    fn of_pair(
        cert: &Option<PathBuf>,
        key: &Option<PathBuf>,
        names: TlsNames,
    ) -> Result<Option<ServerTls>, ProtectionError> {
        let (Some(cert), Some(key)) = (cert.clone(), key.clone()) else {
            return Ok(None);
        };
        let client_ca = None;
        let files = TlsFiles {
            cert,
            key,
            client_ca,
            names,
        };
        ServerTls::open(files).map(Some)
    }

    /// TLS 1.2 and later. Reads the files.
    pub fn open(files: TlsFiles) -> Result<ServerTls, ProtectionError> {
        let all = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        let watch = FileWatch::new(all.into_iter().flatten().cloned().collect());
        let acceptor = acceptor(&files)?;
        Ok(ServerTls {
            files,
            current: Mutex::new(LoadedTls { acceptor, watch }),
        })
    }

    /// Reads the files again, whether they have changed or not. After an error the previous state stays in force.
    pub fn reload(&self) -> Result<(), ProtectionError> {
        let acceptor = acceptor(&self.files)?;
        self.current.lock().acceptor = acceptor;
        Ok(())
    }

    /// For the next connection. Reads the files again if they have changed, which is checked at most once per second.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if current.watch.changed() {
            match acceptor(&self.files) {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(file = %self.files.cert.display(), "the HTTP listener uses the changed certificate");
                }
                Err(error) => tracing::warn!(%error, "the HTTP listener keeps its old certificate"),
            }
        }
        current.acceptor.clone()
    }
}

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ProtectionError> {
    let names = files.names;
    let both = format!("{}, {}", names.cert, names.key);
    let problem = |problem| ProtectionError::Tls {
        keys: both.clone(),
        problem,
    };
    let certificates =
        pem::certificates(&files.cert).map_err(|error| ProtectionError::of_pem_file(names.cert, names.cert, error))?;
    let key = pem::private_key(&files.key).map_err(|error| ProtectionError::of_pem_file(names.key, &both, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(client_verifier(names.client_ca, path)?),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| problem(format!("the certificate and the key cannot be used together: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn client_verifier(name: &'static str, path: &Path) -> Result<Arc<dyn ClientCertVerifier>, ProtectionError> {
    let roots = pem::authorities(path).map_err(|error| ProtectionError::of_pem_file(name, name, error))?;
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(aws_lc_rs::default_provider()))
        .build()
        .map_err(|error| ProtectionError::Tls {
            keys: name.to_owned(),
            problem: format!("{} cannot be used for clients: {error}", path.display()),
        })
}
