use super::*;
use crate::security::client_certificate::generate_for_tests;

fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

#[test]
fn every_form_of_certificate_and_key_is_read() {
    let (pair, key_pem) = generate_for_tests("urn:test");
    let certificate_pem = to_pem("CERTIFICATE", &pair.der);
    let key_der = pair.key.to_der().unwrap();
    let pkcs1 = {
        use rsa::pkcs1::EncodeRsaPrivateKey as _;
        use rsa::pkcs8::DecodePrivateKey as _;
        rsa::RsaPrivateKey::from_pkcs8_der(key_der.as_bytes())
            .unwrap()
            .to_pkcs1_der()
            .unwrap()
    };
    for certificate in [pair.der.as_slice(), certificate_pem.as_bytes()] {
        let pkcs1_pem = to_pem("RSA PRIVATE KEY", pkcs1.as_bytes());
        for key in [
            key_der.as_bytes(),
            pkcs1.as_bytes(),
            key_pem.as_bytes(),
            pkcs1_pem.as_bytes(),
        ] {
            let read = KeyPair::from_base64(&base64(certificate), &base64(key)).unwrap();
            assert_eq!(read.der, pair.der);
        }
    }
    for bundle in [
        format!("{certificate_pem}{key_pem}"),
        format!("{key_pem}\r\n{certificate_pem}"),
    ] {
        assert_eq!(KeyPair::from_bundle(&base64(bundle.as_bytes())).unwrap().der, pair.der);
    }
}

#[test]
fn mistakes_are_one_sentence() {
    let (pair, key_pem) = generate_for_tests("urn:test");
    let (_, other_key) = generate_for_tests("urn:other");
    let certificate_pem = to_pem("CERTIFICATE", &pair.der);
    let error = |bundle: String| KeyPair::from_bundle(&base64(bundle.as_bytes())).unwrap_err();
    assert_eq!(error(key_pem), "it holds no certificate in PEM or DER form");
    assert_eq!(error(certificate_pem.clone()), "it holds no private key");
    assert_eq!(
        error(format!("{certificate_pem}{other_key}")),
        "the private key does not belong to the certificate"
    );
    let elliptic = to_pem("EC PRIVATE KEY", b"no RSA");
    assert_eq!(
        error(format!("{certificate_pem}{elliptic}")),
        "invalid private key type or not RSA"
    );
    assert!(KeyPair::from_bundle("%%%").unwrap_err().starts_with("expected base64"));
}

#[test]
fn debug_shows_no_key() {
    let (pair, key_pem) = generate_for_tests("urn:test");
    let shown = format!("{pair:?}");
    assert!(shown.len() < 100 && !key_pem.contains(&shown));
}
