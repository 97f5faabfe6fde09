//! A map by name whose copies share their common parts: a hash array mapped trie. Copying is free, and a change copies
//! only the path from the root to one leaf, however many names there are.

use std::sync::Arc;

use super::index::hash;

/// Hash bits per level.
const BITS: u32 = 4;
const WIDTH: usize = 1 << BITS;
/// At this depth the hash is used up, and leaves grow.
const DEPTH_MAX: u32 = u64::BITS / BITS;
/// A leaf with more names is split.
const LEAF_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct SharedMap<V> {
    root: Arc<Node<V>>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<V> {
    Leaf(Vec<(Arc<str>, V)>),
    Branch([Option<Arc<Node<V>>>; WIDTH]),
}

impl<V> Default for SharedMap<V> {
    fn default() -> SharedMap<V> {
        SharedMap {
            root: Arc::new(Node::Leaf(Vec::new())),
            len: 0,
        }
    }
}

impl<V> SharedMap<V> {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, name: &str) -> Option<&V> {
        let (mut node, mut depth) = (&self.root, 0);
        // An empty map needs no hash.
        let hash = if self.is_empty() { 0 } else { hash(name.as_bytes()) };
        loop {
            match &**node {
                Node::Leaf(entries) => return entries.iter().find(|(own, _)| **own == *name).map(|(_, value)| value),
                Node::Branch(children) => node = children.get(slot(hash, depth))?.as_ref()?,
            }
            depth += 1;
        }
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// In no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        let mut waiting = vec![&self.root];
        let mut leaf: std::slice::Iter<'_, (Arc<str>, V)> = [].iter();
        std::iter::from_fn(move || {
            loop {
                if let Some((name, value)) = leaf.next() {
                    return Some((&**name, value));
                }
                match &**waiting.pop()? {
                    Node::Leaf(entries) => leaf = entries.iter(),
                    Node::Branch(children) => waiting.extend(children.iter().flatten()),
                }
            }
        })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }
}

impl<V: Clone> SharedMap<V> {
    /// Returns whether the name is new.
    pub fn insert(&mut self, name: &str, value: V) -> bool {
        let is_new = put(&mut self.root, hash(name.as_bytes()), 0, name, value);
        self.len += usize::from(is_new);
        is_new
    }

    /// Returns whether the name existed.
    pub fn remove(&mut self, name: &str) -> bool {
        // Copy nothing if the name does not exist.
        let was_there = self.contains(name) && take(&mut self.root, hash(name.as_bytes()), 0, name);
        self.len -= usize::from(was_there);
        was_there
    }
}

fn slot(hash: u64, depth: u32) -> usize {
    (hash >> (depth * BITS)) as usize % WIDTH
}

fn put<V: Clone>(node: &mut Arc<Node<V>>, hash: u64, depth: u32, name: &str, value: V) -> bool {
    let node = Arc::make_mut(node);
    match node {
        Node::Leaf(entries) => {
            if let Some((_, own)) = entries.iter_mut().find(|(own, _)| **own == *name) {
                *own = value;
                return false;
            }
            entries.push((name.into(), value));
            if entries.len() > LEAF_MAX && depth < DEPTH_MAX {
                *node = divided(std::mem::take(entries), depth);
            }
            true
        }
        Node::Branch(children) => match children.get_mut(slot(hash, depth)) {
            Some(Some(child)) => put(child, hash, depth + 1, name, value),
            Some(empty) => {
                *empty = Some(Arc::new(Node::Leaf(vec![(name.into(), value)])));
                true
            }
            None => false,
        },
    }
}

fn divided<V: Clone>(entries: Vec<(Arc<str>, V)>, depth: u32) -> Node<V> {
    let mut leaves: [Vec<(Arc<str>, V)>; WIDTH] = Default::default();
    for (name, value) in entries {
        if let Some(leaf) = leaves.get_mut(slot(hash(name.as_bytes()), depth)) {
            leaf.push((name, value));
        }
    }
    // A child with all the names is split at the next insertion.
    Node::Branch(leaves.map(|leaf| (!leaf.is_empty()).then(|| Arc::new(Node::Leaf(leaf)))))
}

fn take<V: Clone>(node: &mut Arc<Node<V>>, hash: u64, depth: u32, name: &str) -> bool {
    match Arc::make_mut(node) {
        Node::Leaf(entries) => {
            let before = entries.len();
            entries.retain(|(own, _)| **own != *name);
            entries.len() < before
        }
        Node::Branch(children) => {
            let Some(place) = children.get_mut(slot(hash, depth)) else {
                return false;
            };
            let was_there = place.as_mut().is_some_and(|child| take(child, hash, depth + 1, name));
            place.take_if(|child| child.is_empty());
            was_there
        }
    }
}

impl<V> Node<V> {
    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(entries) => entries.is_empty(),
            Node::Branch(children) => children.iter().all(Option::is_none),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn all(map: &SharedMap<u32>) -> BTreeMap<String, u32> {
        map.iter().map(|(name, value)| (name.to_owned(), *value)).collect()
    }

    proptest! {
        /// After any changes to a map and its copies, each has exactly its own entries.
        #[test]
        fn copies_are_apart(changes in prop::collection::vec((0..4usize, 0..120u32, prop::option::of(any::<u32>())), 0..400)) {
            let mut maps = vec![(SharedMap::default(), BTreeMap::new())];
            for (of, name, value) in changes {
                if of == 3 && maps.len() < 4 {
                    let copy = maps[0].clone();
                    maps.push(copy);
                }
                let of = of % maps.len();
                let (map, model): &mut (SharedMap<u32>, BTreeMap<String, u32>) = &mut maps[of];
                let name = format!("s-{name}");
                let (told, known) = match value {
                    Some(value) => (map.insert(&name, value), model.insert(name.clone(), value).is_none()),
                    None => (map.remove(&name), model.remove(&name).is_some()),
                };
                prop_assert_eq!(told, known);
                prop_assert_eq!(map.get(&name), model.get(&name));
            }
            for (map, model) in &maps {
                prop_assert_eq!(&all(map), model);
                prop_assert_eq!((map.is_empty(), map.len), (model.is_empty(), model.len()));
            }
        }
    }

    /// Changing a copy clones a few nodes, not all of them.
    #[test]
    fn a_change_costs_the_way_to_one_leaf() {
        let mut map = SharedMap::default();
        (0..20_000).for_each(|i| assert!(map.insert(&format!("s-{i}"), i)));
        let before = map.clone();
        map.insert("s-7", 0);
        let nodes = |map: &SharedMap<u32>| {
            let (mut found, mut waiting) = (hashbrown::HashSet::new(), vec![map.root.clone()]);
            while let Some(node) = waiting.pop() {
                if let Node::Branch(children) = &*node {
                    waiting.extend(children.iter().flatten().cloned());
                }
                found.insert(Arc::as_ptr(&node) as usize);
            }
            found
        };
        let (old, new) = (nodes(&before), nodes(&map));
        assert!(
            old.len() > 2000 && new.difference(&old).count() <= 8,
            "{}",
            new.difference(&old).count()
        );
    }
}
