use std::path::Path;
use std::time::Duration;

use x509_cert::der::Decode as _;
use x509_cert::der::asn1::Null;
use x509_cert::ext::pkix::KeyUsages;

use super::*;
use crate::security::test_pki::{ANY_USAGE, CLIENT_AUTH, DAY, Design, Hash, NOW, SERVER_AUTH, URI, extension, time};

/// A trust folder with the files of a test.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub fn with(files: &[(&str, &[u8])]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (number, (sub, bytes)) in files.iter().enumerate() {
            folder.put(sub, &format!("{number}.der"), bytes);
        }
        folder
    }

    pub fn put(&self, sub: &str, name: &str, bytes: &[u8]) {
        std::fs::create_dir_all(self.path().join(sub)).unwrap();
        std::fs::write(self.path().join(sub).join(name), bytes).unwrap();
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Checks a server that shows these certificates, its own first.
    pub fn check(&self, shown: &[&[u8]]) -> Result<(), String> {
        let certificates: Vec<Vec<u8>> = shown.iter().map(|der| der.to_vec()).collect();
        TrustFolder::new(self.path()).check(&CertificateCheck {
            certificates: &certificates,
            url: "opc.tcp://plc:4840/",
            host: "plc",
            application_uri: URI,
            policy: SecurityPolicy::Basic256Sha256,
            now: Duration::from_secs(NOW),
        })
    }
}

fn refused(verdict: Result<(), String>, part: &str) {
    let error = verdict.expect_err(part);
    assert!(error.contains(part), "{part:?} is not in: {error}");
}

#[test]
fn an_authority_that_may_have_none_below_it_has_none() {
    let mut root = Design::authority("root", 0);
    root.constraints = Some((true, Some(0)));
    let middle = Design::authority("middle", 1);
    let server = Design::server(2);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &middle.signed_by(&root))]);
    refused(folder.check(&[&server.signed_by(&middle)]), "pathLenConstraint");
    folder.check(&[&server.signed_by(&root)]).unwrap();
}

/// A new certificate of the same authority, signed by its old key, does not count as a step.
#[test]
fn a_certificate_that_an_authority_issued_to_itself_does_not_count_as_one_below_it() {
    let mut root = Design::authority("root", 0);
    root.constraints = Some((true, Some(0)));
    let rolled = Design::authority("root", 1);
    let server = Design::server(2);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &rolled.signed_by(&root))]);
    folder.check(&[&server.signed_by(&rolled)]).unwrap();
}

#[test]
fn what_a_trusted_authority_issued_for_another_purpose_is_no_server() {
    let root = Design::authority("root", 0);
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    let with = |change: fn(&mut Design)| {
        let mut server = Design::server(2);
        change(&mut server);
        server.signed_by(&root)
    };
    for (change, part) in [
        (
            (|s| s.extended_usage = Some(vec![CLIENT_AUTH])) as fn(&mut Design),
            "serverAuth",
        ),
        (
            |s| s.usage = Some(KeyUsages::KeyEncipherment.into()),
            "digitalSignature",
        ),
        (
            |s| s.usage = Some(KeyUsages::DigitalSignature.into()),
            "keyEncipherment",
        ),
        (|s| s.constraints = Some((true, None)), "authority"),
    ] {
        let error = folder.check(&[&with(change)]).expect_err(part);
        assert!(
            error.contains(part) && error.contains("move it from rejected/ to trusted/"),
            "{error}"
        );
    }
    for change in [
        (|s| s.extended_usage = None) as fn(&mut Design),
        |s| s.extended_usage = Some(vec![CLIENT_AUTH, SERVER_AUTH]),
        |s| s.extended_usage = Some(vec![ANY_USAGE]),
        |s| s.usage = None,
        |s| s.usage = Some(KeyUsages::DigitalSignature | KeyUsages::DataEncipherment),
        |s| s.constraints = None,
    ] {
        folder.check(&[&with(change)]).unwrap();
    }
}

#[test]
fn an_authority_for_clients_vouches_for_no_server() {
    let root = Design::authority("root", 0);
    let mut middle = Design::authority("middle", 1);
    middle.extended_usage = Some(vec![CLIENT_AUTH]);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &middle.signed_by(&root))]);
    refused(folder.check(&[&Design::server(2).signed_by(&middle)]), "serverAuth");
}

