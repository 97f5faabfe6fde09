//! Whether a server's certificate is trusted: by fingerprint, by trust folder, by both if both are set, and by first
//! use if neither is.

use std::path::Path;
use std::time::UNIX_EPOCH;

use opcua::crypto::SecurityPolicy;
use thalweg_kit::clock;

use super::fingerprint::Fingerprint;
use super::pins::Pins;
use super::policy_rules::check_key;
use super::trust_folder::{CertificateCheck, SENT_MAX, TrustFolder};
use super::x509::{self, ParsedCertificate};

/// A certificate has one or two kilobytes. Larger ones are neither read nor stored.
const CERTIFICATE_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Trust {
    fingerprint: Option<Fingerprint>,
    folder: Option<TrustFolder>,
    pins: Pins,
}

/// An endpoint's certificate, and the data to judge it by.
#[derive(Clone, Debug)]
pub(crate) struct ServerCertificate {
    /// The server's own certificate, possibly followed by issuers.
    pub chain: Vec<u8>,
    pub url: String,
    /// As configured, whatever the server calls itself.
    pub host: String,
    pub application_uri: String,
    /// The policy of the channel to be opened.
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

    /// Returns the certificate of a directly trusted server, without asking the server.
    pub fn certificate_of(&self, host: &str) -> Option<Vec<u8>> {
        self.folder.as_ref()?.certificate_of(host)
    }

    /// Returns the certificate that a server showed before, if trust is by first use.
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

    /// Checks a previously accepted certificate again, before an earlier session is resumed. Remembers nothing: if the
    /// operator has removed the record for a new certificate, the old one must not be recorded again.
    pub fn check_again(&self, shown: &ServerCertificate) -> Result<(), String> {
        let leaf = self.judge(shown)?;
        match self.is_by_first_use() {
            true => self.pins.check_again(&shown.url, &leaf),
            false => Ok(()),
        }
    }

    /// Checks by fingerprint and folder, as far as they are set; returns the server's own certificate. Rejected
    /// certificates are stored in the folder whatever the reason, unless they exceed the size of any certificate.
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
        // Before the folder's check, whose rejection would make the operator move it to trusted/ in vain.
        check_key(
            shown.policy,
            "the server's certificate",
            ParsedCertificate::from_der(leaf)?.key_bits(),
        )?;
        if let Some(folder) = &self.folder {
            let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
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
