//! Whether a server's certificate is trusted: by fingerprint, by trust folder, by both if both are set, and by first use
//! if neither is.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use opcua::crypto::SecurityPolicy;

use super::fingerprint::Fingerprint;
use super::pins::Pins;
use super::policy_rules::check_key;
use super::trust_folder::{CertificateCheck, SENT_MAX, TrustFolder};
use super::x509::{self, ParsedCertificate};

/// A certificate has one or two kilobytes. What is larger is not read, and kept nowhere.
const CERTIFICATE_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Trust {
    fingerprint: Option<Fingerprint>,
    folder: Option<TrustFolder>,
    pins: Pins,
}

/// What an endpoint shows, and what it is judged by.
#[derive(Clone, Debug)]
pub(crate) struct ServerCertificate {
    /// The server's own certificate, perhaps with issuers behind it.
    pub chain: Vec<u8>,
    pub url: String,
    /// As it is configured, whatever the server calls itself.
    pub host: String,
    pub application_uri: String,
    /// Of the channel to be opened.
    pub policy: SecurityPolicy,
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

    /// Reads files. The error is one sentence.
    pub fn check(&self, shown: &ServerCertificate) -> Result<(), String> {
        let leaf = self.judge(shown)?;
        match self.is_by_first_use() {
            true => self.pins.check(&shown.url, &leaf),
            false => Ok(()),
        }
    }

    /// The same for what was accepted before, when an earlier session is to be gone on with. Remembers nothing: if the
    /// operator has removed the memory for a new certificate, the old one must not get into its place.
    pub fn check_again(&self, shown: &ServerCertificate) -> Result<(), String> {
        let leaf = self.judge(shown)?;
        match self.is_by_first_use() {
            true => self.pins.check_again(&shown.url, &leaf),
            false => Ok(()),
        }
    }

    /// By fingerprint and folder, as far as they are set; the server's own certificate. What is refused is kept in the folder,
    /// whoever refuses it, but for what is larger than any certificate.
    fn judge(&self, shown: &ServerCertificate) -> Result<Vec<u8>, String> {
        let url = &shown.url;
        let certificates = x509::first_certificates(&shown.chain, 1 + SENT_MAX);
        let leaf = certificates
            .first()
            .ok_or_else(|| format!("the endpoint {url} shows no certificate"))?;
        if leaf.len() > CERTIFICATE_BYTES_MAX {
            return Err(format!(
                "the certificate of the endpoint {url} has {} bytes, and at most {CERTIFICATE_BYTES_MAX} are read; check the server",
                leaf.len()
            ));
        }
        let verdict = self.judge_leaf(shown, &certificates, leaf);
        match &self.folder {
            Some(folder) => verdict.map_err(|why| folder.keep_rejected(leaf, why))?,
            None => verdict?,
        }
        Ok(leaf.clone())
    }

    fn judge_leaf(&self, shown: &ServerCertificate, certificates: &[Vec<u8>], leaf: &[u8]) -> Result<(), String> {
        let url = &shown.url;
        if let Some(fingerprint) = &self.fingerprint {
            fingerprint.check(leaf).map_err(|(expected, got)| {
                format!("fingerprint mismatch for endpoint {url}: expected {expected}, got {got}")
            })?;
        }
        // Before the folder, whose refusal would have it moved to trusted/ in vain.
        check_key(
            shown.policy,
            "the server's certificate",
            ParsedCertificate::from_der(leaf)?.key_bits(),
        )?;
        if let Some(folder) = &self.folder {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            folder.check(&CertificateCheck {
                certificates,
                url,
                host: &shown.host,
                application_uri: &shown.application_uri,
                policy: shown.policy,
                now,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
