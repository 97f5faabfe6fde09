use std::path::Path;
use std::time::Duration;

use rsa::RsaPrivateKey;
use rsa::pkcs1v15::SigningKey;
use rsa::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};
use sha2::Sha256;
use x509_cert::builder::{Builder as _, CertificateBuilder, Profile};
use x509_cert::der::asn1::{BitString, Ia5String};
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::SubjectPublicKeyInfoOwned;
use x509_cert::time::Validity;

use super::*;
use crate::security::sha256_hex;
use crate::security::test_pki::{Design, time};

/// A key generated once, because that takes a noticeable part of a second.
fn key(index: usize) -> RsaPrivateKey {
    static KEYS: std::sync::OnceLock<Vec<RsaPrivateKey>> = std::sync::OnceLock::new();
    let make = |_| {
        let der = opcua::crypto::PrivateKey::new(2048).unwrap().to_der().unwrap();
        RsaPrivateKey::from_pkcs8_der(der.as_bytes()).unwrap()
    };
    KEYS.get_or_init(|| (0..3).map(make).collect())[index].clone()
}

struct Signed {
    der: Vec<u8>,
    key: RsaPrivateKey,
    name: Name,
}

/// A certificate signed by an authority, or self-signed. With 0 seconds it expired long ago.
fn certificate(name: &str, index: usize, issuer: Option<&Signed>, authority: bool, seconds: u64, uri: &str) -> Signed {
    let key = key(index);
    let subject: Name = format!("CN={name}").parse().unwrap();
    let public = key.to_public_key().to_public_key_der().unwrap();
    let public = SubjectPublicKeyInfoOwned::from_der(public.as_bytes()).unwrap();
    let signer = SigningKey::<Sha256>::new(issuer.map_or(key.clone(), |issuer| issuer.key.clone()));
    let issuer_name = issuer.map_or(subject.clone(), |issuer| issuer.name.clone());
    let profile = match authority {
        true if issuer.is_none() => Profile::Root,
        true => Profile::SubCA {
            issuer: issuer_name,
            path_len_constraint: None,
        },
        false => Profile::Manual {
            issuer: Some(issuer_name),
        },
    };
    let validity = match seconds {
        0 => Validity {
            not_before: time(0),
            not_after: time(1),
        },
        _ => Validity::from_now(Duration::from_secs(seconds)).unwrap(),
    };
    let serial = SerialNumber::from(index as u32 + 7);
    let mut builder = CertificateBuilder::new(profile, serial, validity, subject.clone(), public, &signer).unwrap();
    if !authority {
        let names = vec![
            GeneralName::UniformResourceIdentifier(Ia5String::new(uri).unwrap()),
            GeneralName::DnsName(Ia5String::new("plc").unwrap()),
        ];
        builder.add_extension(&SubjectAltName(names)).unwrap();
    }
    let built = builder.build::<rsa::pkcs1v15::Signature>().unwrap();
    Signed {
        der: built.to_der().unwrap(),
        key,
        name: subject,
    }
}

const URI: &str = "urn:server";
const URL: &str = "opc.tcp://plc:4840/";

fn put(folder: &Path, sub: &str, name: &str, bytes: &[u8]) {
    std::fs::create_dir_all(folder.join(sub)).unwrap();
    std::fs::write(folder.join(sub).join(name), bytes).unwrap();
}

fn shown(chain: &[u8]) -> ServerCertificate {
    ServerCertificate {
        chain: chain.to_vec(),
        url: URL.to_owned(),
        host: "plc".to_owned(),
        application_uri: URI.to_owned(),
        policy: SecurityPolicy::Basic256Sha256,
    }
}

fn check(trust: &Trust, chain: &[u8]) -> Result<(), String> {
    trust.check(&shown(chain))
}

#[test]
fn an_unknown_certificate_is_kept_and_accepted_once_it_is_moved() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let server = certificate("server", 0, None, false, 3600, URI);
    let digest = sha256_hex(&server.der);
    let error = check(&trust, &server.der).unwrap_err();
    assert_eq!(
        error,
        format!("server certificate {digest} is not trusted; move it from rejected/ to trusted/ to accept it")
    );
    let rejected = folder.path().join("rejected").join(format!("{digest}.der"));
    std::fs::create_dir_all(folder.path().join("trusted")).unwrap();
    std::fs::rename(&rejected, folder.path().join("trusted/server.der")).unwrap();
    check(&trust, &server.der).unwrap();
    let wrong_uri = trust
        .check(&ServerCertificate {
            application_uri: "urn:other".to_owned(),
            ..shown(&server.der)
        })
        .unwrap_err();
    assert!(
        wrong_uri.contains("the server calls itself \"urn:other\""),
        "{wrong_uri}"
    );
    // Another host name is only a warning.
    trust
        .check(&ServerCertificate {
            host: "other".to_owned(),
            ..shown(&server.der)
        })
        .unwrap();
}

