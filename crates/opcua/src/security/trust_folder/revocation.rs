//! Revocation lists of the folder. A list says who is revoked and never that something is not, so partial lists and
//! delta lists are applied for what they name. A list that cannot be read, or that may concern certificates of other
//! issuers, would be ignored silently; it makes every server be rejected until it is replaced.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use x509_cert::crl::{CertificateList, RevokedCert};
use x509_cert::der::{Decode as _, SliceReader};
use x509_cert::ext::Extension;

use super::super::sha256_hex;
use super::super::x509::{self, ComparedName, ParsedCertificate, SignedData};
use super::date;

const KEY_ID: &str = "2.5.29.35";
const NUMBER: &str = "2.5.29.20";
const DELTA: &str = "2.5.29.27";
const SCOPE: &str = "2.5.29.28";
const REASON: &str = "2.5.29.21";

pub(super) struct RevocationList {
    file: PathBuf,
    der: Vec<u8>,
    list: CertificateList,
    issuer: ComparedName,
    is_delta: bool,
}

impl RevocationList {
    /// Reads all lists of a file. The error is a reason without the file.
    pub fn read(file: &Path, bytes: &[u8]) -> Result<Vec<RevocationList>, String> {
        let found = x509::revocation_lists(bytes)?.into_iter();
        found.map(|(der, list)| RevocationList::new(file, der, list)).collect()
    }

    fn new(file: &Path, der: Vec<u8>, list: CertificateList) -> Result<RevocationList, String> {
        let extensions = list.tbs_cert_list.crl_extensions.iter().flatten();
        let mut is_delta = false;
        for extension in extensions {
            let id = extension.extn_id.to_string();
            match id.as_str() {
                DELTA => is_delta = true,
                SCOPE if is_indirect(extension) => {
                    return Err("it revokes certificates of other issuers too".to_owned());
                }
                KEY_ID | NUMBER | SCOPE => {}
                _ if extension.critical => {
                    return Err(format!("it has the critical extension {id}, which is not supported"));
                }
                _ => {}
            }
        }
        Ok(RevocationList {
            file: file.to_owned(),
            issuer: ComparedName::of(&list.tbs_cert_list.issuer),
            der,
            list,
            is_delta,
        })
    }

    fn signed(&self) -> SignedData<'_> {
        SignedData {
            bytes: x509::signed_bytes(&self.der).unwrap_or_default(),
            algorithms: [&self.list.tbs_cert_list.signature, &self.list.signature_algorithm],
            signature: self.list.signature.as_bytes().unwrap_or_default(),
        }
    }

    fn revokes(&self, certificate: &ParsedCertificate) -> bool {
        let serial = &certificate.certificate.tbs_certificate.serial_number;
        let revoked = self.list.tbs_cert_list.revoked_certificates.iter().flatten();
        let mut named = revoked.into_iter().filter(|entry| entry.serial_number == *serial);
        named.any(|entry| !(self.is_delta && is_taken_back(entry)))
    }

    fn unusable(&self, why: &str) -> String {
        unusable(&self.file, why)
    }

    /// Revocations stay valid after the expiry; newer ones are missing.
    fn warn_if_out_of_date(&self, now: Duration) {
        let list = &self.list.tbs_cert_list;
        let next = list.next_update.map(|time| time.to_unix_duration());
        if let Some(next) = next.filter(|next| *next < now) {
            tracing::warn!(
                "the revocation list {} expired on {}; replace it by the authority's current one",
                self.file.display(),
                date(next)
            );
        }
        let made = list.this_update.to_unix_duration();
        if made > now {
            tracing::warn!(
                "the revocation list {} is valid only from {}; check the clocks",
                self.file.display(),
                date(made)
            );
        }
    }
}

pub(super) fn unusable(file: &Path, why: &str) -> String {
    format!(
        "the revocation list {} cannot be used ({why}); replace it by a valid one or remove it",
        file.display()
    )
}

