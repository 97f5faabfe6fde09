//! Secrets: values read from files by `${file:PATH}`, and names whose values are never shown.
//!
//! File references are expanded after parsing, so the content of a file cannot change the shape of the document. An
//! expanded value is text and stays masked wherever the configuration is printed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::diagnostics::{Diagnostics, UNSET};
use crate::names::quoted;
use crate::node::{Mapping, Node, NodeValue, Scalar};
use crate::scalar::ScalarValue;
use crate::source::reason;

/// Printed in place of a secret.
pub(crate) const MASK: &str = "!!!SECRET_SCRUBBED!!!";

/// Largest secret file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of fields with secrets, in lower case without `_` and `-`.
const SECRET_NAMES: [&str; 23] = [
    "accesskey",
    "accesstoken",
    "accountkey",
    "apikey",
    "authorization",
    "authtoken",
    "bearertoken",
    "clientcertificate",
    "clientsecret",
    "passphrase",
    "password",
    "passwordhash",
    "privatekey",
    "refreshtoken",
    "saskey",
    "sastoken",
    "secret",
    "secretaccesskey",
    "secretkey",
    "serviceaccountkey",
    "sessiontoken",
    "token",
    "userprivatekey",
];

/// Whether values under this name are masked.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-')).collect();
    SECRET_NAMES.binary_search(&plain.to_ascii_lowercase().as_str()).is_ok()
}

/// Whether a text is or contains a private key in PEM form, whatever its field is called.
pub(crate) fn has_private_key(text: &str) -> bool {
    text.contains("PRIVATE KEY-----")
}

/// The text with the password of a URL (`scheme://user:password@host`) masked, if it has one.
pub(crate) fn mask_url(text: &str) -> Option<String> {
    let mut masked = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        masked.push_str(before);
        masked.push_str("://");
        let end = after.find(|c: char| c == '/' || c == ',' || c.is_whitespace());
        let (authority, tail) = after.split_at(end.unwrap_or(after.len()));
        match authority
            .rsplit_once('@')
            .map(|(login, host)| (login.split_once(':'), host))
        {
            Some((Some((user, password)), host)) if !password.is_empty() => {
                masked.push_str(&format!("{user}:{MASK}@{host}"));
            }
            _ => masked.push_str(authority),
        }
        rest = tail;
    }
    masked.push_str(rest);
    (masked != text).then_some(masked)
}

/// Replaces each `${file:PATH}` in the values of the tree; `${{file:PATH}}` is the literal form.
pub(crate) fn expand_files(node: &Node, diags: &Diagnostics) -> Node {
    expanded(node, diags).unwrap_or_else(|| node.clone())
}

/// The changed node, `None` if nothing in it refers to a file.
fn expanded(node: &Node, diags: &Diagnostics) -> Option<Node> {
    let value = match node.value() {
        NodeValue::Scalar(scalar) => NodeValue::Scalar(expand_scalar(node, scalar, diags)?),
        NodeValue::Seq(items) => {
            let changed: Vec<_> = items.iter().map(|item| expanded(item, diags)).collect();
            if changed.iter().all(Option::is_none) {
                return None;
            }
            let pairs = items.iter().zip(changed);
            NodeValue::Seq(pairs.map(|(old, new)| new.unwrap_or_else(|| old.clone())).collect())
        }
        NodeValue::Map(mapping) => {
            let changed: Vec<_> = mapping.iter().map(|(_, value)| expanded(value, diags)).collect();
            if changed.iter().all(Option::is_none) {
                return None;
            }
            let pairs = mapping.iter().zip(changed);
            let entries = pairs.map(|((key, old), new)| (key.clone(), new.unwrap_or_else(|| old.clone())));
            NodeValue::Map(Mapping::new(entries.collect()))
        }
    };
    Some(Node::new(node.pos(), node.steps().clone(), value))
}

