//! Servers may renumber their namespaces when they start. NodeIds in the table use indexes, so all of them are
//! renumbered before they are used in a request.

use super::{NodeIndex, NodeTable, hash_entry};
use crate::namespace_array::NamespaceArray;

impl NodeTable {
    /// Applies the server's namespace array. Returns whether NodeIds have changed. Nodes of a namespace that the server
    /// no longer has get an index that no server uses, so that they are reported missing and no other node is found in
    /// their place.
    pub fn set_namespaces(&mut self, namespaces: &NamespaceArray) -> bool {
        if namespaces.is_empty() || self.namespaces == *namespaces {
            return false;
        }
        let earlier = std::mem::replace(&mut self.namespaces, namespaces.clone());
        // Never the index of another current namespace.
        let new_index = |(before, uri): (u16, &String)| namespaces.index_of(uri).unwrap_or(u16::MAX - before);
        let mapped: Vec<u16> = (0..=u16::MAX).zip(earlier.uris()).map(new_index).collect();
        let moved = |index: u16| mapped.get(usize::from(index)).copied().unwrap_or(index);
        if (0..=u16::MAX).take(mapped.len()).all(|index| moved(index) == index) {
            return false;
        }
        for entry in &mut self.entries {
            entry.namespace = moved(entry.namespace);
        }
        self.data_types.move_namespaces(moved);
        self.hash_anew();
        true
    }

    fn hash_anew(&mut self) {
        let known: Vec<NodeIndex> = self.by_id.iter().copied().collect();
        self.by_id.clear();
        let NodeTable {
            entries,
            texts,
            by_id,
            hasher,
            ..
        } = self;
        let hash_of = |index: &NodeIndex| {
            entries
                .get(*index as usize)
                .map_or(0, |entry| hash_entry(hasher, texts, entry))
        };
        for index in known {
            by_id.insert_unique(hash_of(&index), index, hash_of);
        }
    }
}