/// `indirectCRL` of IssuingDistributionPoint, a field `[4] BOOLEAN`. An unreadable extension counts as indirect.
fn is_indirect(extension: &Extension) -> bool {
    use x509_cert::der::Reader as _;
    const INDIRECT: u8 = 0x84;
    let read = |reader: &mut SliceReader<'_>| {
        let header = x509_cert::der::Header::decode(reader)?;
        header.tag.assert_eq(x509_cert::der::Tag::Sequence)?;
        let mut is_indirect = false;
        reader.read_nested(header.length, |fields| {
            while !fields.is_finished() {
                let field = x509_cert::der::asn1::AnyRef::decode(fields)?;
                is_indirect |= u8::from(x509_cert::der::Tagged::tag(&field)) == INDIRECT;
            }
            Ok(())
        })?;
        Ok::<bool, x509_cert::der::Error>(is_indirect)
    };
    let reader = SliceReader::new(extension.extn_value.as_bytes());
    reader.and_then(|mut reader| read(&mut reader)).unwrap_or(true)
}

/// The reason `removeFromCRL`, which only a delta list has.
fn is_taken_back(entry: &RevokedCert) -> bool {
    const REMOVED: [u8; 3] = [0x0A, 1, 8];
    let mut extensions = entry.crl_entry_extensions.iter().flatten();
    extensions.any(|extension| extension.extn_id.to_string() == REASON && extension.extn_value.as_bytes() == REMOVED)
}

/// The lists with their known signers: a list is long, so each signature is checked once.
pub(super) struct Revocation<'a> {
    lists: &'a [RevocationList],
    /// Authorities of the folder.
    authorities: Vec<&'a ParsedCertificate>,
    now: Duration,
    signers: HashMap<(usize, Vec<u8>), bool>,
    /// Lists whose dates were checked, so that each is warned about once.
    dated: HashSet<usize>,
}

impl<'a> Revocation<'a> {
    pub fn new(lists: &'a [RevocationList], authorities: Vec<&'a ParsedCertificate>, now: Duration) -> Revocation<'a> {
        Revocation {
            lists,
            authorities,
            now,
            signers: HashMap::new(),
            dated: HashSet::new(),
        }
    }

    /// Checks each certificate of the path against the lists of its issuer, including an authority's own list, which
    /// may revoke its former key or itself. An issuer without a list revokes nothing.
    pub fn check(&mut self, path: &[&ParsedCertificate]) -> Result<(), String> {
        for (at, certificate) in path.iter().enumerate() {
            let above = path.get(at + 1..).unwrap_or_default();
            for (number, list) in self.lists.iter().enumerate() {
                if list.issuer != certificate.issuer_name || !self.is_by_issuer(number, list, certificate, above)? {
                    continue;
                }
                if self.dated.insert(number) {
                    list.warn_if_out_of_date(self.now);
                }
                if list.revokes(certificate) {
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

    /// Whether a list under the name of a certificate's issuer is signed by that issuer, and not by another authority
    /// of the same name. A list without a known signer proves nothing, but ignoring it would accept what it revokes.
    fn is_by_issuer(
        &mut self,
        number: usize,
        list: &RevocationList,
        certificate: &ParsedCertificate,
        above: &[&ParsedCertificate],
    ) -> Result<bool, String> {
        let known: Vec<&ParsedCertificate> = self.authorities.iter().chain(above).copied().collect();
        let signers: Vec<&ParsedCertificate> = known
            .into_iter()
            .filter(|known| self.has_signed(number, list, known))
            .collect();
        if signers.is_empty() {
            return Err(
                list.unusable("its signature is by no authority in trusted/ or issuers/, or of a kind that is not RSA")
            );
        }
        let may_sign =
            |signer: &&&ParsedCertificate| signer.extensions.usage.as_ref().is_none_or(|usage| usage.crl_sign());
        let mut entitled = signers.iter().filter(may_sign).peekable();
        if entitled.peek().is_none() {
            return Err(list.unusable("the key usage of its issuer lacks cRLSign"));
        }
        let signed = certificate.signed();
        Ok(entitled.any(|signer| signer.has_signed(&signed)))
    }

    fn has_signed(&mut self, number: usize, list: &RevocationList, authority: &ParsedCertificate) -> bool {
        if list.issuer != authority.subject_name {
            return false;
        }
        let key = (number, authority.der.clone());
        *self
            .signers
            .entry(key)
            .or_insert_with(|| authority.has_signed(&list.signed()))
    }
}
