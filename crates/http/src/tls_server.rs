//! TLS of a listener: loads PEM files into an acceptor. The files are checked for changes, and reloaded on request, so
//! a renewed certificate needs no restart; an invalid one leaves the old one in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_config::{HttpConfig, ListenerConfig};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::{self, Ticketer};
use tokio_rustls::rustls::pki_types::CertificateRevocationListDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
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

/// What differs from listener to listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsListener {
    /// As the log names it.
    pub name: &'static str,
    /// What is spoken within TLS (ALPN). A client that offers only others is refused, one that offers nothing is not.
    pub protocols: &'static [&'static [u8]],
    /// With `client_ca`: clients without a certificate are refused, too.
    pub needs_client_certificate: bool,
    /// Revocation lists in PEM, one of each authority that signs clients or other authorities. A certificate whose authority has
    /// none is refused. A list counts after its time, too, until the file changes.
    pub crl: Option<PathBuf>,
    /// Clients resume their sessions by tickets, so that no memory is needed for each.
    pub has_tickets: bool,
}

impl TlsListener {
    const HTTP: TlsListener = TlsListener {
        name: "the HTTP listener",
        protocols: &[b"h2", b"http/1.1"],
        needs_client_certificate: true,
        crl: None,
        has_tickets: false,
    };
}

/// The TLS of a listener, as its files are now.
pub struct ServerTls {
    files: TlsFiles,
    listener: TlsListener,
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

    /// TLS 1.2 and later, for HTTP. Reads the files.
    pub fn open(files: TlsFiles) -> Result<ServerTls, ProtectionError> {
        ServerTls::open_for(files, TlsListener::HTTP)
    }

    /// TLS 1.2 and later. Reads the files.
    pub fn open_for(files: TlsFiles, listener: TlsListener) -> Result<ServerTls, ProtectionError> {
        let all = [
            Some(&files.cert),
            Some(&files.key),
            files.client_ca.as_ref(),
            listener.crl.as_ref(),
        ];
        let watch = FileWatch::new(all.into_iter().flatten().cloned().collect());
        let acceptor = acceptor(&files, &listener)?;
        Ok(ServerTls {
            files,
            listener,
            current: Mutex::new(LoadedTls { acceptor, watch }),
        })
    }

    /// Reads the files again, whether they have changed or not. After an error the previous state stays in force.
    pub fn reload(&self) -> Result<(), ProtectionError> {
        let acceptor = acceptor(&self.files, &self.listener)?;
        self.current.lock().acceptor = acceptor;
        Ok(())
    }

    /// For the next connection. Reads the files again if they have changed, which is checked at most once per second.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if current.watch.changed() {
            let name = self.listener.name;
            match acceptor(&self.files, &self.listener) {
                Ok(acceptor) => {
                    current.acceptor = acceptor;
                    tracing::info!(file = %self.files.cert.display(), "{name} uses the changed certificate");
                }
                Err(error) => tracing::warn!(%error, "{name} keeps its old certificate"),
            }
        }
        current.acceptor.clone()
    }
}

fn acceptor(files: &TlsFiles, listener: &TlsListener) -> Result<TlsAcceptor, ProtectionError> {
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
        Some(path) => builder.with_client_cert_verifier(client_verifier(names.client_ca, path, listener)?),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| problem(format!("the certificate and the key cannot be used together: {error}")))?;
    config.alpn_protocols = listener.protocols.iter().map(|name| name.to_vec()).collect();
    if listener.has_tickets {
        // New keys with each change of the files: who was let in before is verified again.
        config.ticketer = Ticketer::new().map_err(|error| problem(error.to_string()))?;
    }
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn client_verifier(
    name: &'static str,
    path: &Path,
    listener: &TlsListener,
) -> Result<Arc<dyn ClientCertVerifier>, ProtectionError> {
    let roots = pem::authorities(path).map_err(|error| ProtectionError::of_pem_file(name, name, error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if !listener.needs_client_certificate {
        builder = builder.allow_unauthenticated();
    }
    let mut keys = name.to_owned();
    if let Some(crl) = &listener.crl {
        builder = builder.with_crls(revocation_lists(crl)?);
        keys.push_str(", ");
        keys.push_str(CRL);
    }
    builder.build().map_err(|error| ProtectionError::Tls {
        keys,
        problem: format!("{} cannot be used for clients: {error}", path.display()),
    })
}

/// The setting of the revocation lists, within the section of the listener.
const CRL: &str = "crl_file";

/// Reads at least one list.
fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, ProtectionError> {
    let text = std::fs::read(path).map_err(|error| ProtectionError::Unreadable {
        key: CRL,
        path: path.to_owned(),
        error,
    })?;
    let lists = CertificateRevocationListDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    let problem = match lists {
        Ok(lists) if !lists.is_empty() => return Ok(lists),
        Ok(_) => format!("{} holds no revocation list in PEM form", path.display()),
        Err(error) => format!("{} is not a PEM file: {error}", path.display()),
    };
    Err(ProtectionError::Tls {
        keys: CRL.to_owned(),
        problem,
    })
}
