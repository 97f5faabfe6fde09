//! A folder of certificates kept by the operator: `trusted/` (certificates or authorities), `issuers/` (authorities that
//! only complete chains), `crl/` (revocation lists), `rejected/` (what servers showed and nobody trusts yet).
//!
//! The folder is read at every check, which happens once per connection, so a change takes effect at the next attempt.
//! A certificate file that cannot be read trusts nobody; a revocation list that cannot be read would revoke nobody, so
//! it refuses every server until it is repaired.

use std::path::{Path, PathBuf};
use std::time::Duration;

use x509_cert::crl::CertificateList;

use super::kept_file::{Readers, keep};
use super::sha256_hex;
use super::x509::{self, Parsed};

/// Longest chain from a server's certificate to an authority.
const CHAIN_MAX: usize = 8;

/// Larger files in the folder are no certificates.
const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;

/// The list of a large authority has hundreds of thousands of entries of some 40 bytes.
const LIST_BYTES_MAX: u64 = 64 << 20;

/// Certificates kept in `rejected/`; a server that shows ever new ones must not fill the disk.
const REJECTED_MAX: usize = 1000;

pub(super) struct TrustFolder {
    path: PathBuf,
}

pub(super) struct Check<'a> {
    /// The server's own, then what it sent behind it.
    pub certificates: &'a [Vec<u8>],
    pub url: &'a str,
    pub host: &'a str,
    pub application_uri: &'a str,
    /// Since 1970.
    pub now: Duration,
}

/// What the folder holds at one moment.
struct Contents {
    trusted: Vec<Parsed>,
    issuers: Vec<Parsed>,
    lists: Vec<RevocationList>,
}

struct RevocationList {
    file: PathBuf,
    list: CertificateList,
}

impl TrustFolder {
    pub fn new(path: &Path) -> TrustFolder {
        TrustFolder { path: path.to_owned() }
    }

    /// What is refused is kept in `rejected/`, whatever the reason.
    pub fn check(&self, check: &Check<'_>) -> Result<(), String> {
        let der = check.certificates.first().map(Vec::as_slice).unwrap_or_default();
        let contents = self.read()?;
        contents.verdict(check, der).map_err(|why| match self.reject(der) {
            Ok(()) => why,
            Err(not_kept) => format!("{why} ({not_kept})"),
        })
    }