/// Controllers sign their certificates themselves, with whatever usages their library sets.
#[test]
fn a_server_that_is_trusted_itself_is_taken_with_whatever_usages_it_has() {
    for change in [
        (|s| s.constraints = Some((true, Some(0)))) as fn(&mut Design),
        |s| s.usage = Some(KeyUsages::KeyCertSign.into()),
        |s| s.extended_usage = Some(vec![CLIENT_AUTH]),
        |s| s.hash = Hash::Sha1,
        |s| s.more = vec![extension("1.2.3.4", true, &Null)],
    ] {
        let mut server = Design::server(2);
        change(&mut server);
        let der = server.self_signed();
        Folder::with(&[("trusted", &der)]).check(&[&der]).unwrap();
    }
}

#[test]
fn a_server_that_is_trusted_itself_vouches_for_no_other() {
    let mut server = Design::server(2);
    server.constraints = Some((true, None));
    server.usage = Some(KeyUsages::KeyCertSign | KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment);
    let mut other = Design::server(3);
    other.name = "other".to_owned();
    let folder = Folder::with(&[("trusted", &server.self_signed())]);
    folder.check(&[&server.self_signed()]).unwrap();
    refused(folder.check(&[&other.signed_by(&server)]), "urn:server");
}

#[test]
fn an_expired_authority_beside_its_renewal_is_passed_over_in_any_order() {
    let root = Design::authority("root", 0);
    let old = Design {
        from: NOW - 200 * DAY,
        to: NOW - DAY,
        serial: 7,
        ..root.clone()
    };
    let server = Design::server(2).signed_by(&root);
    let (old, new) = (old.self_signed(), root.self_signed());
    for order in [["a.der", "b.der"], ["b.der", "a.der"]] {
        for (first, second) in [("trusted", "trusted"), ("issuers", "trusted"), ("trusted", "issuers")] {
            let folder = Folder::with(&[]);
            folder.put(first, order[0], &old);
            folder.put(second, order[1], &new);
            let verdict = folder.check(&[&server]);
            match second {
                "trusted" => verdict.unwrap(),
                _ => refused(verdict, "expired on"),
            }
        }
    }
}

#[test]
fn a_dead_end_before_a_trusted_authority_is_left_again() {
    let (root, lost) = (Design::authority("root", 0), Design::authority("lost", 3));
    let middle = Design::authority("middle", 1);
    let server = Design::server(2).signed_by(&middle);
    let (by_root, by_lost) = (middle.signed_by(&root), middle.signed_by(&lost));
    let trusted = root.self_signed();
    let folder = Folder::with(&[("trusted", &trusted)]);
    folder
        .check(&[&server, &by_lost, &lost.self_signed(), &by_root])
        .unwrap();
    for order in [["a.der", "b.der"], ["b.der", "a.der"]] {
        let folder = Folder::with(&[("trusted", &trusted), ("issuers", &lost.self_signed())]);
        folder.put("issuers", order[0], &by_lost);
        folder.put("issuers", order[1], &by_root);
        folder.check(&[&server]).unwrap();
    }
}

#[test]
fn what_a_certificate_says_must_be_known_is_known_or_it_is_refused() {
    let mut root = Design::authority("root", 0);
    let mut server = Design::server(2);
    let unknown = || vec![extension("1.2.3.4", true, &Null)];
    server.more = unknown();
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "1.2.3.4");
    server.more = vec![extension("1.2.3.4", false, &Null)];
    folder.check(&[&server.signed_by(&root)]).unwrap();
    // A known extension with invalid content has no meaning.
    server.extended_usage = None;
    server.more = vec![extension("2.5.29.37", false, &Null)];
    refused(folder.check(&[&server.signed_by(&root)]), "2.5.29.37");
    server.more = Vec::new();
    root.more = unknown();
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "1.2.3.4");
    // Name limits are not checked here, so they must not be ignored.
    root.more = vec![extension("2.5.29.30", false, &Null)];
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    refused(folder.check(&[&server.signed_by(&root)]), "2.5.29.30");
}

/// OpenSSL would reject every server of the authority. A plant may be offline for long, and a stop of all its data is
/// the greater harm.
#[test]
fn a_list_that_is_out_of_date_revokes_whom_it_names_and_nobody_else_with_a_warning() {
    let root = Design::authority("root", 0);
    let mut revoked = Design::server(2);
    revoked.serial = 77;
    let other = Design::server(3);
    for (from, to, warning) in [
        (NOW - 3 * DAY, Some(NOW - DAY), "0.der expired on"),
        (NOW + DAY, Some(NOW + 3 * DAY), "0.der is valid only from"),
        (NOW - DAY, Some(NOW + DAY), ""),
        (NOW - DAY, None, ""),
    ] {
        let list = root.revokes_within(&[revoked.serial], Vec::new(), from, to);
        let folder = Folder::with(&[("crl", &list), ("trusted", &root.self_signed())]);
        let (log, _guard) = crate::test_log::Log::record();
        folder.check(&[&other.signed_by(&root)]).unwrap();
        let warnings = log.count("the revocation list");
        assert_eq!(warnings, usize::from(!warning.is_empty()), "{}", log.text());
        assert!(log.text().contains(warning), "{}", log.text());
        refused(folder.check(&[&revoked.signed_by(&root)]), "was revoked");
    }
}

