//! The namespaces of a server, by index and by URI. A server may have 65,536 of them, and every reference and every
//! message may name one by its URI, so URIs are found by hash.

use std::collections::HashMap;
use std::sync::Arc;

/// A server's NamespaceArray. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceArray(Arc<NamespaceTable>);

#[derive(Debug, Default)]
struct NamespaceTable {
    uris: Vec<String>,
    /// The first index of each URI.
    index_of: HashMap<String, u16>,
}

impl NamespaceArray {
    /// Indexes have 16 bits: URIs beyond the last index have none.
    pub fn new(uris: Vec<String>) -> NamespaceArray {
        let mut index_of = HashMap::with_capacity(uris.len());
        for (index, uri) in (0..=u16::MAX).zip(&uris) {
            index_of.entry(uri.clone()).or_insert(index);
        }
        NamespaceArray(Arc::new(NamespaceTable { uris, index_of }))
    }

    pub fn index_of(&self, uri: &str) -> Option<u16> {
        self.0.index_of.get(uri).copied()
    }

    /// In the order of their indexes.
    pub fn uris(&self) -> &[String] {
        &self.0.uris
    }

    /// Whether the server did not report any.
    pub fn is_empty(&self) -> bool {
        self.0.uris.is_empty()
    }
}

impl PartialEq for NamespaceArray {
    fn eq(&self, other: &NamespaceArray) -> bool {
        self.0.uris == other.0.uris
    }
}

#[cfg(test)]
impl<const N: usize> From<[&str; N]> for NamespaceArray {
    fn from(uris: [&str; N]) -> NamespaceArray {
        NamespaceArray::new(uris.map(str::to_owned).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_has_its_first_index_and_none_beyond_16_bits() {
        let array = NamespaceArray::from(["ua", "a", "b", "a"]);
        assert_eq!(
            ["ua", "a", "b", "c"].map(|uri| array.index_of(uri)),
            [Some(0), Some(1), Some(2), None]
        );
        let many = NamespaceArray::new((0..70_000).map(|n| n.to_string()).collect());
        assert_eq!((many.index_of("65535"), many.index_of("65536")), (Some(65_535), None));
        assert_eq!(many.uris().len(), 70_000);
    }
}
