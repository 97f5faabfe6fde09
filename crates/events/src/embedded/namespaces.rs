//! The existing namespaces by name, for clients, and by number, for tables.

use std::sync::Arc;

use hashbrown::HashMap;

use super::OpenNamespace;
use super::namespace::EmbeddedNamespace;

#[derive(Default)]
pub(super) struct Namespaces {
    by_name: HashMap<String, OpenNamespace>,
    by_number: HashMap<u32, Arc<EmbeddedNamespace>>,
}

impl Namespaces {
    pub fn get(&self, name: &str) -> Option<&OpenNamespace> {
        self.by_name.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut OpenNamespace> {
        self.by_name.get_mut(name)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub fn of_number(&self, number: u32) -> Option<&Arc<EmbeddedNamespace>> {
        self.by_number.get(&number)
    }

    /// In no particular order.
    pub fn all(&self) -> impl Iterator<Item = &OpenNamespace> {
        self.by_name.values()
    }

    pub fn insert(&mut self, opened: OpenNamespace) {
        let namespace = opened.namespace.clone();
        self.by_number.insert(namespace.number, namespace);
        self.by_name.insert(opened.namespace.about().name.clone(), opened);
    }

    pub fn remove(&mut self, name: &str) {
        if let Some(opened) = self.by_name.remove(name) {
            self.by_number.remove(&opened.namespace.number);
        }
    }
}