fn expand_scalar(node: &Node, scalar: &Scalar, diags: &Diagnostics) -> Option<Scalar> {
    const OPEN: &str = "${file:";
    const LITERAL: &str = "${{file:";
    if !scalar.text.contains(OPEN) && !scalar.text.contains(LITERAL) {
        return None;
    }
    let mut text = String::new();
    let mut secret = scalar.secret;
    let mut rest: &str = &scalar.text;
    while let Some(at) = rest.find("${") {
        let (before, mark) = rest.split_at(at);
        text.push_str(before);
        if let Some((path, after)) = mark.strip_prefix(OPEN).and_then(|r| r.split_once('}')) {
            match read_secret(path) {
                Ok(content) => text.push_str(&content),
                Err(why) => {
                    let message = format!("cannot read the file {}: {why}", quoted(path));
                    match Path::new(path).exists() || path.is_empty() {
                        true => diags.error(node, message),
                        false => diags.absent_at(node.pos(), format!("{}: {message}", node.path()), ""),
                    }
                    diags.unset();
                    text.push_str(UNSET);
                }
            }
            secret = true;
            rest = after;
        } else if let Some((path, after)) = mark.strip_prefix(LITERAL).and_then(|r| r.split_once("}}")) {
            text.push_str(&format!("{OPEN}{path}}}"));
            rest = after;
        } else {
            text.push_str("${");
            rest = mark.get(2..).unwrap_or_default();
        }
    }
    text.push_str(rest);
    Some(Scalar {
        secret,
        origin: None,
        ..Scalar::new(text, ScalarValue::Str)
    })
}

/// The content of a file without its last line break.
fn read_secret(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("the path is missing".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| reason(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "it is larger than {} MiB, the limit for a secret",
            FILE_BYTES_MAX >> 20
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let line = text
        .strip_suffix('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok(line.unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_in_every_spelling() {
        assert!(SECRET_NAMES.is_sorted());
        for name in [
            "password",
            "Password",
            "client_secret",
            "userPrivateKey",
            "clientCertificate",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["private_key", "api-key", "Authorization", "password_hash", "token"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in [
            "secret_access_key",
            "session_token",
            "account_key",
            "sas_token",
            "service_account_key",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["access_key_id", "tokens", "user", "key_file", "key", "userCertificate"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn private_keys_are_told_by_what_they_are() {
        for (text, is_key) in [
            ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----", true),
            ("-----BEGIN EC PRIVATE KEY-----", true),
            ("-----BEGIN CERTIFICATE-----", false),
            ("the private key", false),
        ] {
            assert_eq!(has_private_key(text), is_key, "{text}");
        }
    }

    #[test]
    fn passwords_in_urls() {
        let cases = [
            ("mqtt://u:p@h:1883", Some("mqtt://u:!!!SECRET_SCRUBBED!!!@h:1883")),
            (
                "a://u:p@h/x?y=:@,b://v:q@h",
                Some("a://u:!!!SECRET_SCRUBBED!!!@h/x?y=:@,b://v:!!!SECRET_SCRUBBED!!!@h"),
            ),
            ("opc.tcp://plc:4840/a@b:c", None),
            ("http://u@h", None),
            ("plain: text@x", None),
        ];
        for (text, expected) in cases {
            assert_eq!(mask_url(text).as_deref(), expected, "for {text}");
        }
    }

    #[test]
    fn a_file_that_is_larger_than_any_secret_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pw");
        for (bytes, expected) in [
            (1 << 20, ""),
            ((1 << 20) + 1, "it is larger than 1 MiB, the limit for a secret"),
        ] {
            std::fs::write(&path, vec![b'x'; bytes]).unwrap();
            let diags = Diagnostics::new("f.yaml");
            let node = Node::parse(&format!("a: '${{file:{}}}'\n", path.display())).unwrap();
            let _ = expand_files(&node, &diags);
            let told = diags.to_string();
            assert!(
                told.contains(expected) && told.is_empty() == expected.is_empty(),
                "{told}"
            );
        }
    }

    #[test]
    fn files_replace_references_and_stay_masked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pw");
        std::fs::write(&path, "s3cret: [x]\n").unwrap();
        let path = path.display();
        let text = format!(
            "user: Bearer ${{file:{path}}}!\nlist: [1, '${{file:{path}}}']\n\
             literal: '${{{{file:x}}}}'\nother: ${{a + b}}\nbad: '${{file:/none}}'\nempty: '${{file:}}'\n"
        );
        let diags = Diagnostics::new("f.yaml");
        let node = expand_files(&Node::parse(&text).unwrap(), &diags);
        assert_eq!(node.get("user").unwrap().as_str(), Some("Bearer s3cret: [x]!"));
        assert_eq!(node.get("literal").unwrap().as_str(), Some("${file:x}"));
        assert_eq!(node.get("other").unwrap().as_str(), Some("${a + b}"));
        assert!(node.get("list").unwrap().as_seq().unwrap()[1].is_masked());
        assert!(!node.to_yaml().contains("s3cret") && !format!("{node:?}").contains("s3cret"));
        assert_eq!(node.get("user").unwrap().describe(), "a secret value");
        let expected = "f.yaml:5:6: bad: cannot read the file \"/none\": No such file or directory\n\
                        f.yaml:6:8: empty: cannot read the file \"\": the path is missing\n";
        assert_eq!(diags.to_string(), expected);
    }
}