/// Lists of some authorities do not require lists of the others.
#[test]
fn an_authority_without_a_list_revokes_nothing_beside_one_that_has_a_list() {
    let (root, middle) = (Design::authority("root", 0), Design::authority("middle", 1));
    let server = Design::server(2);
    let of_root = root.revokes(&[server.serial], Vec::new());
    let folder = Folder::with(&[
        ("trusted", &root.self_signed()),
        ("issuers", &middle.signed_by(&root)),
        ("crl", &of_root),
    ]);
    folder.check(&[&server.signed_by(&middle)]).unwrap();
    folder.put("crl", "middle.crl", &middle.revokes(&[server.serial], Vec::new()));
    refused(folder.check(&[&server.signed_by(&middle)]), "was revoked");
}

#[test]
fn a_list_counts_only_by_an_authority_that_may_sign_lists() {
    let mut root = Design::authority("root", 0);
    let server = Design::server(2).signed_by(&root);
    root.usage = Some(KeyUsages::KeyCertSign.into());
    let list = root.revokes(&[99], Vec::new());
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    refused(folder.check(&[&server]), "cRLSign");
    root.usage = Some(KeyUsages::KeyCertSign | KeyUsages::CRLSign);
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    folder.check(&[&server]).unwrap();
}

/// `CN=root` in another string type or case is the same name.
#[test]
fn a_list_of_the_issuer_is_found_however_its_name_is_written() {
    use x509_cert::der::Tag;
    let root = Design::authority("Root  Authority", 0);
    let written = Design {
        name: "root authority".to_owned(),
        name_tag: Tag::PrintableString,
        ..root.clone()
    };
    let server = Design::server(2);
    let list = written.revokes(&[server.serial], Vec::new());
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
    refused(folder.check(&[&server.signed_by(&root)]), "was revoked");
    let folder = Folder::with(&[("trusted", &root.self_signed())]);
    folder.check(&[&server.signed_by(&written)]).unwrap();
}

#[test]
fn a_list_of_changes_and_one_of_a_part_revoke_what_they_name() {
    // IssuingDistributionPoint with onlyContainsUserCerts, and with indirectCRL.
    let scope = |field: u8| RawDer(vec![0x30, 3, field, 1, 0xFF]);
    let root = Design::authority("root", 0);
    let server = Design::server(2);
    let der = server.signed_by(&root);
    let number = RawDer(vec![2, 1, 1]);
    for (serial, extensions, part) in [
        (
            server.serial,
            vec![extension("2.5.29.27", true, &number)],
            "was revoked",
        ),
        (
            server.serial,
            vec![extension("2.5.29.28", true, &scope(0x81))],
            "was revoked",
        ),
        (
            server.serial,
            vec![extension("2.5.29.20", false, &number)],
            "was revoked",
        ),
        (server.serial, vec![extension("1.2.3.4", false, &number)], "was revoked"),
        (99, vec![extension("2.5.29.28", true, &scope(0x81))], ""),
        (
            99,
            vec![extension("2.5.29.28", true, &scope(0x84))],
            "of other issuers too",
        ),
        (99, vec![extension("2.5.29.28", true, &number)], "of other issuers too"),
        (
            99,
            vec![extension("1.2.3.4", true, &number)],
            "the critical extension 1.2.3.4",
        ),
    ] {
        let list = root.revokes(&[serial], extensions);
        let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
        let error = folder.check(&[&der]).err().unwrap_or_default();
        assert!(
            error.contains(part) && error.is_empty() == part.is_empty(),
            "{part:?}: {error}"
        );
    }
}

/// Existing DER.
struct RawDer(Vec<u8>);

impl x509_cert::der::Encode for RawDer {
    fn encoded_len(&self) -> x509_cert::der::Result<x509_cert::der::Length> {
        self.0.len().try_into()
    }

    fn encode(&self, writer: &mut impl x509_cert::der::Writer) -> x509_cert::der::Result<()> {
        writer.write(&self.0)
    }
}

