//! NodeIds as text: parsed from the configuration, printed into metadata, logs and HTTP responses.
//!
//! The format is `ns=<n>;` with `i=`, `s=`, `g=` or `b=` (base64). Namespace 0 prints without `ns=0;` and may omit
//! `s=`. With `nsu=<uri>;` the namespace is resolved in the server's namespace array at each connect.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use opcua::types::{ByteString, Guid, Identifier, NodeId, UAString};

use crate::namespace_array::NamespaceArray;

/// A node as named in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NodeSpec {
    Indexed(NodeId),
    /// The index of the namespace is known only once connected.
    ByUri {
        uri: String,
        identifier: Identifier,
    },
}

impl NodeSpec {
    /// Errors describe the mistake, for `nodeIDs[3]: ...`.
    pub fn parse(text: &str) -> Result<NodeSpec, String> {
        let wrong = |why: &str| format!("\"{text}\" is not a NodeID: {why}");
        if let Some(rest) = text.strip_prefix("nsu=") {
            let (uri, identifier) = rest
                .split_once(';')
                .ok_or_else(|| wrong("a semicolon must follow the URI"))?;
            if uri.is_empty() {
                return Err(wrong("the URI after nsu= is empty"));
            }
            let identifier = parse_identifier(identifier, false).map_err(|why| wrong(&why))?;
            return Ok(NodeSpec::ByUri {
                uri: uri.to_owned(),
                identifier,
            });
        }
        let (namespace, identifier) = match text.strip_prefix("ns=") {
            Some(rest) => {
                let (index, identifier) = rest
                    .split_once(';')
                    .ok_or_else(|| wrong("a semicolon must follow the namespace"))?;
                let index = index
                    .parse()
                    .map_err(|_| wrong("the namespace is not a number from 0 to 65535"))?;
                (index, identifier)
            }
            None => (0, text),
        };
        let identifier = parse_identifier(identifier, namespace == 0).map_err(|why| wrong(&why))?;
        Ok(NodeSpec::Indexed(NodeId { namespace, identifier }))
    }

    /// As [`NodeSpec::parse`], for a text rendered from a message; a missing value renders as empty or `null`.
    pub fn of_message(text: &str) -> Result<NodeSpec, String> {
        match text {
            "" | "null" => Err("nodeId resolved to empty or null value".to_owned()),
            text => NodeSpec::parse(text),
        }
    }

    /// Returns the node if it is named by namespace index.
    pub fn indexed(&self) -> Option<&NodeId> {
        match self {
            NodeSpec::Indexed(id) => Some(id),
            NodeSpec::ByUri { .. } => None,
        }
    }

    /// Returns the node in a server with this namespace array; the error names the missing URI.
    pub fn resolve(&self, namespaces: &NamespaceArray) -> Result<NodeId, String> {
        match self {
            NodeSpec::Indexed(id) => Ok(id.clone()),
            NodeSpec::ByUri { uri, identifier } => {
                let namespace = namespaces.index_of(uri);
                let namespace = namespace.ok_or_else(|| format!("the server has no namespace \"{uri}\""))?;
                Ok(NodeId {
                    namespace,
                    identifier: identifier.clone(),
                })
            }
        }
    }
}

impl std::fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        match self {
            NodeSpec::Indexed(id) => write(id, &mut out),
            NodeSpec::ByUri { uri, identifier } => {
                let _ = write!(out, "nsu={uri};");
                write_identifier(identifier, &mut out);
            }
        }
        f.write_str(&out)
    }
}

fn parse_identifier(text: &str, may_omit_s: bool) -> Result<Identifier, String> {
    let (kind, value) = match text.as_bytes() {
        [kind, b'=', ..] => (*kind, text.get(2..).unwrap_or_default()),
        _ => (0, text),
    };
    match kind {
        b'i' => {
            let number = value
                .parse()
                .map_err(|_| "i= needs a number from 0 to 4294967295".to_owned())?;
            Ok(Identifier::Numeric(number))
        }
        b's' => Ok(Identifier::String(UAString::from(value))),
        b'g' => match parse_guid(value) {
            Some(guid) => Ok(Identifier::Guid(guid)),
            None => Err("g= needs a GUID such as 09087E75-8E5E-499B-954F-F2A9603DB28A".to_owned()),
        },
        b'b' => {
            let bytes = STANDARD.decode(value).map_err(|_| "b= needs base64".to_owned())?;
            Ok(Identifier::ByteString(ByteString::from(bytes)))
        }
        _ if may_omit_s && !text.is_empty() => Ok(Identifier::String(UAString::from(text))),
        _ => Err("it needs one of i=, s=, g= or b=".to_owned()),
    }
}

/// Parses 8-4-4-4-12 hex digits, optionally in braces.
fn parse_guid(text: &str) -> Option<Guid> {
    let text = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
    let groups: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = groups.iter().map(|g| g.len()).collect();
    if lengths != [8, 4, 4, 4, 12] || !groups.iter().all(|g| g.bytes().all(|b| b.is_ascii_hexdigit())) {
        return None;
    }
    let bytes = u128::from_str_radix(&groups.concat(), 16).ok()?.to_be_bytes();
    Some(Guid::from_bytes(reordered(bytes)))
}

/// Converts between the byte order of a GUID's text and that of its encoding, in which the first three groups are
/// little-endian.
fn reordered(mut bytes: [u8; 16]) -> [u8; 16] {
    for group in [0..4, 4..6, 6..8] {
        bytes.get_mut(group).unwrap_or_default().reverse();
    }
    bytes
}

