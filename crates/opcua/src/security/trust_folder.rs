//! A folder of certificates kept by the operator: `trusted/` (certificates or authorities), `issuers/` (authorities that
//! only complete chains), `crl/` (revocation lists), `rejected/` (what servers showed and nobody trusts yet).
//!
//! The folder is read at every check, which happens once per connection, so a change takes effect at the next attempt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use x509_cert::crl::CertificateList;

use super::sha256_hex;
use super::x509::{self, Parsed};

/// Longest chain from a server's certificate to an authority.
const CHAIN_MAX: usize = 8;

/// Larger files in the folder are no certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

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
    lists: Vec<CertificateList>,
}

impl TrustFolder {
    pub fn new(path: &Path) -> TrustFolder {
        TrustFolder { path: path.to_owned() }
    }

    pub fn check(&self, check: &Check<'_>) -> Result<(), String> {
        let der = check.certificates.first().map(Vec::as_slice).unwrap_or_default();
        let leaf = Parsed::from_der(der)?;
        let sent = check
            .certificates
            .iter()
            .skip(1)
            .filter_map(|der| Parsed::from_der(der).ok())
            .collect();
        let contents = self.read()?;
        let Some(chain) = contents.chain(&leaf, sent) else {
            self.reject(der)?;
            let digest = sha256_hex(der);
            return Err(format!(
                "server certificate {digest} is not trusted; move it from rejected/ to trusted/ to accept it"
            ));
        };
        for certificate in &chain {
            check_dates(certificate, check.now)?;
        }
        contents.check_revocation(&chain)?;
        let uri = leaf.application_uri().unwrap_or_default();
        if !check.application_uri.is_empty() && uri != check.application_uri {
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

    fn read(&self) -> Result<Contents, String> {
        let parsed = |folder: &str| -> Result<Vec<Parsed>, String> {
            let files = self.files(folder)?;
            let ders = files.iter().flat_map(|bytes| x509::certificates(bytes));
            Ok(ders.filter_map(|der| Parsed::from_der(&der).ok()).collect())
        };
        Ok(Contents {
            trusted: parsed("trusted")?,
            issuers: parsed("issuers")?,
            lists: self
                .files("crl")?
                .iter()
                .flat_map(|bytes| x509::revocation_lists(bytes))
                .collect(),
        })
    }

    /// The contents of all files of a sub-folder; none if it does not exist.
    fn files(&self, folder: &str) -> Result<Vec<Vec<u8>>, String> {
        let path = self.path.join(folder);
        let unreadable = |error: std::io::Error| format!("the trust folder {} cannot be read: {error}", path.display());
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(error)),
        };
        let mut contents = Vec::new();
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            if std::fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= FILE_BYTES_MAX) {
                contents.push(std::fs::read(&path).map_err(unreadable)?);
            }
        }
        Ok(contents)
    }

    fn reject(&self, der: &[u8]) -> Result<(), String> {
        let folder = self.path.join("rejected");
        let file = folder.join(format!("{}.der", sha256_hex(der)));
        let full = || std::fs::read_dir(&folder).is_ok_and(|entries| entries.count() >= REJECTED_MAX);
        if file.exists() || full() {
            return Ok(());
        }
        let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, der));
        kept.map_err(|error| format!("the rejected certificate cannot be kept as {}: {error}", file.display()))
    }
}

impl Contents {
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
    fn check_revocation(&self, chain: &[Parsed]) -> Result<(), String> {
        for certificate in chain {
            let known = self.trusted.iter().chain(&self.issuers).chain(chain);
            let issuers: Vec<&Parsed> = known
                .into_iter()
                .filter(|issuer| certificate.is_signed_by(issuer))
                .collect();
            let mut lists = self
                .lists
                .iter()
                .filter(|list| issuers.iter().any(|issuer| issuer.has_signed(list)));
            if !certificate.is_self_issued() && lists.any(|list| certificate.is_revoked_by(list)) {
                return Err(format!(
                    "the certificate {} ({}) was revoked by its issuer; have the server's certificate renewed",
                    sha256_hex(&certificate.der),
                    certificate.subject()
                ));
            }
        }
        Ok(())
    }
}

fn check_dates(certificate: &Parsed, now: Duration) -> Result<(), String> {
    let date =
        |at: Duration| thalweg_record::Ticks::from_unix_millis(i64::try_from(at.as_millis()).unwrap_or(i64::MAX));
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
