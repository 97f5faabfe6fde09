//! Which topic filters match a topic, among very many of them.
//!
//! Filters without wildcards are in one hash table by their text, so they cost one look-up however many there are. Filters with
//! wildcards are paths in a trie over levels. A node is 24 bytes in an array; the edges of all nodes are in one hash table, so a
//! node with a million children costs as little as one with a single child, and adding one moves nothing.
//!
//! A match visits the nodes whose path matches the levels of the topic so far: at most the product of the branches that exist,
//! a literal one and `+`, at each level.

mod levels;

use std::hash::BuildHasher;

use hashbrown::HashTable;
use smallvec::SmallVec;
use thalweg_kit::random::{self, HashState};
use thalweg_mqtt_wire::topic;

use levels::{LevelId, Levels, UNKNOWN};

/// A filter for as long as somebody uses it; then the number is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterId(pub u32);

/// No filter, and no node.
const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

/// A filter and how many use it. Unused ones have an empty text.
#[derive(Debug)]
struct FilterEntry {
    text: Box<str>,
    users: u32,
    /// Its node in the trie, if it has a wildcard.
    node: u32,
}

#[derive(Clone, Copy, Debug)]
struct TrieNode {
    parent: u32,
    /// The level that leads here from the parent.
    level: LevelId,
    /// How many literal children it has.
    children: u32,
    /// The child for `+`.
    plus: u32,
    /// The filter that ends here.
    end: u32,
    /// The filter that ends with `#` behind this node.
    rest: u32,
}

impl TrieNode {
    fn below(parent: u32, level: LevelId) -> TrieNode {
        TrieNode {
            parent,
            level,
            children: 0,
            plus: NONE,
            end: NONE,
            rest: NONE,
        }
    }

    fn is_unused(&self) -> bool {
        self.children == 0 && self.plus == NONE && self.end == NONE && self.rest == NONE
    }
}

/// The level of a node that its parent has as `+`.
const PLUS: LevelId = LevelId(u32::MAX - 1);

/// All filters of a broker.
pub struct FilterIndex {
    entries: Vec<FilterEntry>,
    free_entries: Vec<u32>,
    /// Filters without wildcards, by text.
    literals: HashTable<u32>,
    /// Filters with wildcards, by text.
    patterns: HashTable<u32>,
    nodes: Vec<TrieNode>,
    free_nodes: Vec<u32>,
    /// Literal children, by parent and level.
    edges: HashTable<u32>,
    levels: Levels,
    hash: HashState,
    /// Bytes of the texts of filters.
    text_bytes: usize,
}

impl Default for FilterIndex {
    fn default() -> FilterIndex {
        FilterIndex::new()
    }
}

impl FilterIndex {
    pub fn new() -> FilterIndex {
        FilterIndex {
            entries: Vec::new(),
            free_entries: Vec::new(),
            literals: HashTable::new(),
            patterns: HashTable::new(),
            nodes: vec![TrieNode::below(NONE, UNKNOWN)],
            free_nodes: Vec::new(),
            edges: HashTable::new(),
            levels: Levels::new(),
            hash: random::hash_state(),
            text_bytes: 0,
        }
    }

    /// The number of different filters.
    pub fn len(&self) -> usize {
        self.literals.len() + self.patterns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<FilterEntry>()
            + self.nodes.capacity() * size_of::<TrieNode>()
            + (self.free_entries.capacity() + self.free_nodes.capacity()) * size_of::<u32>()
            + self.literals.allocation_size()
            + self.patterns.allocation_size()
            + self.edges.allocation_size()
            + self.levels.bytes()
            + self.text_bytes
    }

    /// The filter with this text, if there is one.
    pub fn find(&self, filter: &str) -> Option<FilterId> {
        let hash = self.hash.hash_one(filter);
        let table = if has_wildcard(filter) {
            &self.patterns
        } else {
            &self.literals
        };
        let found = table.find(hash, |id| self.text(FilterId(*id)) == filter);
        found.map(|id| FilterId(*id))
    }

    /// The text of a filter; empty if it has gone.
    pub fn text(&self, id: FilterId) -> &str {
        self.entries.get(id.0 as usize).map_or("", |entry| &entry.text)
    }

    /// Adds a user of a well-formed filter. Returns the filter and whether it is new.
    pub fn add(&mut self, filter: &str) -> (FilterId, bool) {
        if let Some(id) = self.find(filter) {
            if let Some(entry) = self.entries.get_mut(id.0 as usize) {
                entry.users += 1;
            }
            return (id, false);
        }
        let is_pattern = has_wildcard(filter);
        let id = self.new_entry(FilterEntry {
            text: filter.into(),
            users: 1,
            node: NONE,
        });
        if is_pattern {
            let node = self.insert_path(filter, id);
            if let Some(entry) = self.entries.get_mut(id as usize) {
                entry.node = node;
            }
        }
        let hash = self.hash.hash_one(filter);
        let (entries, hasher) = (&self.entries, &self.hash);
        let hash_of = |id: &u32| {
            let text = entries.get(*id as usize).map_or("", |entry| &*entry.text);
            hasher.hash_one(text)
        };
        let table = if is_pattern {
            &mut self.patterns
        } else {
            &mut self.literals
        };
        table.insert_unique(hash, id, hash_of);
        self.text_bytes += filter.len();
        (FilterId(id), true)
    }