/// A delta list may withdraw a revocation, and no other list then contains it.
#[test]
fn what_a_list_of_changes_takes_back_is_not_revoked_by_it() {
    use x509_cert::Version;
    use x509_cert::crl::{RevokedCert, TbsCertList};
    use x509_cert::serial_number::SerialNumber;
    let root = Design::authority("root", 0);
    let server = Design::server(2);
    let taken_back = extension("2.5.29.21", false, &RawDer(vec![0x0A, 1, 8]));
    for (is_delta, is_refused) in [(true, false), (false, true)] {
        let delta = is_delta.then(|| vec![extension("2.5.29.27", true, &RawDer(vec![2, 1, 1]))]);
        let plain = root.revokes(&[], Vec::new());
        let algorithm = x509_cert::crl::CertificateList::from_der(&plain)
            .unwrap()
            .signature_algorithm;
        let list = root.sign_list(TbsCertList {
            version: Version::V2,
            signature: algorithm,
            issuer: root.subject(),
            this_update: time(NOW - DAY),
            next_update: None,
            revoked_certificates: Some(vec![RevokedCert {
                serial_number: SerialNumber::from(server.serial),
                revocation_date: time(NOW - DAY),
                crl_entry_extensions: Some(vec![taken_back.clone()]),
            }]),
            crl_extensions: delta,
        });
        let folder = Folder::with(&[("trusted", &root.self_signed()), ("crl", &list)]);
        assert_eq!(
            folder.check(&[&server.signed_by(&root)]).is_err(),
            is_refused,
            "delta: {is_delta}"
        );
    }
}

/// An authority's old key vouches for its new one, and may revoke that.
#[test]
fn a_list_revokes_what_an_authority_issued_to_itself() {
    let root = Design::authority("root", 0);
    let rolled = Design::authority("root", 1);
    let server = Design::server(2).signed_by(&rolled);
    let list = root.revokes(&[rolled.serial], Vec::new());
    let folder = Folder::with(&[("trusted", &root.self_signed()), ("issuers", &rolled.signed_by(&root))]);
    folder.check(&[&server]).unwrap();
    folder.put("crl", "root.crl", &list);
    refused(folder.check(&[&server]), "was revoked");
}

/// For example a bundle of very many certificates: a rejection mentions that it was not read.
#[test]
fn a_file_of_certificates_that_is_too_large_is_named_where_a_server_is_refused() {
    let server = Design::server(1);
    let der = server.self_signed();
    let mut padded = vec![b'\n'; usize::try_from(CERTIFICATE_BYTES_MAX).unwrap()];
    let folder = Folder::with(&[("trusted", &padded)]);
    let error = folder.check(&[&der]).unwrap_err();
    assert!(
        error.contains("is not trusted") && !error.contains("was not read"),
        "{error}"
    );
    padded.push(b'\n');
    folder.put("trusted", "bundle.pem", &padded);
    refused(
        folder.check(&[&der]),
        "trusted/bundle.pem is larger than 1 MiB and was not read",
    );
    folder.put("trusted", "server.der", &der);
    folder.check(&[&der]).unwrap();
}

#[test]
fn a_crowd_of_namesakes_costs_a_bounded_search_and_hides_no_trusted_one() {
    let root = Design::authority("root", 0);
    let server = Design::server(2).signed_by(&root);
    let folder = Folder::with(&[]);
    for serial in 0..130 {
        let namesake = Design {
            serial,
            ..Design::authority("root", 1)
        };
        folder.put("issuers", &format!("{serial}.der"), &namesake.self_signed());
    }
    refused(
        folder.check(&[&server]),
        "too many certificates have the names of its issuers",
    );
    folder.put("trusted", "root.der", &root.self_signed());
    folder.check(&[&server]).unwrap();
}

/// Each bit of a certificate is covered by its signature, by a comparison, or by the frame around them.
#[test]
fn a_certificate_with_one_bit_changed_is_not_taken_and_harms_nothing() {
    let root = Design::authority("root", 0);
    let server = Design::server(2).signed_by(&root);
    let contents = Contents {
        trusted: vec![ParsedCertificate::from_der(&root.self_signed()).unwrap()],
        issuers: Vec::new(),
        too_large: Vec::new(),
        lists: Vec::new(),
    };
    let verdict = |der: &[u8]| {
        let certificates = x509::first_certificates(der, 2);
        let leaf = certificates.first().ok_or("it is none")?;
        let check = CertificateCheck {
            certificates: &certificates,
            url: "opc.tcp://plc:4840/",
            host: "plc",
            application_uri: URI,
            policy: SecurityPolicy::Basic256Sha256,
            now: Duration::from_secs(NOW),
        };
        contents.verdict(&check, leaf)
    };
    verdict(&server).unwrap();
    for bit in 0..server.len() * 8 {
        let mut changed = server.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(verdict(&changed).is_err(), "bit {bit}");
    }
}
