//! Certificates and private keys in PEM files, for servers and for clients. Every mistake in such a file has one
//! sentence, whoever reads the file.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error, RootCertStore};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemFileError {
    #[error("cannot read {content} in {path}: {error}")]
    Unreadable {
        content: &'static str,
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{path} is not a PEM file: {error}")]
    NotPem { path: PathBuf, error: pem::Error },
    #[error("{path} holds no certificate in PEM form")]
    NoCertificate { path: PathBuf },
    #[error("{path} holds no private key in PEM form: {error}")]
    NoPrivateKey { path: PathBuf, error: pem::Error },
    #[error("{path} cannot be trusted: {error}")]
    Untrusted { path: PathBuf, error: Error },
}

/// Reads at least one certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemFileError> {
    let found: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read("the certificates", path)?)
        .collect::<Result<_, _>>()
        .map_err(|error| PemFileError::NotPem {
            path: path.to_owned(),
            error,
        })?;
    match found.is_empty() {
        true => Err(PemFileError::NoCertificate { path: path.to_owned() }),
        false => Ok(found),
    }
}

/// Reads at least one certificate, and trusts each as an authority.
pub fn authorities(path: &Path) -> Result<RootCertStore, PemFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| PemFileError::Untrusted {
            path: path.to_owned(),
            error,
        })?;
    }
    Ok(roots)
}

/// Reads the first private key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemFileError> {
    PrivateKeyDer::from_pem_slice(&read("the private key", path)?).map_err(|error| PemFileError::NoPrivateKey {
        path: path.to_owned(),
        error,
    })
}

/// The certificates of a text in PEM form, at least one. The error says what is wrong with the text.
pub fn certificates_of_text(text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<CertificateDer<'static>>, pem::Error> =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if found.is_empty() => Err("the text holds no certificate in PEM form".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("the text is not in PEM form: {error}")),
    }
}

/// The first private key of a text in PEM form. The error says what is wrong with the text.
pub fn private_key_of_text(text: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| format!("the text holds no private key in PEM form: {error}"))
}

fn read(content: &'static str, path: &Path) -> Result<Vec<u8>, PemFileError> {
    std::fs::read(path).map_err(|error| PemFileError::Unreadable {
        content,
        path: path.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_in_a_file_names_the_file_and_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pem");
        let shown = path.display().to_string();
        let cut = "-----BEGIN CERTIFICATE-----\nMIIB\n";
        let no_authority = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        let told = |text: Option<&str>| {
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            let certificates = certificates(&path).map(drop).map_err(|error| error.to_string());
            let authorities = authorities(&path).map(drop).map_err(|error| error.to_string());
            let key = private_key(&path).map(drop).map_err(|error| error.to_string());
            [certificates, authorities, key]
        };
        let [certificates, authorities, key] = told(None).map(Result::unwrap_err);
        assert!(
            certificates.starts_with(&format!("cannot read the certificates in {shown}: ")),
            "{certificates}"
        );
        assert_eq!(authorities, certificates);
        assert!(
            key.starts_with(&format!("cannot read the private key in {shown}: ")),
            "{key}"
        );
        let [certificates, _, key] = told(Some("no PEM")).map(Result::unwrap_err);
        assert_eq!(certificates, format!("{shown} holds no certificate in PEM form"));
        assert!(
            key.starts_with(&format!("{shown} holds no private key in PEM form: ")),
            "{key}"
        );
        let [certificates, ..] = told(Some(cut));
        let certificates = certificates.unwrap_err();
        assert!(
            certificates.starts_with(&format!("{shown} is not a PEM file: ")),
            "{certificates}"
        );
        let [certificates, authorities, _] = told(Some(no_authority));
        assert_eq!(certificates, Ok(()));
        let authorities = authorities.unwrap_err();
        assert!(
            authorities.starts_with(&format!("{shown} cannot be trusted: ")),
            "{authorities}"
        );
    }
}
