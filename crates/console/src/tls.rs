//! TLS of a listener: loads PEM files into an acceptor. The files are checked for changes, and reloaded on request, so
//! a renewed certificate needs no restart; an invalid one leaves the old one in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_config::HttpConfig;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::StartError;
use crate::auth::watch::FileWatch;

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

pub struct Tls {
    files: TlsFiles,
    current: Mutex<LoadedTls>,
}

struct LoadedTls {
    acceptor: TlsAcceptor,
    watch: FileWatch,
}

impl Tls {
    /// `None` if the configuration asks for plain HTTP.
    pub(crate) fn load(http: &HttpConfig) -> Result<Option<Tls>, StartError> {
        let (Some(cert), Some(key)) = (http.cert_file.clone(), http.key_file.clone()) else {
            return Ok(None);
        };
        let names = TlsNames {
            cert: "http.cert_file",
            key: "http.key_file",
            client_ca: "http.client_ca_file",
        };
        let client_ca = None;
        let files = TlsFiles {
            cert,
            key,
            client_ca,
            names,
        };
        Tls::open(files).map(Some)
    }

    /// TLS 1.2 and later. Reads the files.
    pub fn open(files: TlsFiles) -> Result<Tls, StartError> {
        let all = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
        let watch = FileWatch::new(all.into_iter().flatten().cloned().collect());
        let acceptor = acceptor(&files)?;
        Ok(Tls {
            files,
            current: Mutex::new(LoadedTls { acceptor, watch }),
        })
    }

    /// Reads the files again, whether they have changed or not. After an error the previous state stays in force.
    pub fn reload(&self) -> Result<(), StartError> {
        let acceptor = acceptor(&self.files)?;
        self.current.lock().acceptor = acceptor;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
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

fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, StartError> {
    let problem = |problem| StartError::Tls {
        keys: format!("{}, {}", files.names.cert, files.names.key),
        problem,
    };
    let certificates = certificates(files.names.cert, &files.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&read(files.names.key, &files.key)?).map_err(|error| {
        problem(format!(
            "{} holds no private key in PEM form: {error}",
            files.key.display()
        ))
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| problem(error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(files.names.client_ca, path)?),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| problem(format!("the certificate and the key cannot be used together: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn verifier(name: &'static str, path: &Path) -> Result<Arc<dyn ClientCertVerifier>, StartError> {
    let problem = |problem| StartError::Tls {
        keys: name.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(name, path)? {
        let added = roots.add(certificate);
        added.map_err(|error| problem(format!("{} cannot be trusted: {error}", path.display())))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(aws_lc_rs::default_provider()))
        .build()
        .map_err(|error| problem(format!("{} cannot be used for clients: {error}", path.display())))
}

/// At least one.
fn certificates(name: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StartError> {
    let problem = |problem| StartError::Tls {
        keys: name.to_owned(),
        problem,
    };
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(name, path)?)
        .collect::<Result<_, _>>()
        .map_err(|error| problem(format!("{} is not a PEM file: {error}", path.display())))?;
    match found.is_empty() {
        true => Err(problem(format!("{} holds no certificate in PEM form", path.display()))),
        false => Ok(found),
    }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, StartError> {
    std::fs::read(path).map_err(|error| StartError::Unreadable {
        key,
        path: path.to_owned(),
        error,
    })
}
