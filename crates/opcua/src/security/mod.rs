//! Security of connections: the choice of an endpoint, our certificate, trust in the server's, and the login.
//!
//! Nothing here ever weakens the configured requirements: if nothing matches, the error lists the offers.

mod client_certificate;
mod durable_file;
mod endpoint_choice;
mod fingerprint;
mod identity;
mod key_pair;
mod pins;
mod policy_rules;
#[cfg(test)]
mod test_pki;
mod trust;
mod trust_folder;
mod x509;

pub(crate) use client_certificate::ClientCertificates;
pub(crate) use endpoint_choice::{EndpointOffer, advice, as_given, choose, is_binary, stronger};
pub(crate) use fingerprint::{Fingerprint, sha256_hex};
pub(crate) use identity::login;
pub(crate) use key_pair::KeyPair;
pub(crate) use trust::{ServerCertificate, Trust};

/// Returns the server's own certificate from a possible chain.
pub(crate) fn leaf_certificate(chain: &[u8]) -> Option<Vec<u8>> {
    x509::first_certificate(chain)
}

/// Returns the application URI in a certificate.
pub(crate) fn application_uri_of(der: &[u8]) -> Option<String> {
    x509::ParsedCertificate::from_der(der).ok()?.application_uri()
}
