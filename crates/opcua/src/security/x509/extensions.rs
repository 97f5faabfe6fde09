//! The extensions of a certificate, parsed once. An unknown critical extension, or a known unreadable one, makes the
//! certificate unusable: ignoring it would drop a limit that its issuer has set.

use x509_cert::TbsCertificate;
use x509_cert::der::{Decode, Header, Reader, SliceReader, Tag};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, ExtendedKeyUsage, KeyUsage, SubjectAltName, SubjectKeyIdentifier};
use x509_cert::spki::ObjectIdentifier;

const SUBJECT_KEY_ID: &str = "2.5.29.14";
const KEY_USAGE: &str = "2.5.29.15";
const ALTERNATIVE_NAMES: &str = "2.5.29.17";
const BASIC_CONSTRAINTS: &str = "2.5.29.19";
const NAME_CONSTRAINTS: &str = "2.5.29.30";
const AUTHORITY_KEY_ID: &str = "2.5.29.35";
const EXTENDED_KEY_USAGE: &str = "2.5.29.37";

/// Critical extensions without effect here: policies, because none is required, and distribution points, because lists
/// come from the folder.
const WITHOUT_EFFECT: [&str; 2] = ["2.5.29.32", "2.5.29.31"];

#[derive(Clone, Debug, Default)]
pub(in crate::security) struct Extensions {
    pub constraints: Option<Constraints>,
    pub usage: Option<KeyUsage>,
    pub extended_usage: Option<Vec<ObjectIdentifier>>,
    pub names: Vec<GeneralName>,
    pub key_id: Option<Vec<u8>>,
    pub issuer_key_id: Option<Vec<u8>>,
    /// Why the certificate cannot be judged, as in `the critical extension 1.2.3, which …`.
    pub unusable: Option<String>,
}

/// BasicConstraints, with a path length of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::security) struct Constraints {
    pub is_authority: bool,
    pub path_len: Option<u32>,
}

impl Extensions {
    pub fn of(certificate: &TbsCertificate) -> Extensions {
        let mut all = Extensions::default();
        let mut seen: Vec<ObjectIdentifier> = Vec::new();
        for extension in certificate.extensions.iter().flatten() {
            let id = extension.extn_id;
            let problem = match seen.contains(&id) {
                true => Some("the extension {}, twice"),
                false => all.read(extension),
            };
            // A certificate has a dozen; the limit prevents a quadratic search for a sender of thousands.
            if seen.len() < EXTENSIONS_MAX {
                seen.push(id);
            } else {
                all.unusable = Some(format!("more than {EXTENSIONS_MAX} extensions"));
                break;
            }
            if let Some(problem) = problem
                && all.unusable.is_none()
            {
                all.unusable = Some(problem.replace("{}", &id.to_string()));
            }
        }
        all
    }

    /// Returns the problem of an extension, with `{}` for its identifier.
    fn read(&mut self, extension: &Extension) -> Option<&'static str> {
        const UNREADABLE: Option<&str> = Some("the extension {}, which cannot be read");
        let bytes = extension.extn_value.as_bytes();
        let id = extension.extn_id.to_string();
        let is_read = match id.as_str() {
            BASIC_CONSTRAINTS => keep(&mut self.constraints, Constraints::from_der(bytes)),
            KEY_USAGE => keep(&mut self.usage, KeyUsage::from_der(bytes).ok()),
            EXTENDED_KEY_USAGE => keep(
                &mut self.extended_usage,
                ExtendedKeyUsage::from_der(bytes).ok().map(|usage| usage.0),
            ),
            ALTERNATIVE_NAMES => match SubjectAltName::from_der(bytes) {
                Ok(names) => {
                    self.names = names.0;
                    true
                }
                Err(_) => false,
            },
            SUBJECT_KEY_ID => keep(&mut self.key_id, key_id(bytes)),
            AUTHORITY_KEY_ID => match AuthorityKeyIdentifier::from_der(bytes) {
                Ok(id) => {
                    self.issuer_key_id = id.key_identifier.map(|id| id.into_bytes());
                    true
                }
                // A hint, not a limit.
                Err(_) => !extension.critical,
            },
            NAME_CONSTRAINTS => return Some("limits of names (extension {}), which are not checked here"),
            other if extension.critical && !WITHOUT_EFFECT.contains(&other) => {
                return Some("the critical extension {}, which is not supported");
            }
            _ => true,
        };
        if is_read { None } else { UNREADABLE }
    }
}

/// Far more than any certificate has.
const EXTENSIONS_MAX: usize = 64;

fn keep<T>(place: &mut Option<T>, read: Option<T>) -> bool {
    *place = read;
    place.is_some()
}

fn key_id(bytes: &[u8]) -> Option<Vec<u8>> {
    SubjectKeyIdentifier::from_der(bytes).ok().map(|id| id.0.into_bytes())
}

impl Constraints {
    fn from_der(bytes: &[u8]) -> Option<Constraints> {
        let mut reader = SliceReader::new(bytes).ok()?;
        let header = Header::decode(&mut reader).ok()?;
        header.tag.assert_eq(Tag::Sequence).ok()?;
        let read = reader.read_nested(header.length, |fields| {
            Ok(Constraints {
                is_authority: Option::<bool>::decode(fields)?.unwrap_or(false),
                path_len: Option::<u32>::decode(fields)?,
            })
        });
        let constraints = read.ok()?;
        reader.is_finished().then_some(constraints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_are_read_with_any_length_and_with_nothing_after() {
        let some = |is_authority, path_len| Some(Constraints { is_authority, path_len });
        for (bytes, expected) in [
            (&[0x30, 0][..], some(false, None)),
            (&[0x30, 3, 1, 1, 0xFF], some(true, None)),
            (&[0x30, 3, 1, 1, 0], some(false, None)),
            (&[0x30, 6, 1, 1, 0xFF, 2, 1, 0], some(true, Some(0))),
            (&[0x30, 8, 1, 1, 0xFF, 2, 3, 1, 0, 0], some(true, Some(65_536))),
            (&[0x30, 6, 1, 1, 0xFF, 2, 1, 0x80], None),
            (&[0x30, 3, 1, 1, 0xFF, 0], None),
            (&[0x30, 5, 1, 1, 0xFF, 5, 0], None),
            (&[5, 0], None),
            (&[], None),
        ] {
            assert_eq!(Constraints::from_der(bytes), expected, "{bytes:02x?}");
        }
    }
}