#[test]
fn a_chain_to_a_trusted_authority_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let root = certificate("root", 0, None, true, 3600, "");
    let middle = certificate("middle", 1, Some(&root), true, 3600, "");
    let server = certificate("server", 2, Some(&middle), false, 3600, URI);
    put(
        folder.path(),
        "trusted",
        "root.pem",
        super::super::key_pair::to_pem("CERTIFICATE", &root.der).as_bytes(),
    );
    assert!(check(&trust, &server.der).is_err(), "the middle is missing");
    check(&trust, &[server.der.clone(), middle.der.clone()].concat()).unwrap();
    put(folder.path(), "issuers", "middle.der", &middle.der);
    check(&trust, &server.der).unwrap();
    // A signature of an ordinary certificate is worthless.
    let forged = certificate("forged", 1, Some(&server), false, 3600, URI);
    assert!(check(&trust, &[forged.der, server.der].concat()).is_err());
}

#[test]
fn an_expired_certificate_is_refused_though_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let server = certificate("server", 0, None, false, 0, URI);
    put(folder.path(), "trusted", "a.der", &server.der);
    let error = check(&Trust::new(None, Some(folder.path()), folder.path()), &server.der).unwrap_err();
    assert!(
        error.contains("expired on") && error.contains("have it renewed"),
        "{error}"
    );
}

#[test]
fn a_revoked_certificate_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let root = certificate("root", 0, None, true, 3600, "");
    let server = certificate("server", 2, Some(&root), false, 3600, URI);
    put(folder.path(), "trusted", "root.der", &root.der);
    put(folder.path(), "crl", "other.crl", &revocation_list(&root, 99));
    check(&trust, &server.der).unwrap();
    put(folder.path(), "crl", "root.crl", &revocation_list(&root, 2 + 7));
    let error = check(&trust, &server.der).unwrap_err();
    assert!(error.contains("was revoked by its issuer"), "{error}");
}

fn revocation_list(issuer: &Signed, serial: u32) -> Vec<u8> {
    revocation_list_until(issuer, serial, None)
}

fn revocation_list_until(issuer: &Signed, serial: u32, next_update: Option<x509_cert::time::Time>) -> Vec<u8> {
    revocation_list_of(issuer, &[serial], next_update)
}

fn revocation_list_of(issuer: &Signed, serials: &[u32], next_update: Option<x509_cert::time::Time>) -> Vec<u8> {
    use rsa::signature::{SignatureEncoding as _, Signer as _};
    use x509_cert::crl::{CertificateList, RevokedCert, TbsCertList};
    let leaf = x509_cert::Certificate::from_der(&issuer.der).unwrap();
    let time = leaf.tbs_certificate.validity.not_before;
    let revoked = serials.iter().map(|serial| RevokedCert {
        serial_number: SerialNumber::from(*serial),
        revocation_date: time,
        crl_entry_extensions: None,
    });
    let tbs = TbsCertList {
        version: x509_cert::Version::V2,
        signature: leaf.signature_algorithm.clone(),
        issuer: issuer.name.clone(),
        this_update: time,
        next_update,
        revoked_certificates: Some(revoked.collect()),
        crl_extensions: None,
    };
    let signature = SigningKey::<Sha256>::new(issuer.key.clone()).sign(&tbs.to_der().unwrap());
    let list = CertificateList {
        tbs_cert_list: tbs,
        signature_algorithm: leaf.signature_algorithm,
        signature: BitString::from_bytes(&signature.to_vec()).unwrap(),
    };
    list.to_der().unwrap()
}

#[test]
fn fingerprint_and_folder_must_both_pass_if_both_are_set() {
    let folder = tempfile::tempdir().unwrap();
    let server = certificate("server", 0, None, false, 3600, URI);
    let fingerprint = Fingerprint::parse(&sha256_hex(&server.der)).unwrap();
    let both = Trust::new(Some(fingerprint.clone()), Some(folder.path()), folder.path());
    assert!(check(&both, &server.der).unwrap_err().contains("is not trusted"));
    put(folder.path(), "trusted", "a.der", &server.der);
    check(&both, &server.der).unwrap();
    check(&Trust::new(Some(fingerprint), None, folder.path()), &server.der).unwrap();
    let other = Fingerprint::parse(&sha256_hex(b"other")).unwrap();
    let error = check(&Trust::new(Some(other), None, folder.path()), &server.der).unwrap_err();
    let (expected, got) = (sha256_hex(b"other"), sha256_hex(&server.der));
    assert_eq!(
        error,
        format!("fingerprint mismatch for endpoint {URL}: expected {expected}, got {got}")
    );
}

