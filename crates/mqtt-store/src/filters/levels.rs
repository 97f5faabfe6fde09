//! The texts of levels as numbers.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use thalweg_kit::random::{self, HashState};

/// The number of a text, for as long as a node uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LevelId(pub u32);

/// A text that no filter has.
pub const UNKNOWN: LevelId = LevelId(u32::MAX);

#[derive(Debug)]
struct Level {
    text: Box<str>,
    users: u32,
}

pub struct Levels {
    levels: Vec<Level>,
    free: Vec<u32>,
    by_text: HashTable<u32>,
    hash: HashState,
    text_bytes: usize,
}

impl Levels {
    pub fn new() -> Levels {
        Levels {
            levels: Vec::new(),
            free: Vec::new(),
            by_text: HashTable::new(),
            hash: random::hash_state(),
            text_bytes: 0,
        }
    }

    fn text(&self, id: u32) -> &str {
        self.levels.get(id as usize).map_or("", |level| &level.text)
    }

    pub fn find(&self, text: &str) -> LevelId {
        let found = self.by_text.find(self.hash.hash_one(text), |id| self.text(*id) == text);
        found.map_or(UNKNOWN, |id| LevelId(*id))
    }

    /// Adds a user of a text.
    pub fn add(&mut self, text: &str) -> LevelId {
        let known = self.find(text);
        if let Some(level) = self.levels.get_mut(known.0 as usize) {
            level.users += 1;
            return known;
        }
        let level = Level {
            text: text.into(),
            users: 1,
        };
        self.text_bytes += text.len();
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.levels.get_mut(id as usize) {
                    *place = level;
                }
                id
            }
            None => {
                self.levels.push(level);
                self.levels.len() as u32 - 1
            }
        };
        let (levels, hasher) = (&self.levels, &self.hash);
        let hash_of = |id: &u32| hasher.hash_one(levels.get(*id as usize).map_or("", |level| &*level.text));
        self.by_text.insert_unique(hasher.hash_one(text), id, hash_of);
        LevelId(id)
    }

    /// Removes a user of a text.
    pub fn remove(&mut self, id: LevelId) {
        let Some(level) = self.levels.get_mut(id.0 as usize).filter(|level| level.users > 0) else {
            return;
        };
        level.users -= 1;
        if level.users > 0 {
            return;
        }
        let text = std::mem::take(&mut level.text);
        self.text_bytes -= text.len();
        if let Ok(found) = self
            .by_text
            .find_entry(self.hash.hash_one(&*text), |found| *found == id.0)
        {
            found.remove();
        }
        self.free.push(id.0);
    }

    pub fn bytes(&self) -> usize {
        self.levels.capacity() * size_of::<Level>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_text.allocation_size()
            + self.text_bytes
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_text.len()
    }
}
