//! A folder of certificates kept by the operator: `trusted/` (certificates or authorities), `issuers/` (authorities
//! that only complete chains), `crl/` (revocation lists), `rejected/` (rejected certificates of servers).
//!
//! The folder is read at every check, which happens once per connection, so a change takes effect at the next attempt.
//! An unreadable certificate file adds no trust. An unreadable revocation list would revoke nothing, so it makes every
//! server be rejected until it is repaired.

mod path_building;
mod path_validation;
mod revocation;

use std::path::{Path, PathBuf};
use std::time::Duration;

use opcua::crypto::SecurityPolicy;

pub(super) use self::path_building::SENT_MAX;
use self::path_building::{CertificatePool, PathCheckStage, PathSearchResult, Refusal};
use self::path_validation::{peculiarity, validate};
use self::revocation::{Revocation, RevocationList};
use super::durable_file::keep;
use super::sha256_hex;
use super::x509::{self, ParsedCertificate};

/// Larger files are not read, which the rejection of a server mentions.
const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;

/// The list of a large authority has hundreds of thousands of entries of about 40 bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Maximum certificates in `rejected/`; a server that keeps showing new ones must not fill the disk.
const REJECTED_MAX: usize = 1000;

pub(super) struct TrustFolder {
    path: PathBuf,
}

pub(super) struct CertificateCheck<'a> {
    /// The server's own, then the others that it sent.
    pub certificates: &'a [Vec<u8>],
    pub url: &'a str,
    pub host: &'a str,
    pub application_uri: &'a str,
    /// The policy of the channel to be opened.
    pub policy: SecurityPolicy,
    /// Since 1970.
    pub now: Duration,
}

/// The content of the folder at one moment.
struct Contents {
    trusted: Vec<ParsedCertificate>,
    issuers: Vec<ParsedCertificate>,
    lists: Vec<RevocationList>,
    too_large: Vec<PathBuf>,
}

impl TrustFolder {
    pub fn new(path: &Path) -> TrustFolder {
        TrustFolder { path: path.to_owned() }
    }

    /// The caller stores rejected certificates, because other checks reject certificates too.
    pub fn check(&self, check: &CertificateCheck<'_>) -> Result<(), String> {
        let der = check.certificates.first().map(Vec::as_slice).unwrap_or_default();
        let contents = self.read()?;
        contents
            .verdict(check, der)
            .map_err(|why| match contents.too_large.first() {
                Some(path) => format!("{why}; {} is larger than 1 MiB and was not read", path.display()),
                None => why,
            })
    }

    /// Stores a rejected certificate in `rejected/`. Returns the reason of the rejection, and why it could not be
    /// stored.
    pub fn keep_rejected(&self, der: &[u8], why: String) -> String {
        match self.reject(der) {
            Ok(()) => why,
            Err(not_kept) => format!("{why} ({not_kept})"),
        }
    }

    /// Returns the certificate of a server before it is asked: the only application certificate in `trusted/`, or the
    /// only one among them that names the host. Authorities have no application URI.
    pub fn certificate_of(&self, host: &str) -> Option<Vec<u8>> {
        let mut servers = self.read().ok()?.trusted;
        servers.retain(|certificate| certificate.application_uri().is_some());
        if servers.len() > 1 {
            servers.retain(|certificate| certificate.names_host(host));
        }
        match servers.as_slice() {
            [only] => Some(only.der.clone()),
            _ => None,
        }
    }

    fn read(&self) -> Result<Contents, String> {
        let mut too_large = Vec::new();
        let mut parsed = |folder: &str| -> Result<Vec<ParsedCertificate>, String> {
            let mut certificates = Vec::new();
            for file in self.files(folder)? {
                if file.bytes > CERTIFICATE_BYTES_MAX {
                    too_large.push(file.path);
                    continue;
                }
                let ders = x509::certificates(&file.read()?);
                certificates.extend(ders.iter().filter_map(|der| ParsedCertificate::from_der(der).ok()));
            }
            Ok(certificates)
        };
        Ok(Contents {
            trusted: parsed("trusted")?,
            issuers: parsed("issuers")?,
            lists: self.lists()?,
            too_large,
        })
    }

    fn lists(&self) -> Result<Vec<RevocationList>, String> {
        let mut lists = Vec::new();
        for file in self.files("crl")? {
            let unusable = |why: &str| revocation::unusable(&file.path, why);
            if file.bytes > LIST_BYTES_MAX {
                return Err(unusable("it is larger than 64 MiB"));
            }
            lists.extend(RevocationList::read(&file.path, &file.read()?).map_err(|why| unusable(&why))?);
        }
        Ok(lists)
    }