#[test]
fn without_either_the_first_certificate_is_remembered_and_another_refused() {
    let keys = tempfile::tempdir().unwrap();
    let (first, second) = (
        certificate("a", 0, None, false, 3600, URI),
        certificate("b", 1, None, false, 3600, URI),
    );
    check(&Trust::new(None, None, keys.path()), &first.der).unwrap();
    let again = Trust::new(None, None, keys.path());
    check(&again, &first.der).unwrap();
    let error = check(&again, &second.der).unwrap_err();
    assert!(
        error.contains("another certificate than before") && error.contains("remove"),
        "{error}"
    );
    // Another server has its own record.
    again
        .check(&ServerCertificate {
            url: "opc.tcp://elsewhere:4840/".to_owned(),
            host: "elsewhere".to_owned(),
            ..shown(&second.der)
        })
        .unwrap();
}

#[test]
fn a_negative_serial_number_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = certificate("server", 0, None, false, 3600, URI).der;
    // The serial number is the one-byte integer 7 right after the version.
    let at = server
        .windows(8)
        .position(|w| w == [0xA0, 3, 2, 1, 2, 2, 1, 7])
        .unwrap()
        + 7;
    server[at] = 0xF9;
    put(folder.path(), "trusted", "a.der", &server);
    check(&Trust::new(None, Some(folder.path()), folder.path()), &server).unwrap();
    let library = opcua::crypto::X509::from_der(&server).unwrap();
    assert_eq!(library.to_der().unwrap(), server);
}

/// A trusted authority and a server certificate that it issued.
fn vouched(folder: &Path) -> (Signed, Signed) {
    let root = certificate("root", 0, None, true, 3600, "");
    let server = certificate("server", 2, Some(&root), false, 3600, URI);
    put(folder, "trusted", "root.der", &root.der);
    (root, server)
}

#[test]
fn a_revocation_list_that_cannot_be_read_refuses_every_server() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let (root, server) = vouched(folder.path());
    check(&trust, &server.der).unwrap();
    let list = revocation_list(&root, 99);
    let pem = super::super::key_pair::to_pem("X509 CRL", &list);
    for (content, why) in [
        (b"nonsense".to_vec(), ""),
        (list[..list.len() - 1].to_vec(), ""),
        (Vec::new(), ""),
        (pem.replace('M', "*").into_bytes(), "no base64"),
        (vec![0x30; (64 << 20) + 1], "larger than 64 MiB"),
    ] {
        put(folder.path(), "crl", "broken.crl", &content);
        let error = check(&trust, &server.der).unwrap_err();
        assert!(
            error.contains("crl/broken.crl cannot be used") && error.contains(why),
            "{error}"
        );
    }
    // More than a certificate may have, and in PEM; hidden files are ignored.
    let many: Vec<u32> = (1_000_000..1_060_000).collect();
    let long = revocation_list_of(&root, &many, None);
    assert!(long.len() > 1 << 20);
    put(folder.path(), "crl", "broken.crl", &long);
    put(folder.path(), "crl", "good.pem", pem.as_bytes());
    put(folder.path(), "crl", ".gitkeep", b"");
    check(&trust, &server.der).unwrap();
    put(
        folder.path(),
        "crl",
        "broken.crl",
        &revocation_list_of(&root, &[many, vec![2 + 7]].concat(), None),
    );
    assert!(check(&trust, &server.der).unwrap_err().contains("was revoked"));
}

#[test]
fn a_list_in_the_name_of_the_issuer_that_nobody_known_has_signed_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let (_, server) = vouched(folder.path());
    let namesake = certificate("root", 1, None, true, 3600, "");
    put(folder.path(), "crl", "other.crl", &revocation_list(&namesake, 99));
    let error = check(&trust, &server.der).unwrap_err();
    assert!(
        error.contains("crl/other.crl cannot be used (its signature is by no authority"),
        "{error}"
    );
    // A known authority of the same name has its own lists.
    put(folder.path(), "issuers", "namesake.der", &namesake.der);
    check(&trust, &server.der).unwrap();
    put(folder.path(), "crl", "other.crl", &revocation_list(&namesake, 2 + 7));
    check(&trust, &server.der).unwrap();
}

