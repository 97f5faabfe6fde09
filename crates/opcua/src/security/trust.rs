//! Whether a server's certificate is trusted: by fingerprint, by trust folder, by both if both are set, and by first use
//! if neither is.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::fingerprint::Fingerprint;
use super::pins::Pins;
use super::trust_folder::{Check, TrustFolder};
use super::x509;

pub(crate) struct Trust {
    fingerprint: Option<Fingerprint>,
    folder: Option<TrustFolder>,
    pins: Pins,
}

impl Trust {
    /// `keys` is the data folder's.
    pub fn new(fingerprint: Option<Fingerprint>, folder: Option<&Path>, keys: &Path) -> Trust {
        Trust {
            fingerprint,
            folder: folder.map(TrustFolder::new),
            pins: Pins::new(keys),
        }
    }

    /// The certificate of a server that is trusted by itself, without asking the server for it.
    pub fn certificate_of(&self, host: &str) -> Option<Vec<u8>> {
        self.folder.as_ref()?.certificate_of(host)
    }

    /// The certificate that a server showed before, where that is what it is trusted for.
    pub fn remembered_certificate_of(&self, url: &str) -> Option<Vec<u8>> {
        match self.is_by_first_use() {
            true => self.pins.certificate_of(url),
            false => None,
        }
    }

    fn is_by_first_use(&self) -> bool {
        self.fingerprint.is_none() && self.folder.is_none()
    }

    /// `chain` is what the endpoint announces: its certificate, perhaps with issuers. The error is one sentence.
    pub fn check(&self, chain: &[u8], url: &str, host: &str, application_uri: &str) -> Result<(), String> {
        let leaf = self.judge(chain, url, host, application_uri)?;
        match self.is_by_first_use() {
            true => self.pins.check(url, &leaf),
            false => Ok(()),
        }
    }

    /// The same for what was accepted before, when an earlier session is to be gone on with. Remembers nothing: if the
    /// operator has removed the memory for a new certificate, the old one must not get into its place.
    pub fn check_again(&self, chain: &[u8], url: &str, host: &str, application_uri: &str) -> Result<(), String> {
        let leaf = self.judge(chain, url, host, application_uri)?;
        match self.is_by_first_use() {
            true => self.pins.check_again(url, &leaf),
            false => Ok(()),
        }
    }

    /// By fingerprint and folder, as far as they are set; the server's own certificate.
    fn judge(&self, chain: &[u8], url: &str, host: &str, application_uri: &str) -> Result<Vec<u8>, String> {
        let certificates = x509::certificates(chain);
        let leaf = certificates
            .first()
            .ok_or_else(|| format!("the endpoint {url} shows no certificate"))?;
        if let Some(fingerprint) = &self.fingerprint {
            fingerprint.check(leaf).map_err(|(expected, got)| {
                format!("fingerprint mismatch for endpoint {url}: expected {expected}, got {got}")
            })?;
        }
        if let Some(folder) = &self.folder {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            folder.check(&Check {
                certificates: &certificates,
                url,
                host,
                application_uri,
                now,
            })?;
        }
        Ok(leaf.clone())
    }
}

#[cfg(test)]
mod tests;
