//! Queries, and the random numbers that build them.

/// A query, and the format of its answer.
#[derive(Clone, Debug)]
pub struct Asked {
    pub sql: String,
    pub format: &'static str,
}

impl From<String> for Asked {
    fn from(sql: String) -> Asked {
        Asked { sql, format: "json" }
    }
}

/// A sequence of queries, each of which may depend on the outcome of the previous one.
pub trait Queries {
    fn next(&mut self) -> Option<Asked>;

    /// Called when the last query did not fail in planning.
    fn was_planned(&mut self) {}
}

impl Queries for std::vec::IntoIter<Asked> {
    fn next(&mut self) -> Option<Asked> {
        Iterator::next(self)
    }
}

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, of: u64) -> Random {
        Random(seed.wrapping_mul(1_000).wrapping_add(of))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    pub fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}
