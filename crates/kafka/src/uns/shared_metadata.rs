//! Metadata that the messages of a key share while their headers are the same. Its size is limited, because keys and
//! headers come from outside.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_record::MetaMap;

const BYTES_MAX: usize = 64 << 20;
/// Overhead of an entry, besides its texts: in the map, in vectors and in the metadata.
const ENTRY_BYTES: usize = 400;

#[derive(Default)]
pub struct SharedMetadata {
    /// By key, the metadata of its last record.
    entries: HashMap<Box<[u8]>, SharedMetadataEntry>,
    bytes: usize,
}

struct SharedMetadataEntry {
    /// Raw names and values, with their lengths.
    headers: Vec<u8>,
    map: Arc<MetaMap>,
}

impl SharedMetadata {
    /// Returns the metadata of the last record of a key, if it had the same headers.
    pub fn get(&self, key: &[u8], headers: &[u8]) -> Option<Arc<MetaMap>> {
        let entry = self.entries.get(key).filter(|entry| entry.headers == headers);
        entry.map(|entry| entry.map.clone())
    }

    pub fn insert(&mut self, key: &[u8], headers: Vec<u8>, map: Arc<MetaMap>) {
        let bytes = weight(key, &headers);
        let before = self.entries.get(key).map_or(0, |entry| weight(key, &entry.headers));
        self.bytes = self.bytes.saturating_sub(before) + bytes;
        // A larger set is not one of recurring tags, and starting over is cheap.
        if self.bytes > BYTES_MAX {
            self.entries.clear();
            self.bytes = bytes;
        }
        if bytes <= BYTES_MAX {
            self.entries.insert(key.into(), SharedMetadataEntry { headers, map });
        } else {
            self.bytes = 0;
        }
    }
}

/// The key is stored once by itself and three times in the metadata; headers are stored raw and in the metadata.
fn weight(key: &[u8], headers: &[u8]) -> usize {
    ENTRY_BYTES + 4 * key.len() + 3 * headers.len()
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
        assert_eq!(shared.bytes, weight(b"k", b"other"));
    }

    #[test]
    fn what_is_held_is_bounded_by_its_bytes() {
        let mut shared = SharedMetadata::default();
        let headers = vec![0; 1 << 20];
        for n in 0..100_u32 {
            shared.insert(&n.to_le_bytes(), headers.clone(), map());
            let held = shared.entries.iter().map(|(key, entry)| weight(key, &entry.headers));
            assert_eq!(held.sum::<usize>(), shared.bytes);
            assert!(shared.bytes <= BYTES_MAX);
        }
        assert!(shared.get(&99_u32.to_le_bytes(), &headers).is_some());
        shared.insert(b"huge", vec![0; BYTES_MAX], map());
        assert!(shared.entries.is_empty() && shared.bytes == 0);
    }
}
