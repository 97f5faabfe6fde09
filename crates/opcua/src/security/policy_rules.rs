//! Requirements of a security policy on certificates (OPC UA, Part 7): the minimum key length, and whether SHA-1
//! signatures are valid.

use opcua::crypto::SecurityPolicy;

use crate::config::policy_name;

/// Returns whether this is one of the two policies that use SHA-1.
pub(crate) fn is_legacy(policy: SecurityPolicy) -> bool {
    matches!(policy, SecurityPolicy::Basic256 | SecurityPolicy::Basic128Rsa15)
}

/// The policies also define a maximum length. A longer key protects no less, so it is accepted.
pub(crate) fn key_bits_min(policy: SecurityPolicy) -> usize {
    match is_legacy(policy) {
        true => 1024,
        false => 2048,
    }
}

/// `whose` is the subject of the sentence, such as "the server's certificate"; `bits` is `None` for a key that is not
/// RSA. Without a policy there is no requirement.
pub(crate) fn check_key(policy: SecurityPolicy, whose: &str, bits: Option<usize>) -> Result<(), String> {
    if matches!(policy, SecurityPolicy::None | SecurityPolicy::Unknown) {
        return Ok(());
    }
    let (least, name) = (key_bits_min(policy), policy_name(policy));
    match bits {
        Some(bits) if bits >= least => Ok(()),
        Some(bits) => Err(format!(
            "{whose} has a key of {bits} bits, and the policy {name} needs {least}; replace it by one with a longer key"
        )),
        None => Err(format!(
            "{whose} has no RSA key of at most 4096 bits, which the policy {name} needs; replace it by one with such a key"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_its_shortest_key() {
        for (policy, least) in [
            (SecurityPolicy::Basic128Rsa15, 1024),
            (SecurityPolicy::Basic256, 1024),
            (SecurityPolicy::Basic256Sha256, 2048),
            (SecurityPolicy::Aes128Sha256RsaOaep, 2048),
            (SecurityPolicy::Aes256Sha256RsaPss, 2048),
        ] {
            // The library has the same numbers.
            assert!(policy.is_valid_keylength(least) && !policy.is_valid_keylength(least - 1));
            assert_eq!(check_key(policy, "it", Some(least)), Ok(()));
            assert_eq!(check_key(policy, "it", Some(4096)), Ok(()));
            let error = check_key(policy, "it", Some(least - 1)).unwrap_err();
            assert!(error.contains(&format!("needs {least}")), "{error}");
            assert!(check_key(policy, "it", None).is_err());
        }
        assert_eq!(check_key(SecurityPolicy::None, "it", Some(512)), Ok(()));
    }
}
