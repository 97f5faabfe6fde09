use opcua::crypto::{X509Data, legacy_decrypt_secret};
use opcua::types::UserTokenType;

use super::*;
use crate::security::KeyPair;

fn token(policy: Option<SecurityPolicy>, kind: UserTokenType, id: &str) -> UserTokenPolicy {
    UserTokenPolicy {
        policy_id: id.into(),
        token_type: kind,
        security_policy_uri: policy.map_or_else(UAString::null, |policy| policy.to_uri().into()),
        ..UserTokenPolicy::default()
    }
}

fn offer(mode: MessageSecurityMode, policy: SecurityPolicy, tokens: Vec<UserTokenPolicy>) -> EndpointOffer {
    EndpointOffer {
        tokens,
        ..EndpointOffer::assumed("opc.tcp://x:1".to_owned(), mode, policy)
    }
}

fn open(tokens: Vec<UserTokenPolicy>) -> EndpointOffer {
    offer(MessageSecurityMode::None, SecurityPolicy::None, tokens)
}

fn user() -> Identity {
    Identity::User {
        name: "operator".to_owned(),
        password: "secret".to_owned(),
    }
}

/// One pair for all tests, because generating it takes a noticeable part of a second.
fn pair() -> (X509, opcua::crypto::PrivateKey) {
    static PAIR: std::sync::OnceLock<(X509, opcua::crypto::PrivateKey)> = std::sync::OnceLock::new();
    PAIR.get_or_init(|| X509::cert_and_pkey(&X509Data::sample_cert()).unwrap())
        .clone()
}

fn nonce() -> ByteString {
    ByteString::from(vec![5; 32])
}

fn user_token(login: &Login) -> UserNameIdentityToken {
    login.token.inner_as::<UserNameIdentityToken>().unwrap().clone()
}

const NAME: UserTokenType = UserTokenType::UserName;

#[test]
fn the_strongest_way_to_log_in_is_taken_whatever_its_place() {
    let tokens = vec![
        token(Some(SecurityPolicy::None), NAME, "clear"),
        token(Some(SecurityPolicy::Basic128Rsa15), NAME, "weak"),
        token(
            Some(SecurityPolicy::Aes256Sha256RsaPss),
            UserTokenType::Certificate,
            "other",
        ),
        token(Some(SecurityPolicy::Aes128Sha256RsaOaep), NAME, "strong"),
        token(Some(SecurityPolicy::Aes128Sha256RsaOaep), NAME, "as strong"),
        token(Some(SecurityPolicy::Basic256), NAME, "middle"),
    ];
    let (certificate, _) = pair();
    let login = login(&user(), &open(tokens.clone()), Some(&certificate), &nonce()).unwrap();
    assert_eq!(user_token(&login).policy_id.as_ref(), "strong");
    assert!(!login.clear_text);
    // There is no key to encrypt for, so this is the only option.
    let login = super::login(&user(), &open(tokens), None, &nonce()).unwrap();
    assert_eq!(user_token(&login).policy_id.as_ref(), "clear");
    assert!(login.clear_text);
}

#[test]
fn a_policy_that_thalweg_does_not_speak_is_passed_over() {
    let mut unknown = token(None, NAME, "unknown");
    unknown.security_policy_uri = "http://opcfoundation.org/UA/SecurityPolicy#ECC_nistP256".into();
    let (certificate, _) = pair();
    let known = token(Some(SecurityPolicy::Basic256Sha256), NAME, "known");
    let offered = open(vec![unknown.clone(), known]);
    let found = login(&user(), &offered, Some(&certificate), &nonce()).unwrap();
    assert_eq!(user_token(&found).policy_id.as_ref(), "known");
    let error = login(&user(), &open(vec![unknown]), Some(&certificate), &nonce())
        .err()
        .unwrap();
    assert!(
        error.contains("accepts no user name login that Thalweg can make"),
        "{error}"
    );
}

#[test]
fn a_password_is_encrypted_for_the_server_by_the_policy_of_its_token() {
    let (certificate, key) = pair();
    for policy in [
        SecurityPolicy::Basic128Rsa15,
        SecurityPolicy::Basic256,
        SecurityPolicy::Basic256Sha256,
        SecurityPolicy::Aes128Sha256RsaOaep,
        SecurityPolicy::Aes256Sha256RsaPss,
    ] {
        let offered = open(vec![token(Some(policy), NAME, "p")]);
        let login = login(&user(), &offered, Some(&certificate), &nonce()).unwrap();
        let token = user_token(&login);
        assert_eq!(
            Some(token.encryption_algorithm.as_ref()),
            policy.asymmetric_encryption_algorithm()
        );
        let password = legacy_decrypt_secret(&token, nonce().as_ref(), &key).unwrap();
        assert_eq!((password.as_ref(), login.clear_text), (&b"secret"[..], false));
    }
}

