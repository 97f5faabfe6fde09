//! TLS from `http.cert_file` and `http.key_file`: PEM in, an acceptor out. The files are looked at again as they change,
//! so a renewed certificate needs no restart; one that cannot be used leaves the old one in place.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_config::HttpConfig;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::StartError;
use crate::auth::watch::Watch;

pub struct Tls {
    cert_file: PathBuf,
    key_file: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    watch: Watch,
}

impl Tls {
    /// `None` when the configuration asks for plain HTTP.
    pub fn load(http: &HttpConfig) -> Result<Option<Tls>, StartError> {
        let (Some(cert_file), Some(key_file)) = (http.cert_file.clone(), http.key_file.clone()) else {
            return Ok(None);
        };
        let watch = Watch::new(vec![cert_file.clone(), key_file.clone()]);
        let acceptor = acceptor(&cert_file, &key_file)?;
        Ok(Some(Tls {
            cert_file,
            key_file,
            current: Mutex::new(Current { acceptor, watch }),
        }))
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if current.watch.changed() {
            match acceptor(&self.cert_file, &self.key_file) {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(file = %self.cert_file.display(), "the HTTP listener uses the changed certificate");
                }
                Err(error) => tracing::warn!(%error, "the HTTP listener keeps its old certificate"),
            }
        }
        current.acceptor.clone()
    }
}

fn acceptor(cert_file: &PathBuf, key_file: &PathBuf) -> Result<TlsAcceptor, StartError> {
    let problem = |problem: String| StartError::Tls { problem };
    let read = |key, path: &PathBuf| {
        std::fs::read(path).map_err(|error| StartError::Unreadable {
            key,
            path: path.clone(),
            error,
        })
    };
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(&read("http.cert_file", cert_file)?)
            .collect::<Result<_, _>>()
            .map_err(|error| problem(format!("{} is no PEM file: {error}", cert_file.display())))?;
    if certificates.is_empty() {
        return Err(problem(format!(
            "{} holds no certificate in PEM form",
            cert_file.display()
        )));
    }
    let key = PrivateKeyDer::from_pem_slice(&read("http.key_file", key_file)?).map_err(|error| {
        problem(format!(
            "{} holds no private key in PEM form: {error}",
            key_file.display()
        ))
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|error| problem(format!("the certificate and the key cannot be used together: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
