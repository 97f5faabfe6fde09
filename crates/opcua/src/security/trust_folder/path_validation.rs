//! Validates a certification path (RFC 5280, 6.1, and OPC UA, Part 4, 6.1.3): whether each authority may issue what is
//! below it, for this purpose, with this strength, today. Revocation is checked afterwards.
//!
//! A path of one certificate is a server's certificate in `trusted/` itself. The operator has named exactly this
//! certificate, so no issuer is needed: violations of its own restrictions are logged, but are no reason to reject it.

use std::time::Duration;

use opcua::crypto::SecurityPolicy;
use x509_cert::spki::ObjectIdentifier;

use super::super::policy_rules::{check_key, is_legacy};
use super::super::sha256_hex;
use super::super::x509::ParsedCertificate;
use super::date;
use super::path_building::{PathCheckStage, Refusal};
use crate::config::policy_name;

const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
const ANY_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");

/// `path` begins with the server's certificate and ends with a trusted one.
pub(super) fn validate(path: &[&ParsedCertificate], policy: SecurityPolicy, now: Duration) -> Result<(), Refusal> {
    let Some((leaf, authorities)) = path.split_first() else {
        return Ok(());
    };
    let at = |stage: PathCheckStage| move |why: String| Refusal { stage, why };
    if authorities.is_empty() {
        check_strength(path, policy).map_err(at(PathCheckStage::Strength))?;
        return check_dates(leaf, now).map_err(at(PathCheckStage::Dates));
    }
    for authority in authorities {
        check_authority(authority).map_err(at(PathCheckStage::Authority))?;
    }
    check_path_lengths(authorities).map_err(at(PathCheckStage::PathLength))?;
    for certificate in path {
        check_extensions(certificate).map_err(at(PathCheckStage::Extensions))?;
    }
    if let Some(problem) = unfit_as_server(leaf) {
        let why = format!(
            "the server's certificate {} {problem}; have it issued for a server, or move it from rejected/ to trusted/ to accept it as it is",
            sha256_hex(&leaf.der)
        );
        return Err(at(PathCheckStage::Usage)(why));
    }
    check_strength(path, policy).map_err(at(PathCheckStage::Strength))?;
    path.iter()
        .try_for_each(|certificate| check_dates(certificate, now))
        .map_err(at(PathCheckStage::Dates))
}

/// Returns what is unusual about a server's certificate in `trusted/` itself.
pub(super) fn peculiarity(leaf: &ParsedCertificate, policy: SecurityPolicy) -> Option<String> {
    if let Some(unusable) = &leaf.extensions.unusable {
        return Some(format!("has {unusable}"));
    }
    // Many controllers mark their certificate as an authority's, which is harmless, because they cannot act as one for
    // others.
    let unfit = (!leaf.is_authority()).then(|| unfit_as_server(leaf)).flatten();
    unfit.or_else(|| {
        let weak = leaf.is_signed_with_sha1() && !is_legacy(policy);
        weak.then(|| "is signed with SHA-1".to_owned())
    })
}

/// The caller has checked that it is an authority.
fn check_authority(authority: &ParsedCertificate) -> Result<(), String> {
    let subject = authority.subject();
    let usage = authority.extensions.usage.as_ref();
    if usage.is_some_and(|usage| !usage.key_cert_sign()) {
        return Err(format!(
            "the authority {subject} may not sign certificates (its key usage lacks keyCertSign); have the server's certificate issued by one that may"
        ));
    }
    if !is_for_servers(authority) {
        return Err(format!(
            "the authority {subject} may not vouch for servers (its extended key usage lacks serverAuth); have the server's certificate issued by one that may"
        ));
    }
    // Controllers sign their own certificates and mark them as an authority's. An operator who trusts one of them does
    // not mean every certificate that its key signs.
    match authority.application_uri() {
        Some(uri) => Err(format!(
            "the certificate of {subject}, which vouches for the server, belongs to the application {uri:?} and not to an authority; move the server's certificate from rejected/ to trusted/ to accept it"
        )),
        None => Ok(()),
    }
}

fn is_for_servers(certificate: &ParsedCertificate) -> bool {
    let purposes = certificate.extensions.extended_usage.as_ref();
    purposes.is_none_or(|purposes| purposes.iter().any(|id| *id == SERVER_AUTH || *id == ANY_PURPOSE))
}

/// Returns why a certificate cannot be a server's. Without the extensions it may be anything.
fn unfit_as_server(leaf: &ParsedCertificate) -> Option<String> {
    if leaf.is_authority() {
        return Some("belongs to an authority and not to a server".to_owned());
    }
    if let Some(usage) = &leaf.extensions.usage {
        let missing = match (
            usage.digital_signature(),
            usage.key_encipherment() || usage.data_encipherment(),
        ) {
            (false, _) => Some("digitalSignature"),
            (true, false) => Some("keyEncipherment or dataEncipherment"),
            (true, true) => None,
        };
        if let Some(missing) = missing {
            return Some(format!("is not for a secure channel (its key usage lacks {missing})"));
        }
    }
    (!is_for_servers(leaf)).then(|| "is not for servers (its extended key usage lacks serverAuth)".to_owned())
}

/// `authorities` go upwards. A certificate that an authority issued to itself does not count as a step.
fn check_path_lengths(authorities: &[&ParsedCertificate]) -> Result<(), String> {
    let mut below = 0;
    for authority in authorities {
        let most = authority
            .extensions
            .constraints
            .and_then(|constraints| constraints.path_len);
        if let Some(most) = most.filter(|most| *most < below) {
            return Err(format!(
                "the authority {} may have {most} authorities below it (pathLenConstraint), but there are {below} between it and the server; have the server's certificate issued by one that it allows",
                authority.subject()
            ));
        }
        below += u32::from(!authority.is_self_issued());
    }
    Ok(())
}

fn check_extensions(certificate: &ParsedCertificate) -> Result<(), String> {
    match &certificate.extensions.unusable {
        Some(unusable) => Err(format!(
            "the certificate of {} has {unusable}; have it issued without, or move the server's certificate from rejected/ to trusted/ to accept it as it is",
            certificate.subject()
        )),
        None => Ok(()),
    }
}

/// One forged signature of an authority suffices for an attack, so every one must be strong. A trusted certificate's
/// own signature proves nothing.
fn check_strength(path: &[&ParsedCertificate], policy: SecurityPolicy) -> Result<(), String> {
    let (_, signed) = path.split_last().unzip();
    for certificate in signed.unwrap_or_default() {
        if certificate.is_signed_with_sha1() && !is_legacy(policy) {
            return Err(format!(
                "the certificate of {} is signed with SHA-1, which the policy {} does not allow; have it reissued with SHA-256",
                certificate.subject(),
                policy_name(policy)
            ));
        }
    }
    path.iter().try_for_each(|certificate| {
        let whose = format!("the certificate of {}", certificate.subject());
        check_key(policy, &whose, certificate.key_bits())
    })
}

fn check_dates(certificate: &ParsedCertificate, now: Duration) -> Result<(), String> {
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