#[test]
fn a_token_without_a_policy_uses_that_of_the_channel() {
    let (certificate, _) = pair();
    let tokens = vec![token(None, NAME, "p")];
    let offered = offer(MessageSecurityMode::Sign, SecurityPolicy::Basic256Sha256, tokens);
    let login = login(&user(), &offered, Some(&certificate), &nonce()).unwrap();
    assert!(!user_token(&login).encryption_algorithm.is_empty() && !login.clear_text);
    let error = super::login(&user(), &offered, None, &nonce()).err().unwrap();
    assert!(
        error.contains("wants the password encrypted but shows no certificate"),
        "{error}"
    );
}

#[test]
fn a_password_in_clear_is_readable_only_outside_an_encrypted_channel() {
    let tokens = || vec![token(Some(SecurityPolicy::None), NAME, "clear")];
    let (certificate, _) = pair();
    for (mode, policy, readable) in [
        (MessageSecurityMode::None, SecurityPolicy::None, true),
        (MessageSecurityMode::Sign, SecurityPolicy::Basic256Sha256, true),
        (
            MessageSecurityMode::SignAndEncrypt,
            SecurityPolicy::Basic256Sha256,
            false,
        ),
    ] {
        let login = login(&user(), &offer(mode, policy, tokens()), Some(&certificate), &nonce()).unwrap();
        let token = user_token(&login);
        assert_eq!(token.password.as_ref(), b"secret");
        assert_eq!(login.clear_text, readable, "{mode:?}");
    }
}

#[test]
fn a_certificate_logs_in_under_none_if_its_token_has_a_policy() {
    let (certificate, key) = pair();
    let user = KeyPair {
        der: certificate.to_der().unwrap(),
        certificate: certificate.clone(),
        key,
    };
    let identity = Identity::Certificate(Box::new(user));
    let kind = UserTokenType::Certificate;
    let offered = open(vec![token(Some(SecurityPolicy::Basic256Sha256), kind, "signed")]);
    let signed = login(&identity, &offered, Some(&certificate), &nonce()).unwrap();
    let proof = opcua::crypto::verify_signature_data(
        &signed.signature,
        SecurityPolicy::Basic256Sha256,
        &certificate,
        &certificate,
        nonce().as_ref(),
    );
    assert!(proof.is_ok(), "{proof:?}");
    // Neither of these could be signed; the certificate alone would prove nothing.
    let error = login(&identity, &offered, None, &nonce()).err().unwrap();
    assert!(error.contains("cannot be signed"), "{error}");
    let unsigned = open(vec![token(Some(SecurityPolicy::None), kind, "unsigned")]);
    let error = login(&identity, &unsigned, Some(&certificate), &nonce()).err().unwrap();
    assert!(error.contains("use a secured endpoint"), "{error}");
}

#[test]
fn a_key_that_is_too_short_for_the_policy_of_a_login_hides_no_password_and_proves_nobody() {
    let weak = X509Data {
        key_size: 1024,
        ..X509Data::sample_cert()
    };
    let (certificate, key) = X509::cert_and_pkey(&weak).unwrap();
    let offered = |kind, policy| open(vec![token(Some(policy), kind, "it")]);
    let by_password = |policy| login(&user(), &offered(NAME, policy), Some(&certificate), &nonce());
    let error = by_password(SecurityPolicy::Basic256Sha256).err().unwrap();
    assert!(
        error.starts_with("the server's certificate has a key of 1024 bits"),
        "{error}"
    );
    assert!(by_password(SecurityPolicy::Basic256).is_ok());
    let own = KeyPair {
        der: certificate.to_der().unwrap(),
        certificate: certificate.clone(),
        key,
    };
    let identity = Identity::Certificate(Box::new(own));
    let offered = offered(UserTokenType::Certificate, SecurityPolicy::Basic256Sha256);
    let (server, _) = pair();
    let error = login(&identity, &offered, Some(&server), &nonce()).err().unwrap();
    assert!(error.starts_with("userCertificate has a key of 1024 bits"), "{error}");
}

#[test]
fn without_any_list_of_logins_the_token_has_no_policy_id() {
    let login = login(&user(), &open(Vec::new()), None, &nonce()).unwrap();
    let token = user_token(&login);
    assert!(token.policy_id.is_empty() && login.clear_text);
}