    /// The certificate of a server that is known before anybody has asked it: the only one of an application in `trusted/`,
    /// or the only one among them that names the host. Authorities have no application's name.
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
        let parsed = |folder: &str| -> Result<Vec<Parsed>, String> {
            let mut certificates = Vec::new();
            for file in self.files(folder)? {
                if file.bytes <= CERTIFICATE_BYTES_MAX {
                    let ders = x509::certificates(&file.read()?);
                    certificates.extend(ders.iter().filter_map(|der| Parsed::from_der(der).ok()));
                }
            }
            Ok(certificates)
        };
        Ok(Contents {
            trusted: parsed("trusted")?,
            issuers: parsed("issuers")?,
            lists: self.lists()?,
        })
    }

    fn lists(&self) -> Result<Vec<RevocationList>, String> {
        let mut lists = Vec::new();
        for file in self.files("crl")? {
            let unusable = |why: &str| {
                format!(
                    "the revocation list {} cannot be used ({why}); replace it by a valid one or remove it",
                    file.path.display()
                )
            };
            if file.bytes > LIST_BYTES_MAX {
                return Err(unusable("it is larger than 64 MiB"));
            }
            let found = x509::revocation_lists(&file.read()?).map_err(|why| unusable(&why))?;
            lists.extend(found.into_iter().map(|list| RevocationList {
                file: file.path.clone(),
                list,
            }));
        }
        Ok(lists)
    }

    /// The files of a sub-folder, without hidden ones such as `.gitkeep`; none if it does not exist.
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
            // Through links, as operators set them.
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
        // Half a certificate, as versions that wrote in place leave it at a crash, is written again.
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
        keep(&file, der, Readers::All)
            .map_err(|error| format!("the rejected certificate cannot be kept as {}: {error}", file.display()))
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
    fn verdict(&self, check: &Check<'_>, der: &[u8]) -> Result<(), String> {
        let leaf = Parsed::from_der(der)?;
        let sent = check
            .certificates
            .iter()
            .skip(1)
            .filter_map(|der| Parsed::from_der(der).ok())
            .collect();
        let chain = self.chain(&leaf, sent).ok_or_else(|| {
            let digest = sha256_hex(der);
            format!("server certificate {digest} is not trusted; move it from rejected/ to trusted/ to accept it")
        })?;
        for certificate in &chain {
            check_dates(certificate, check.now)?;
        }
        self.check_revocation(&chain, check.now)?;
        // A server that calls itself nothing is not the one that the certificate is for either.
        let uri = leaf.application_uri().unwrap_or_default();
        if uri != check.application_uri {
            return Err(format!(
                "the server's certificate is for application {uri:?}, but the server calls itself {:?}; correct the server's certificate",
                check.application_uri
            ));
        }
        if !leaf.names_host(check.host) {
            tracing::warn!(
                endpoint = check.url,
                certificate = sha256_hex(der),
                "the server's trusted certificate does not name the host {}",
                check.host
            );
        }
        Ok(())
    }

    /// From the certificate up to a trusted one; `None` if there is no such way.
    fn chain(&self, leaf: &Parsed, sent: Vec<Parsed>) -> Option<Vec<Parsed>> {
        let mut chain = vec![leaf.clone()];
        while chain.len() <= CHAIN_MAX {
            let top = chain.last()?;
            // An authority must be one; the server's own certificate need only be there.
            if self.trusted.contains(top) && (chain.len() == 1 || top.is_authority()) {
                return Some(chain);
            }
            let known = self.trusted.iter().chain(&self.issuers).chain(&sent);
            let issuer = known
                .into_iter()
                .find(|issuer| *issuer != top && issuer.is_authority() && top.is_signed_by(issuer))?;
            chain.push(issuer.clone());
        }
        None
    }

    /// Each certificate of the chain against the lists of its issuer. An issuer without a list revokes nothing.
    fn check_revocation(&self, chain: &[Parsed], now: Duration) -> Result<(), String> {
        for certificate in chain.iter().filter(|certificate| !certificate.is_self_issued()) {
            for list in self.lists.iter().filter(|list| certificate.has_issuer_of(&list.list)) {
                if !self.is_by_issuer(list, certificate, chain)? {
                    continue;
                }
                warn_if_expired(list, now);
                if certificate.is_revoked_by(&list.list) {
                    return Err(format!(
                        "the certificate {} ({}) was revoked by its issuer; have the server's certificate renewed",
                        sha256_hex(&certificate.der),
                        certificate.subject()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether a list with the name of a certificate's issuer has its signature too, and not that of another authority
    /// of this name. One that nobody known has signed says nothing, and to pass over it would accept what it revokes.
    fn is_by_issuer(&self, list: &RevocationList, certificate: &Parsed, chain: &[Parsed]) -> Result<bool, String> {
        let known = || self.trusted.iter().chain(&self.issuers).chain(chain);
        let mut signers = known().filter(|issuer| issuer.has_signed(&list.list)).peekable();
        if signers.peek().is_none() {
            return Err(format!(
                "the revocation list {} cannot be used (its signature is by no authority in trusted/ or issuers/, or of a kind that is not RSA); replace it by a valid one or remove it",
                list.file.display()
            ));
        }
        Ok(signers.any(|issuer| certificate.is_signed_by(issuer)))
    }
}

/// What was revoked stays revoked; what was revoked since is missing.
fn warn_if_expired(list: &RevocationList, now: Duration) {
    if let Some(next) = list.list.tbs_cert_list.next_update.map(|time| time.to_unix_duration())
        && next < now
    {
        tracing::warn!(
            "the revocation list {} expired on {}; replace it by the authority's current one",
            list.file.display(),
            date(next)
        );
    }
}

fn date(at: Duration) -> thalweg_record::Ticks {
    thalweg_record::Ticks::from_unix_millis(i64::try_from(at.as_millis()).unwrap_or(i64::MAX))
}

fn check_dates(certificate: &Parsed, now: Duration) -> Result<(), String> {
    let (from, to) = (certificate.valid_from(), certificate.valid_to());
    let subject = certificate.subject();
    if now < from {
        return Err(format!(
            "the certificate of {subject} is valid only from {}; check the clocks",
            date(from)
        ));
    }
    if now > to {
        return Err(format!(
            "the certificate of {subject} expired on {}; have it renewed",
            date(to)
        ));
    }
    Ok(())
}
