//! The data types of variables, by index. They are few, unless a server makes as many as there is room for: so one is looked up
//! and not looked for.

use std::collections::HashMap;

use opcua::types::NodeId;

/// The index of no type.
pub(super) const NO_TYPE: u16 = u16::MAX;

#[derive(Debug, Default)]
pub(super) struct DataTypes {
    ids: Vec<NodeId>,
    index_of: HashMap<NodeId, u16>,
}

impl DataTypes {
    pub fn get(&self, index: u16) -> Option<&NodeId> {
        self.ids.get(usize::from(index))
    }

    /// The index of a data type, which is added if it is new. Beyond 65,535 of them it is [`NO_TYPE`], and a variable's stays
    /// unknown.
    pub fn index_of(&mut self, id: &NodeId) -> u16 {
        if let Some(known) = self.index_of.get(id) {
            return *known;
        }
        match u16::try_from(self.ids.len()) {
            Ok(index) if index != NO_TYPE => {
                self.ids.push(id.clone());
                self.index_of.insert(id.clone(), index);
                index
            }
            _ => NO_TYPE,
        }
    }

    /// Gives each the index that its namespace has now.
    pub fn move_namespaces(&mut self, moved: impl Fn(u16) -> u16) {
        self.index_of.clear();
        for (index, id) in (0..NO_TYPE).zip(&mut self.ids) {
            id.namespace = moved(id.namespace);
            self.index_of.entry(id.clone()).or_insert(index);
        }
    }

    /// Texts of identifiers are not counted; each is as long as that of a node.
    pub fn heap_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<NodeId>() + self.index_of.capacity() * (size_of::<(NodeId, u16)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_types_have_indexes_until_there_are_none_left() {
        let mut types = DataTypes::default();
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
}