    /// Removes a user of a filter. Returns whether it was the last one: then the filter has gone.
    pub fn remove(&mut self, id: FilterId) -> bool {
        let Some(entry) = self.entries.get_mut(id.0 as usize).filter(|entry| entry.users > 0) else {
            return false;
        };
        entry.users -= 1;
        if entry.users > 0 {
            return false;
        }
        let (text, node) = (std::mem::take(&mut entry.text), entry.node);
        let hash = self.hash.hash_one(&*text);
        let is_pattern = node != NONE;
        let table = if is_pattern {
            &mut self.patterns
        } else {
            &mut self.literals
        };
        if let Ok(found) = table.find_entry(hash, |found| *found == id.0) {
            found.remove();
        }
        if is_pattern {
            self.remove_path(node, text.ends_with('#'));
        }
        self.text_bytes -= text.len();
        self.free_entries.push(id.0);
        true
    }

    /// Appends each filter that matches a topic, once, in no particular order.
    pub fn matches(&self, topic: &str, out: &mut Vec<FilterId>) {
        let hash = self.hash.hash_one(topic);
        let literal = self.literals.find(hash, |id| self.text(FilterId(*id)) == topic);
        out.extend(literal.map(|id| FilterId(*id)));
        if self.patterns.is_empty() {
            return;
        }
        let levels: SmallVec<[LevelId; 16]> = topic.split('/').map(|level| self.levels.find(level)).collect();
        let is_reserved = topic.starts_with('$');
        // Nodes to visit, each with the number of levels that lead to it.
        let mut open: SmallVec<[(u32, usize); 32]> = SmallVec::new();
        open.push((ROOT, 0));
        while let Some((at, depth)) = open.pop() {
            let Some(node) = self.nodes.get(at as usize) else {
                continue;
            };
            // A wildcard in the first level matches no topic that begins with `$`.
            let may_be_wild = depth > 0 || !is_reserved;
            if node.rest != NONE && may_be_wild {
                out.push(FilterId(node.rest));
            }
            let Some(level) = levels.get(depth) else {
                if node.end != NONE {
                    out.push(FilterId(node.end));
                }
                continue;
            };
            if node.plus != NONE && may_be_wild {
                open.push((node.plus, depth + 1));
            }
            if node.children > 0
                && *level != UNKNOWN
                && let Some(child) = self.child(at, *level)
            {
                open.push((child, depth + 1));
            }
        }
    }

    fn new_entry(&mut self, entry: FilterEntry) -> u32 {
        match self.free_entries.pop() {
            Some(id) => {
                if let Some(place) = self.entries.get_mut(id as usize) {
                    *place = entry;
                }
                id
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        }
    }

    fn child(&self, parent: u32, level: LevelId) -> Option<u32> {
        let hash = edge_hash(&self.hash, parent, level);
        let is_it = |child: &u32| {
            let node = self.nodes.get(*child as usize);
            node.is_some_and(|node| node.parent == parent && node.level == level)
        };
        self.edges.find(hash, is_it).copied()
    }

    /// Makes the path of a filter. Returns the node that it ends at, or before its `#`.
    fn insert_path(&mut self, filter: &str, id: u32) -> u32 {
        let mut at = ROOT;
        for level in filter.split('/') {
            match level {
                "#" => {
                    if let Some(node) = self.nodes.get_mut(at as usize) {
                        node.rest = id;
                    }
                    return at;
                }
                "+" => at = self.plus_below(at),
                _ => at = self.literal_below(at, level),
            }
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.end = id;
        }
        at
    }

    fn plus_below(&mut self, parent: u32) -> u32 {
        let plus = self.nodes.get(parent as usize).map_or(NONE, |node| node.plus);
        if plus != NONE {
            return plus;
        }
        let child = self.new_node(TrieNode::below(parent, PLUS));
        if let Some(node) = self.nodes.get_mut(parent as usize) {
            node.plus = child;
        }
        child
    }

    fn literal_below(&mut self, parent: u32, level: &str) -> u32 {
        let known = self.levels.find(level);
        if known != UNKNOWN
            && let Some(child) = self.child(parent, known)
        {
            return child;
        }
        let level = self.levels.add(level);
        let child = self.new_node(TrieNode::below(parent, level));
        let (nodes, hasher) = (&self.nodes, &self.hash);
        let hash_of = |child: &u32| {
            let node = nodes.get(*child as usize);
            node.map_or(0, |node| edge_hash(hasher, node.parent, node.level))
        };
        self.edges
            .insert_unique(edge_hash(hasher, parent, level), child, hash_of);
        if let Some(node) = self.nodes.get_mut(parent as usize) {
            node.children += 1;
        }
        child
    }

    fn new_node(&mut self, node: TrieNode) -> u32 {
        match self.free_nodes.pop() {
            Some(at) => {
                if let Some(place) = self.nodes.get_mut(at as usize) {
                    *place = node;
                }
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Removes the filter that ends at a node, and the nodes that no other filter needs.
    fn remove_path(&mut self, mut at: u32, is_rest: bool) {
        if let Some(node) = self.nodes.get_mut(at as usize) {
            match is_rest {
                true => node.rest = NONE,
                false => node.end = NONE,
            }
        }
        while at != ROOT
            && let Some(node) = self.nodes.get(at as usize).copied().filter(TrieNode::is_unused)
        {
            if node.level != PLUS {
                let hash = edge_hash(&self.hash, node.parent, node.level);
                if let Ok(found) = self.edges.find_entry(hash, |child| *child == at) {
                    found.remove();
                }
                self.levels.remove(node.level);
            }
            if let Some(parent) = self.nodes.get_mut(node.parent as usize) {
                match node.level == PLUS {
                    true => parent.plus = NONE,
                    false => parent.children -= 1,
                }
            }
            self.free_nodes.push(at);
            at = node.parent;
        }
    }
}

fn has_wildcard(filter: &str) -> bool {
    !topic::is_name(filter)
}

fn edge_hash(hash: &HashState, parent: u32, level: LevelId) -> u64 {
    hash.hash_one(u64::from(parent) << 32 | u64::from(level.0))
}

#[cfg(test)]
mod tests;