/// The NodeID text of a node.
pub(crate) fn text(id: &NodeId) -> String {
    let mut out = String::with_capacity(24);
    write(id, &mut out);
    out
}

pub(crate) fn write(id: &NodeId, out: &mut String) {
    if id.namespace != 0 {
        let _ = write!(out, "ns={};", id.namespace);
    }
    write_identifier(&id.identifier, out);
}

/// As [`text`], but with `ns=0;` for namespace 0, as data types appear in metadata.
pub(crate) fn text_with_namespace(id: &NodeId) -> String {
    match id.namespace {
        0 => format!("ns=0;{}", text(id)),
        _ => text(id),
    }
}

/// The memory of an id beside its own size: that of a text or of bytes.
pub(crate) fn heap_bytes(id: &NodeId) -> usize {
    match &id.identifier {
        Identifier::String(text) => text.value().as_ref().map_or(0, String::len),
        Identifier::ByteString(bytes) => bytes.value.as_ref().map_or(0, Vec::len),
        Identifier::Numeric(_) | Identifier::Guid(_) => 0,
    }
}

/// Writes the part after the namespace.
pub(crate) fn write_identifier(identifier: &Identifier, out: &mut String) {
    match identifier {
        Identifier::Numeric(number) => {
            let _ = write!(out, "i={number}");
        }
        Identifier::String(text) => {
            out.push_str("s=");
            out.push_str(text.as_ref());
        }
        Identifier::Guid(guid) => {
            out.push_str("g=");
            write_guid(&reordered(guid.to_bytes()), out);
        }
        Identifier::ByteString(bytes) => {
            out.push_str("b=");
            STANDARD.encode_string(bytes.as_ref(), out);
        }
    }
}

/// Writes upper-case, zero-padded digits from bytes in text order.
fn write_guid(bytes: &[u8; 16], out: &mut String) {
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        let _ = write!(out, "{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> NodeId {
        NodeSpec::parse(text).unwrap().indexed().unwrap().clone()
    }

    #[test]
    fn each_form_is_read_and_printed() {
        for (given, printed) in [
            ("i=85", "i=85"),
            ("ns=0;i=85", "i=85"),
            ("ns=3;s=OpcPlc", "ns=3;s=OpcPlc"),
            ("ns=2;s=a;b=c", "ns=2;s=a;b=c"),
            ("ns=2;s=", "ns=2;s="),
            ("plain", "s=plain"),
            ("ns=0;plain", "s=plain"),
            ("ns=65535;i=4294967295", "ns=65535;i=4294967295"),
            (
                "ns=1;g=0087e75a-0e5e-099b-054f-02a9603db28a",
                "ns=1;g=0087E75A-0E5E-099B-054F-02A9603DB28A",
            ),
            ("ns=1;b=AQIDBA==", "ns=1;b=AQIDBA=="),
        ] {
            assert_eq!(text(&parsed(given)), printed);
        }
        assert_eq!(text_with_namespace(&parsed("i=9")), "ns=0;i=9");
        assert_eq!(text_with_namespace(&parsed("ns=2;i=9")), "ns=2;i=9");
    }

    #[test]
    fn mistakes_are_named() {
        for (given, part) in [
            ("", "one of i="),
            ("ns=2", "a semicolon must follow"),
            ("ns=x;i=1", "namespace is not a number"),
            ("ns=65536;i=1", "namespace is not a number"),
            ("i=abc", "i= needs a number"),
            ("i=4294967296", "i= needs a number"),
            ("ns=2;plain", "one of i="),
            ("g=xyz", "g= needs a GUID"),
            ("g=0087e75a-0e5e-099b-054f-02a9603db28", "g= needs a GUID"),
            ("b=***", "b= needs base64"),
            ("nsu=urn:x", "a semicolon must follow the URI"),
            ("nsu=;i=1", "URI after nsu= is empty"),
        ] {
            let error = NodeSpec::parse(given).unwrap_err();
            assert!(
                error.contains(part) && error.contains(&format!("\"{given}\"")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_namespace_uri_is_found_at_each_connect() {
        let spec = NodeSpec::parse("nsu=urn:plant;s=Line1").unwrap();
        let namespaces = NamespaceArray::from(["http://opcfoundation.org/UA/", "urn:server", "urn:plant"]);
        assert_eq!(text(&spec.resolve(&namespaces).unwrap()), "ns=2;s=Line1");
        assert_eq!(spec.to_string(), "nsu=urn:plant;s=Line1");
        assert_eq!(
            spec.resolve(&["http://opcfoundation.org/UA/", "urn:server"].into())
                .unwrap_err(),
            "the server has no namespace \"urn:plant\""
        );
    }

    fn any_id() -> impl Strategy<Value = NodeId> {
        let identifier = prop_oneof![
            any::<u32>().prop_map(Identifier::Numeric),
            ".{0,20}".prop_map(|s| Identifier::String(UAString::from(s))),
            any::<[u8; 16]>().prop_map(|b| Identifier::Guid(Guid::from_bytes(b))),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|b| Identifier::ByteString(ByteString::from(b))),
        ];
        (any::<u16>(), identifier).prop_map(|(namespace, identifier)| NodeId { namespace, identifier })
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(id in any_id()) {
            prop_assert_eq!(parsed(&text(&id)), id);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = NodeSpec::parse(&text);
        }
    }
}
