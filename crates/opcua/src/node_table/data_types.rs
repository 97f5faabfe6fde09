//! The data types of variables, by index. There are few, but a server may have as many as fit; so they are found by
//! hash, and their identifiers, which may be as long as those of nodes, count as memory of the table.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use opcua::types::{Identifier, NodeId};

/// The index for no type.
pub(super) const NO_TYPE: u16 = u16::MAX;

#[derive(Debug, Default)]
pub(super) struct DataTypeTable {
    ids: Vec<NodeId>,
    index_of: HashTable<u16>,
    hasher: DefaultHashBuilder,
    /// The bytes of texts and byte strings in identifiers, besides the two above.
    identifier_bytes: usize,
}

impl DataTypeTable {
    pub fn get(&self, index: u16) -> Option<&NodeId> {
        self.ids.get(usize::from(index))
    }

    /// Returns the index of a data type, if it is known.
    pub fn find(&self, id: &NodeId) -> Option<u16> {
        let is_same = |index: &u16| self.get(*index) == Some(id);
        self.index_of.find(self.hasher.hash_one(id), is_same).copied()
    }

    /// Returns the index of a data type, and adds it if it is new. Beyond 65,535 types it returns [`NO_TYPE`], and the
    /// variable's type stays unknown.
    pub fn index_of(&mut self, id: &NodeId) -> u16 {
        if let Some(known) = self.find(id) {
            return known;
        }
        match u16::try_from(self.ids.len()) {
            Ok(index) if index != NO_TYPE => {
                self.ids.push(id.clone());
                self.identifier_bytes += identifier_bytes(id);
                self.enter(index);
                index
            }
            _ => NO_TYPE,
        }
    }

    fn enter(&mut self, index: u16) {
        let DataTypeTable {
            ids, index_of, hasher, ..
        } = self;
        let hash_of = |index: &u16| ids.get(usize::from(*index)).map_or(0, |id| hasher.hash_one(id));
        index_of.insert_unique(hash_of(&index), index, hash_of);
    }

    /// Applies new namespace indexes.
    pub fn move_namespaces(&mut self, moved: impl Fn(u16) -> u16) {
        self.index_of.clear();
        for id in &mut self.ids {
            id.namespace = moved(id.namespace);
        }
        for index in (0..NO_TYPE).take(self.ids.len()) {
            // Two may have become equal; the first counts.
            let is_new = self.get(index).is_some_and(|id| self.find(id).is_none());
            if is_new {
                self.enter(index);
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<NodeId>()
            + self.index_of.capacity() * (size_of::<u16>() + 2)
            + self.identifier_bytes
    }
}

fn identifier_bytes(id: &NodeId) -> usize {
    match &id.identifier {
        Identifier::String(text) => text.as_ref().len(),
        Identifier::ByteString(bytes) => bytes.as_ref().len(),
        Identifier::Numeric(_) | Identifier::Guid(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_types_have_indexes_until_there_are_none_left() {
        let mut types = DataTypeTable::default();
        for n in 0..70_000u32 {
            let expected = u16::try_from(n).unwrap_or(NO_TYPE);
            assert_eq!(types.index_of(&NodeId::new(1, n)), expected, "type {n}");
        }
        assert_eq!(types.index_of(&NodeId::new(1, 7u32)), 7);
        assert_eq!(types.get(7), Some(&NodeId::new(1, 7u32)));
        assert_eq!(types.get(NO_TYPE), None);
        types.move_namespaces(|namespace| namespace + 1);
        assert_eq!(types.index_of(&NodeId::new(2, 7u32)), 7);
    }

    #[test]
    fn of_two_types_that_have_become_one_the_first_is_found() {
        let mut types = DataTypeTable::default();
        let (first, second) = (NodeId::new(1, "type"), NodeId::new(2, "type"));
        assert_eq!((types.index_of(&first), types.index_of(&second)), (0, 1));
        types.move_namespaces(|_| 3);
        assert_eq!(types.find(&NodeId::new(3, "type")), Some(0));
        assert_eq!(
            (types.find(&first), types.get(1)),
            (None, Some(&NodeId::new(3, "type")))
        );
    }

    #[test]
    fn identifiers_of_data_types_are_memory() {
        const BYTES: usize = 1 << 20;
        let mut types = DataTypeTable::default();
        let empty = types.heap_bytes();
        let text = NodeId::new(1, "t".repeat(BYTES).as_str());
        let bytes = NodeId::new(1, opcua::types::ByteString::from(vec![7; BYTES]));
        for (n, id) in [text, bytes].iter().enumerate() {
            for _ in 0..2 {
                types.index_of(id);
                let taken = types.heap_bytes() - empty;
                let each = (n + 1) * BYTES;
                assert!((each..each + 4096).contains(&taken), "{taken} bytes of {} types", n + 1);
            }
        }
    }
}