#[test]
fn an_expired_list_still_revokes_and_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let (root, server) = vouched(folder.path());
    let leaf = x509_cert::Certificate::from_der(&root.der).unwrap();
    // An hour from now, and long ago.
    let (later, past) = (leaf.tbs_certificate.validity.not_after, time(0));
    for (next_update, warnings) in [(None, 0), (Some(later), 0), (Some(past), 1)] {
        let (log, _guard) = crate::test_log::Log::record();
        put(
            folder.path(),
            "crl",
            "root.crl",
            &revocation_list_until(&root, 99, next_update),
        );
        check(&trust, &server.der).unwrap();
        assert_eq!(log.count("crl/root.crl expired on"), warnings, "{}", log.text());
    }
    put(
        folder.path(),
        "crl",
        "root.crl",
        &revocation_list_until(&root, 2 + 7, Some(past)),
    );
    assert!(check(&trust, &server.der).unwrap_err().contains("was revoked"));
}

#[test]
fn whatever_is_refused_is_kept_for_the_operator() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let (root, revoked) = vouched(folder.path());
    put(folder.path(), "crl", "root.crl", &revocation_list(&root, 2 + 7));
    let expired = certificate("expired", 1, Some(&root), false, 0, URI);
    let wrong_uri = certificate("wrong", 1, Some(&root), false, 3600, "urn:other");
    for refused in [revoked, expired, wrong_uri] {
        check(&trust, &refused.der).unwrap_err();
        let kept = folder
            .path()
            .join("rejected")
            .join(format!("{}.der", sha256_hex(&refused.der)));
        assert_eq!(std::fs::read(kept).unwrap(), refused.der);
    }
}

/// Certificates that other checks than the folder's reject are stored too, so that the operator can inspect them.
#[test]
fn what_is_refused_before_the_folder_is_asked_or_since_it_cannot_be_read_is_kept_too() {
    let good = certificate("good", 2, None, false, 3600, URI).der;
    let weak = Design {
        from: 0,
        to: 4_000_000_000,
        ..Design::server(8)
    };
    let weak = weak.self_signed();
    let unreadable = [0x30, 3, 1, 2, 3];
    let other = Fingerprint::parse(&sha256_hex(b"other")).unwrap();
    let cases: [(Option<&Fingerprint>, &[u8], &str, &str); 5] = [
        (None, &weak, "", "has a key of 1024 bits"),
        (Some(&other), &good, "", "fingerprint mismatch"),
        (None, &unreadable, "", "the certificate cannot be read"),
        (None, &good, "crl/broken.crl", "crl/broken.crl cannot be used"),
        (None, &good, "issuers", "cannot be read"),
    ];
    for (fingerprint, der, file, why) in cases {
        for is_again in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            put(folder.path(), "trusted", "a.der", der);
            if !file.is_empty() {
                std::fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
                std::fs::write(folder.path().join(file), "nonsense").unwrap();
            }
            let trust = Trust::new(fingerprint.cloned(), Some(folder.path()), folder.path());
            let verdict = match is_again {
                false => trust.check(&shown(der)),
                true => trust.check_again(&shown(der)),
            };
            let error = verdict.unwrap_err();
            assert!(error.contains(why), "{why:?} is not in: {error}");
            let kept = folder.path().join("rejected").join(format!("{}.der", sha256_hex(der)));
            assert_eq!(std::fs::read(kept).unwrap(), der, "{why}");
        }
    }
}

/// Without a trust folder there is no place for it.
#[test]
fn without_a_folder_nothing_that_is_refused_is_kept() {
    let keys = tempfile::tempdir().unwrap();
    let (first, second) = (
        certificate("a", 0, None, false, 3600, URI),
        certificate("b", 1, None, false, 3600, URI),
    );
    let other = Fingerprint::parse(&sha256_hex(b"other")).unwrap();
    check(&Trust::new(Some(other), None, keys.path()), &first.der).unwrap_err();
    assert_eq!(std::fs::read_dir(keys.path()).unwrap().count(), 0);
    check(&Trust::new(None, None, keys.path()), &first.der).unwrap();
    check(&Trust::new(None, None, keys.path()), &second.der).unwrap_err();
    assert!(!keys.path().join("rejected").exists());
}

#[test]
fn half_of_a_refused_certificate_does_not_stay() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let server = certificate("server", 0, None, false, 3600, URI);
    let name = format!("{}.der", sha256_hex(&server.der));
    put(folder.path(), "rejected", &name, &server.der[..100]);
    check(&trust, &server.der).unwrap_err();
    let kept = folder.path().join("rejected").join(name);
    assert_eq!(std::fs::read(&kept).unwrap(), server.der);
}

