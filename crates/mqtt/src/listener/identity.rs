//! Who is at the other end of a connection, as far as the listener knows it.

use std::net::SocketAddr;

use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::spki::ObjectIdentifier;

use super::settings::CertificateIdentity;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    /// Where the connection comes from; behind a load balancer what its header says.
    pub source: SocketAddr,
    /// The name in the certificate of the client. `None`: it has shown none, or none with a name.
    pub user: Option<String>,
}

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The user name in a certificate that was verified.
pub(super) fn user_of(certificate: &CertificateDer<'_>, identity: CertificateIdentity) -> Option<String> {
    let certificate = match identity {
        CertificateIdentity::None => return None,
        _ => Certificate::from_der(certificate).ok()?,
    };
    let name = match identity {
        CertificateIdentity::None => None,
        CertificateIdentity::CommonName => common_name(&certificate),
        CertificateIdentity::Uri => first_uri(&certificate),
    };
    // A NUL is how a certificate passes for another one where names end there.
    name.filter(|name| !name.is_empty() && !name.contains('\0'))
}

/// The last one of the subject, which is the most specific.
fn common_name(certificate: &Certificate) -> Option<String> {
    let names = certificate.tbs_certificate.subject.0.iter();
    let value = &names
        .flat_map(|name| name.0.iter())
        .rfind(|part| part.oid == COMMON_NAME)?
        .value;
    let text = match value.tag() {
        Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::PrintableString => value.decode_as::<PrintableStringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::TeletexString => value.decode_as::<TeletexStringRef<'_>>().ok()?.as_str().to_owned(),
        _ => return None,
    };
    Some(text)
}

fn first_uri(certificate: &Certificate) -> Option<String> {
    let (_, names) = certificate.tbs_certificate.get::<SubjectAltName>().ok()??;
    names.0.iter().find_map(|name| match name {
        GeneralName::UniformResourceIdentifier(uri) => Some(uri.as_str().to_owned()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokio_rustls::rustls::pki_types::pem::PemObject as _;

    use super::*;

    /// A certificate by openssl.
    fn certificate(subject: &str, names: &[&str]) -> CertificateDer<'static> {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let mut command = Command::new("openssl");
        command
            .args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec", "-utf8"])
            .args(["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", subject])
            .args(["-keyout", &file("key"), "-out", &file("certificate")]);
        if !names.is_empty() {
            command.args(["-addext", &format!("subjectAltName={}", names.join(","))]);
        }
        let made = command.output().expect("openssl is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        CertificateDer::from_pem_file(file("certificate")).unwrap()
    }

    #[test]
    fn a_certificate_names_its_user_as_the_listener_says() {
        let uris = [
            "DNS:pump.example",
            "URI:spiffe://plant/pump",
            "URI:spiffe://plant/other",
        ];
        for (subject, names, common_name, uri) in [
            (
                "/O=Plant/CN=pump-7",
                &uris[..],
                Some("pump-7"),
                Some("spiffe://plant/pump"),
            ),
            ("/CN=Plant/CN=Pumpe \u{e4}", &[], Some("Pumpe \u{e4}"), None),
            ("/O=Plant", &uris[..1], None, None),
        ] {
            let certificate = certificate(subject, names);
            let named = |identity| user_of(&certificate, identity);
            assert_eq!(named(CertificateIdentity::CommonName).as_deref(), common_name);
            assert_eq!(named(CertificateIdentity::Uri).as_deref(), uri);
            assert_eq!(named(CertificateIdentity::None), None);
        }
    }

    #[test]
    fn what_is_no_certificate_names_nobody() {
        for identity in CertificateIdentity::ALL {
            assert_eq!(
                user_of(&CertificateDer::from(&b"0\x03\x02\x01\x00"[..]), identity),
                None
            );
        }
    }
}
