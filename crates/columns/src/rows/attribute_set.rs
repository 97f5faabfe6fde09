//! The attributes of a resource or a scope, which many rows share.

use std::ops::Range;

use hashbrown::HashSet;

use super::attribute_columns::{AttributeColumnHint, AttributeSource};
use super::chunk::MemtableChunk;

/// Up to this many names are compared pairwise.
const FEW: usize = 16;

/// The names and texts of one resource or scope.
#[derive(Default)]
pub struct AttributeSet {
    texts: String,
    pairs: Vec<AttributeRange>,
}

#[derive(Clone)]
struct AttributeRange {
    name: Range<usize>,
    /// `None`: it has no value.
    text: Option<Range<usize>>,
}

impl AttributeSet {
    #[inline]
    pub fn clear(&mut self) {
        self.texts.clear();
        self.pairs.clear();
    }

    /// `None`: the attribute has no value.
    #[inline]
    pub fn push(&mut self, name: &str, text: Option<&str>) {
        let begin = self.texts.len();
        self.texts.push_str(name);
        let name = begin..self.texts.len();
        let text = text.map(|text| {
            self.texts.push_str(text);
            name.end..self.texts.len()
        });
        self.pairs.push(AttributeRange { name, text });
    }

    /// Keeps only the last attribute of each name. Returns how many were removed.
    pub fn settle(&mut self) -> u64 {
        let AttributeSet { texts, pairs } = self;
        let name = |pair: &AttributeRange| texts.get(pair.name.clone()).unwrap_or_default();
        let before = pairs.len();
        if before <= FEW {
            let mut at = 0;
            while let Some(pair) = pairs.get(at) {
                match pairs.iter().skip(at + 1).any(|later| name(later) == name(pair)) {
                    true => drop(pairs.remove(at)),
                    false => at += 1,
                }
            }
        } else {
            let mut seen = HashSet::with_capacity(before);
            let mut is_last: Vec<bool> = pairs.iter().rev().map(|pair| seen.insert(name(pair))).collect();
            pairs.retain(|_| is_last.pop().unwrap_or(true));
        }
        (before - pairs.len()) as u64
    }

    /// Names and texts in order of arrival.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.pairs.iter().map(|pair| {
            let name = self.texts.get(pair.name.clone()).unwrap_or_default();
            (name, pair.text.clone().and_then(|text| self.texts.get(text)))
        })
    }

    /// Writes the attributes into each of these rows.
    pub fn put(
        &self,
        chunk: &mut MemtableChunk,
        rows: Range<usize>,
        source: AttributeSource,
        guess: &mut AttributeColumnHint,
    ) {
        if rows.is_empty() {
            return;
        }
        guess.begin();
        for (name, text) in self.iter() {
            let Some(text) = text else { continue };
            if let Some(column) = chunk.slots.next(source, name, guess) {
                column.push_run(rows.clone(), text.as_bytes());
                continue;
            }
            for row in rows.clone() {
                chunk.push_extra(row, source, name, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: usize, name: impl Fn(usize) -> String) -> AttributeSet {
        let mut pairs = AttributeSet::default();
        (0..n).for_each(|i| pairs.push(&name(i), Some(&i.to_string())));
        pairs
    }

    #[test]
    fn of_few_and_of_many_the_last_of_a_name_stays_in_its_place() {
        for n in [0, 1, 7, FEW, FEW + 1, 100] {
            let mut own = pairs(n, |i| (i % 5).to_string());
            let repeated = own.settle();
            let kept: Vec<String> = own
                .iter()
                .map(|(_, text)| text.unwrap_or_default().to_owned())
                .collect();
            let expected: Vec<String> = (n.saturating_sub(5)..n).map(|i| i.to_string()).collect();
            assert_eq!((kept, repeated), (expected, n.saturating_sub(5) as u64), "{n}");
        }
    }

    /// `ingest.limits.max_attributes` may be 65,535, for each resource and scope of a request.
    #[test]
    fn many_attributes_are_a_step_for_each() {
        let shapes: [fn(usize) -> String; 3] = [
            |i| format!("a{i}"),
            |_| "same".to_owned(),
            |i| format!("{}{i}", "p".repeat(40)),
        ];
        for shape in shapes {
            let exponent = thalweg_record::growth::exponent(
                1_000,
                |n| pairs(n, shape),
                |mut own| {
                    own.settle();
                    own
                },
            );
            assert!(exponent < thalweg_record::growth::LINEAR, "{exponent}");
        }
    }
}
