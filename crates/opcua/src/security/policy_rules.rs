//! What a security policy asks of the certificates that it is used with (OPC UA, Part 7): how long a key must be, and whether
//! a signature by SHA-1 still counts.

use opcua::crypto::SecurityPolicy;

use crate::config::policy_name;

/// The two policies from the time of SHA-1.
pub(crate) fn is_legacy(policy: SecurityPolicy) -> bool {
    matches!(policy, SecurityPolicy::Basic256 | SecurityPolicy::Basic128Rsa15)
}

/// The policies name a longest key too. A longer one protects no less, so it is taken.
pub(crate) fn key_bits_min(policy: SecurityPolicy) -> usize {
    match is_legacy(policy) {
        true => 1024,
        false => 2048,
    }
}

/// `whose` is the subject of the sentence, as "the server's certificate"; `bits` is `None` of a key that is not RSA. Without a
/// policy nothing is asked.
pub(crate) fn check_key(policy: SecurityPolicy, whose: &str, bits: Option<usize>) -> Result<(), String> {
    if matches!(policy, SecurityPolicy::None | SecurityPolicy::Unknown) {
        return Ok(());
    }
    let (least, name) = (key_bits_min(policy), policy_name(policy));
    match bits {
        Some(bits) if bits >= least => Ok(()),
        Some(bits) => Err(format!(
            "{whose} has a key of {bits} bits, and the policy {name} needs {least}; have it made anew with a longer key"
        )),
        None => Err(format!(
            "{whose} has a key that is no RSA key of at most 4096 bits, which the policy {name} needs; have it made anew with one"
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
            // The library knows the same numbers.
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
