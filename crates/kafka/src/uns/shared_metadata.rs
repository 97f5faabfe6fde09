//! Metadata that the messages of a key share while their headers are the same. Its size is limited, because keys and
//! headers come from outside.

use std::sync::Arc;

use thalweg_record::{CacheLimits, MetaMap, Remembered};

const BYTES_MAX: usize = 64 << 20;
/// Overhead of an entry, besides its texts: in vectors and in the metadata.
const ENTRY_BYTES: usize = 400;

pub struct SharedMetadata {
    /// By key, the metadata of its last record.
    entries: Remembered<Box<[u8]>, SharedMetadataEntry>,
}

struct SharedMetadataEntry {
    /// Raw names and values, with their lengths.
    headers: Vec<u8>,
    map: Arc<MetaMap>,
}

impl Default for SharedMetadata {
    fn default() -> SharedMetadata {
        SharedMetadata {
            entries: Remembered::within(CacheLimits::bytes(BYTES_MAX)),
        }
    }
}

impl SharedMetadata {
    /// Returns the metadata of the last record of a key, if it had the same headers.
    pub fn get(&self, key: &[u8], headers: &[u8]) -> Option<Arc<MetaMap>> {
        let entry = self.entries.get(key).filter(|entry| entry.headers == headers);
        entry.map(|entry| entry.map.clone())
    }

    pub fn insert(&mut self, key: &[u8], headers: Vec<u8>, map: Arc<MetaMap>) {
        // The key and the headers are stored by themselves and in the metadata, whose texts may be longer than they are
        // and lie in a vector whose capacity may be twice its length.
        let own = key.len() + headers.len();
        let bytes = ENTRY_BYTES + own + 2 * map.text_bytes().max(own);
        self.entries
            .insert(key.into(), SharedMetadataEntry { headers, map }, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Arc<MetaMap> {
        Arc::new(MetaMap::new(Vec::new(), None))
    }

    #[test]
    fn only_the_same_headers_are_shared() {
        let mut shared = SharedMetadata::default();
        let (first, second) = (map(), map());
        shared.insert(b"k", b"h".to_vec(), first.clone());
        assert!(Arc::ptr_eq(&shared.get(b"k", b"h").unwrap(), &first));
        assert!(shared.get(b"k", b"other").is_none() && shared.get(b"l", b"h").is_none());
        shared.insert(b"k", b"other".to_vec(), second.clone());
        assert!(Arc::ptr_eq(&shared.get(b"k", b"other").unwrap(), &second));
        assert!(shared.get(b"k", b"h").is_none());
    }
}
