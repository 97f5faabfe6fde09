//! The login of a session: the token that proves who the client is, encrypted as the server's token policy requires.

use opcua::crypto::{SecurityPolicy, X509, create_signature_data, legacy_encrypt_secret};
use opcua::types::{
    AnonymousIdentityToken, ByteString, ExtensionObject, MessageSecurityMode, SignatureData, UAString,
    UserNameIdentityToken, UserTokenPolicy, X509IdentityToken,
};

use super::endpoint_choice::{EndpointOffer, policy_of_uri, strength, token_type};
use super::policy_rules::check_key;
use crate::config::Identity;

/// The user part of ActivateSession.
pub(crate) struct Login {
    pub token: ExtensionObject,
    pub signature: SignatureData,
    /// The password is sent in clear text; the caller warns.
    pub clear_text: bool,
}

/// `nonce` is the server's latest. Errors are sentences.
pub(crate) fn login(
    identity: &Identity,
    offer: &EndpointOffer,
    server_certificate: Option<&X509>,
    nonce: &ByteString,
) -> Result<Login, String> {
    let policy = token_policy(identity, offer, server_certificate.is_some())?;
    match identity {
        Identity::Anonymous => Ok(Login {
            token: ExtensionObject::from_message(AnonymousIdentityToken {
                policy_id: policy.policy_id,
            }),
            signature: SignatureData::null(),
            clear_text: false,
        }),
        Identity::User { name, password } => user_name(name, password, &policy, offer, server_certificate, nonce),
        Identity::Certificate(pair) => {
            let server = server_certificate.ok_or(
                "the server shows no certificate, so a login by certificate cannot be signed for it; use a user name or a secured endpoint",
            )?;
            let effective = effective_policy(&policy, offer);
            if effective == SecurityPolicy::None {
                // The library would omit the signature, and the certificate alone proves nothing.
                return Err(
                    "the server offers no security policy for a login by certificate, so it cannot be signed; use a secured endpoint".to_owned(),
                );
            }
            check_key(effective, "userCertificate", pair.certificate.key_length().ok())?;
            let signature = create_signature_data(&pair.key, effective, &server.as_byte_string(), nonce);
            Ok(Login {
                token: ExtensionObject::from_message(X509IdentityToken {
                    policy_id: policy.policy_id,
                    certificate_data: ByteString::from(pair.der.clone()),
                }),
                signature: signature.map_err(|error| format!("the login by certificate cannot be signed: {error}"))?,
                clear_text: false,
            })
        }
    }
}

/// Returns the offered token policy for this kind of login with the best protection.
fn token_policy(identity: &Identity, offer: &EndpointOffer, has_certificate: bool) -> Result<UserTokenPolicy, String> {
    let kind = token_type(identity);
    let of_kind = || offer.tokens.iter().filter(|token| token.token_type == kind);
    let usable = |token: &&UserTokenPolicy| effective_policy(token, offer) != SecurityPolicy::Unknown;
    let possible = |token: &&UserTokenPolicy| has_certificate || effective_policy(token, offer) == SecurityPolicy::None;
    // Among equally strong ones the first, because servers list their preferred one first.
    let best = of_kind()
        .rev()
        .filter(usable)
        .filter(possible)
        .max_by_key(|token| strength(effective_policy(token, offer)))
        .or_else(|| of_kind().find(usable));
    match best {
        Some(token) => Ok(token.clone()),
        // Without any list the policy id is a guess; most servers then ignore it.
        None if offer.tokens.is_empty() => Ok(UserTokenPolicy {
            token_type: kind,
            ..UserTokenPolicy::default()
        }),
        None => Err(format!(
            "the chosen endpoint accepts no {} login that Thalweg can make",
            identity.as_str()
        )),
    }
}

/// A token policy without its own security policy uses the channel's.
fn effective_policy(token: &UserTokenPolicy, offer: &EndpointOffer) -> SecurityPolicy {
    match token.security_policy_uri.as_ref() {
        "" => offer.policy,
        uri => policy_of_uri(uri),
    }
}

fn user_name(
    name: &str,
    password: &str,
    policy: &UserTokenPolicy,
    offer: &EndpointOffer,
    server_certificate: Option<&X509>,
    nonce: &ByteString,
) -> Result<Login, String> {
    let effective = effective_policy(policy, offer);
    let (secret, algorithm) = match (effective, server_certificate) {
        (SecurityPolicy::None, _) => (ByteString::from(password.as_bytes().to_vec()), UAString::null()),
        (_, None) => {
            return Err(
                "the server wants the password encrypted but shows no certificate to encrypt it for".to_owned(),
            );
        }
        (effective, Some(certificate)) => {
            // Only this key protects the password where the channel does not.
            check_key(effective, "the server's certificate", certificate.key_length().ok())?;
            let mut policy = policy.clone();
            policy.security_policy_uri = UAString::from(effective.to_uri());
            let certificate = Some(certificate.clone());
            // With mode None and a policy of the token, the library encrypts by that policy.
            let (channel, mode) = (SecurityPolicy::None, MessageSecurityMode::None);
            let encrypted = legacy_encrypt_secret(
                channel,
                mode,
                &policy,
                nonce.as_ref(),
                &certificate,
                password.as_bytes(),
            );
            let encrypted =
                encrypted.map_err(|error| format!("the password cannot be encrypted for the server: {error}"))?;
            (encrypted.secret, encrypted.encryption_algorithm)
        }
    };
    // Inside an encrypted channel a plain password is not readable.
    let clear_text = effective == SecurityPolicy::None && offer.mode != MessageSecurityMode::SignAndEncrypt;
    let token = UserNameIdentityToken {
        policy_id: policy.policy_id.clone(),
        user_name: UAString::from(name),
        password: secret,
        encryption_algorithm: algorithm,
    };
    Ok(Login {
        token: ExtensionObject::from_message(token),
        signature: SignatureData::null(),
        clear_text,
    })
}

#[cfg(test)]
mod tests;