/// A hard link simulates an interrupted write: its content shows whether the file itself was written to.
#[cfg(unix)]
#[test]
fn a_refused_certificate_comes_into_being_whole() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let server = certificate("server", 0, None, false, 3600, URI);
    let kept = folder
        .path()
        .join("rejected")
        .join(format!("{}.der", sha256_hex(&server.der)));
    let target = folder.path().join("target");
    std::fs::create_dir_all(folder.path().join("rejected")).unwrap();
    std::os::unix::fs::symlink(&target, &kept).unwrap();
    check(&trust, &server.der).unwrap_err();
    assert!(!target.exists());
    assert_eq!(std::fs::read(&kept).unwrap(), server.der);
}

#[test]
fn a_full_folder_of_refused_certificates_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    for number in 0..1000 {
        put(folder.path(), "rejected", &format!("{number}.der"), b"");
    }
    let server = certificate("server", 0, None, false, 3600, URI);
    let error = check(&trust, &server.der).unwrap_err();
    assert!(error.contains("is not trusted"), "{error}");
    assert!(error.contains("rejected is full (1000 files); empty it"), "{error}");
    std::fs::remove_file(folder.path().join("rejected/7.der")).unwrap();
    let error = check(&trust, &server.der).unwrap_err();
    assert!(!error.contains("full"), "{error}");
    // It is already there, although the folder is full again.
    let error = check(&trust, &server.der).unwrap_err();
    assert!(!error.contains("full"), "{error}");
}

#[test]
fn a_server_that_calls_itself_nothing_is_not_the_one_of_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let (_, server) = vouched(folder.path());
    let error = trust
        .check(&ServerCertificate {
            application_uri: String::new(),
            ..shown(&server.der)
        })
        .unwrap_err();
    assert!(error.contains("but the server calls itself \"\""), "{error}");
}

#[test]
fn the_certificate_of_a_server_is_known_if_the_folder_leaves_no_choice() {
    let folder = tempfile::tempdir().unwrap();
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    assert_eq!(trust.certificate_of("plc"), None);
    let (_, server) = vouched(folder.path());
    // Authorities are not servers.
    assert_eq!(trust.certificate_of("plc"), None);
    put(folder.path(), "trusted", "server.der", &server.der);
    assert_eq!(trust.certificate_of("other").as_ref(), Some(&server.der));
    let second = certificate("second", 1, None, false, 3600, URI);
    put(folder.path(), "trusted", "second.der", &second.der);
    // Both name the same host.
    assert_eq!(trust.certificate_of("plc"), None);
    assert_eq!(Trust::new(None, None, folder.path()).certificate_of("plc"), None);
}

/// A breakable key protects nothing, whoever issued its certificate.
#[test]
fn a_key_that_is_too_short_for_the_policy_is_refused_however_the_server_is_trusted() {
    let weak = Design {
        from: 0,
        to: 4_000_000_000,
        ..Design::server(8)
    };
    let server = weak.self_signed();
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "trusted", "a.der", &server);
    let fingerprint = Fingerprint::parse(&sha256_hex(&server)).unwrap();
    for trust in [
        Trust::new(None, Some(folder.path()), folder.path()),
        Trust::new(Some(fingerprint), None, folder.path()),
        Trust::new(None, None, folder.path()),
    ] {
        for (policy, is_refused) in [
            (SecurityPolicy::Basic256Sha256, true),
            (SecurityPolicy::Aes128Sha256RsaOaep, true),
            (SecurityPolicy::Aes256Sha256RsaPss, true),
            (SecurityPolicy::Basic256, false),
        ] {
            let shown = ServerCertificate {
                policy,
                ..shown(&server)
            };
            for verdict in [trust.check(&shown), trust.check_again(&shown)] {
                let error = verdict.err().unwrap_or_default();
                let expected = "the server's certificate has a key of 1024 bits, and the policy";
                assert_eq!(error.starts_with(expected), is_refused, "{policy}: {error}");
            }
        }
    }
}

#[test]
fn a_certificate_that_is_larger_than_any_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Design::server(2);
    server.uri = Some("u".repeat(70_000));
    let trust = Trust::new(None, Some(folder.path()), folder.path());
    let error = check(&trust, &server.self_signed()).unwrap_err();
    assert!(error.contains("at most 65536 are read"), "{error}");
    assert!(!folder.path().join("rejected").exists());
}
