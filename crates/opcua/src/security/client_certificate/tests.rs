use opcua::crypto::{SecurityPolicy, X509, X509Data};

use super::*;
use crate::security::x509::ParsedCertificate;

#[tokio::test]
async fn a_certificate_is_made_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let first = ClientCertificates::new(None, &keys)
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .unwrap();
    let again = ClientCertificates::new(None, &keys)
        .for_policy(SecurityPolicy::Aes256Sha256RsaPss)
        .await
        .unwrap();
    assert_eq!(first.pair.der, again.pair.der);
    assert!(first.application_uri.starts_with("urn:thalweg:client:"));
    let legacy = ClientCertificates::new(None, &keys)
        .for_policy(SecurityPolicy::Basic256)
        .await
        .unwrap();
    assert_ne!(legacy.pair.der, first.pair.der);

    let parsed = ParsedCertificate::from_der(&first.pair.der).unwrap();
    let name = first.application_uri.rsplit(':').next().unwrap().to_owned();
    assert_eq!(name.len(), 8);
    assert_eq!(parsed.subject(), format!("CN=thalweg-{name}"));
    assert!(parsed.has_signed(&parsed.signed()), "self-signed");
    let ten_years = (parsed.valid_to() - parsed.valid_from()).as_secs() / 86_400;
    assert!((3652..=3653).contains(&ten_years), "{ten_years}");
    let usage = parsed.certificate.tbs_certificate.get::<KeyUsage>().unwrap().unwrap().1;
    assert!(usage.digital_signature() && usage.non_repudiation() && usage.key_encipherment());
    assert!(usage.data_encipherment() && usage.key_cert_sign());
    let extended = parsed
        .certificate
        .tbs_certificate
        .get::<ExtendedKeyUsage>()
        .unwrap()
        .unwrap()
        .1;
    assert_eq!(extended.0, [CLIENT_AUTH]);
    let sha1 = ParsedCertificate::from_der(&legacy.pair.der).unwrap();
    assert_eq!(
        sha1.certificate.signature_algorithm.oid.to_string(),
        "1.2.840.113549.1.1.5"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn the_private_key_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    ClientCertificates::new(None, folder.path())
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .unwrap();
    let mode = std::fs::metadata(folder.path().join("opcua-client.key.pem"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_damaged_or_unwritable_folder_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("opcua-client.der"), b"x").unwrap();
    std::fs::write(folder.path().join("opcua-client.key.pem"), b"y").unwrap();
    let load = |keys: &Path| ClientCertificates::new(None, keys);
    let error = load(folder.path())
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .err()
        .unwrap();
    assert!(
        error.contains("cannot be used") && error.contains("remove it"),
        "{error}"
    );
    // Blocks the file that is written first.
    let keys = folder.path().join("keys");
    std::fs::create_dir_all(keys.join("opcua-client.key.pem.partial")).unwrap();
    let error = load(&keys)
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .err()
        .unwrap();
    assert!(error.contains("make the folder writable"), "{error}");
}

/// Servers trust the stored certificate; a new one would lock Thalweg out of all of them.
#[tokio::test]
async fn a_kept_pair_that_cannot_be_read_is_not_replaced() {
    for broken in ["opcua-client.der", "opcua-client.key.pem"] {
        let folder = tempfile::tempdir().unwrap();
        let load = || async {
            let certificates = ClientCertificates::new(None, folder.path());
            let loaded = certificates.for_policy(SecurityPolicy::Basic256Sha256).await;
            loaded.map(|own| own.pair.der)
        };
        let first = load().await.unwrap();
        let (file, away) = (folder.path().join(broken), folder.path().join("away"));
        std::fs::rename(&file, &away).unwrap();
        // A folder cannot be read as a file, not even by root.
        std::fs::create_dir(&file).unwrap();
        let error = load().await.unwrap_err();
        assert!(
            error.contains(&file.display().to_string()) && error.contains("make the file readable"),
            "{error}"
        );
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&away, &file).unwrap();
        assert_eq!(load().await.unwrap(), first);
    }
}

#[tokio::test]
async fn a_certificate_whose_key_is_missing_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let load = || async {
        let certificates = ClientCertificates::new(None, folder.path());
        let loaded = certificates.for_policy(SecurityPolicy::Basic256Sha256).await;
        loaded.map(|own| own.pair.der)
    };
    let first = load().await.unwrap();
    let (key, away) = (folder.path().join("opcua-client.key.pem"), folder.path().join("away"));
    std::fs::rename(&key, &away).unwrap();
    let error = load().await.unwrap_err();
    assert!(error.contains("is missing; restore it"), "{error}");
    std::fs::rename(&away, &key).unwrap();
    assert_eq!(load().await.unwrap(), first);
}

/// A power loss must leave whole files or none: files are never written under their final names.
#[cfg(unix)]
#[tokio::test]
async fn key_and_certificate_come_into_being_whole() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("opcua-client.key.pem");
    let certificate = folder.path().join("opcua-client.der");
    // A crash between the two writes leaves this; both are then generated.
    std::fs::write(&key, b"torn").unwrap();
    let other_name = folder.path().join("other");
    std::fs::hard_link(&key, &other_name).unwrap();
    ClientCertificates::new(None, folder.path())
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .unwrap();
    assert_eq!(std::fs::read(&other_name).unwrap(), b"torn");
    let (certificate, key) = (std::fs::read(certificate).unwrap(), std::fs::read(key).unwrap());
    assert!(KeyPair::from_parts(&certificate, &key).is_ok());
}

#[tokio::test]
async fn a_configured_certificate_whose_key_is_too_short_for_the_policy_is_not_used() {
    let server = X509Data {
        key_size: 1024,
        ..X509Data::sample_cert()
    };
    let (certificate, key) = X509::cert_and_pkey(&server).unwrap();
    let pair = KeyPair {
        der: certificate.to_der().unwrap(),
        certificate,
        key,
    };
    let keys = tempfile::tempdir().unwrap();
    let certificates = ClientCertificates::new(Some(pair), keys.path());
    let error = certificates
        .for_policy(SecurityPolicy::Basic256Sha256)
        .await
        .err()
        .unwrap();
    assert!(error.starts_with("clientCertificate has a key of 1024 bits"), "{error}");
    assert!(certificates.for_policy(SecurityPolicy::Basic256).await.is_ok());
}