    /// Returns the files of a sub-folder, without hidden ones such as `.gitkeep`; none if it does not exist.
    fn files(&self, folder: &str) -> Result<Vec<File>, String> {
        let path = self.path.join(folder);
        let unreadable = |error: std::io::Error| format!("the trust folder {} cannot be read: {error}", path.display());
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            // Follows symbolic links, which operators use.
            let meta = std::fs::metadata(entry.path()).map_err(unreadable)?;
            if meta.is_file() {
                files.push(File {
                    path: entry.path(),
                    bytes: meta.len(),
                });
            }
        }
        Ok(files)
    }

    fn reject(&self, der: &[u8]) -> Result<(), String> {
        let folder = self.path.join("rejected");
        let file = folder.join(format!("{}.der", sha256_hex(der)));
        // Half a certificate, left by a crash under versions that wrote in place, is written again.
        if std::fs::read(&file).is_ok_and(|kept| kept == der) {
            return Ok(());
        }
        let full = || std::fs::read_dir(&folder).is_ok_and(|entries| entries.count() >= REJECTED_MAX);
        if !file.exists() && full() {
            return Err(format!(
                "it could not be put there: {} is full ({REJECTED_MAX} files); empty it",
                folder.display()
            ));
        }
        keep(&file, der).map_err(|error| {
            format!(
                "the rejected certificate cannot be stored as {}: {error}",
                file.display()
            )
        })
    }
}

/// A file of the folder.
struct File {
    path: PathBuf,
    bytes: u64,
}

impl File {
    fn read(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.path).map_err(|error| format!("the file {} cannot be read: {error}", self.path.display()))
    }
}

impl Contents {
    fn verdict(&self, check: &CertificateCheck<'_>, der: &[u8]) -> Result<(), String> {
        let leaf = ParsedCertificate::from_der(der)?;
        let sent = check.certificates.iter().skip(1).take(SENT_MAX);
        let sent = sent.filter_map(|der| ParsedCertificate::from_der(der).ok()).collect();
        self.find_path(check, &leaf, sent)?;
        // A server without an application URI does not match the certificate either.
        let uri = leaf.application_uri().unwrap_or_default();
        if uri != check.application_uri {
            return Err(format!(
                "the server's certificate is for application {uri:?}, but the server calls itself {:?}; correct the server's certificate",
                check.application_uri
            ));
        }
        self.warn(check, &leaf);
        Ok(())
    }

    fn find_path(
        &self,
        check: &CertificateCheck<'_>,
        leaf: &ParsedCertificate,
        sent: Vec<ParsedCertificate>,
    ) -> Result<(), String> {
        let authorities = self.trusted.iter().chain(&self.issuers).collect();
        let mut revocation = Revocation::new(&self.lists, authorities, check.now);
        let mut judge = |path: &[&ParsedCertificate]| {
            validate(path, check.policy, check.now)?;
            revocation.check(path).map_err(|why| Refusal {
                stage: PathCheckStage::Revocation,
                why,
            })
        };
        let mut pool = CertificatePool::new(leaf.clone(), &self.trusted, &self.issuers, sent, check.now);
        let digest = sha256_hex(&leaf.der);
        match (pool.search(&mut judge), leaf.unknown_signature()) {
            (PathSearchResult::Good, _) => Ok(()),
            (PathSearchResult::Refused(refusal), _) => Err(refusal.why),
            (PathSearchResult::Nowhere, None) => Err(format!(
                "server certificate {digest} is not trusted; move it from rejected/ to trusted/ to accept it"
            )),
            (PathSearchResult::Nowhere, Some(kind)) => Err(format!(
                "server certificate {digest} is not trusted, and its signature (algorithm {kind}) is of an unsupported kind, so no authority can vouch for it; move it from rejected/ to trusted/ to accept it"
            )),
            (PathSearchResult::TooMuchWork, _) => Err(format!(
                "server certificate {digest} is not trusted: too many certificates have the names of its issuers; remove those that are not needed from trusted/ and issuers/, or move it from rejected/ to trusted/ to accept it"
            )),
        }
    }

    /// Logs peculiarities that are no reason to reject.
    fn warn(&self, check: &CertificateCheck<'_>, leaf: &ParsedCertificate) {
        let certificate = sha256_hex(&leaf.der);
        if !leaf.names_host(check.host) {
            tracing::warn!(
                endpoint = check.url,
                certificate,
                "the server's trusted certificate does not name the host {}",
                check.host
            );
        }
        if self.trusted.contains(leaf)
            && let Some(peculiarity) = peculiarity(leaf, check.policy)
        {
            tracing::warn!(
                endpoint = check.url,
                certificate,
                "the server's certificate {peculiarity}; it is accepted because it is in trusted/ itself"
            );
        }
    }
}

fn date(at: Duration) -> thalweg_record::Ticks {
    thalweg_record::Ticks::from_unix_millis(i64::try_from(at.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod against_openssl;
#[cfg(test)]
mod tests;
