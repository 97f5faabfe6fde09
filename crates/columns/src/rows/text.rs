//! Columns of text.
//!
//! Most columns have few distinct texts, so a column begins as a dictionary: the distinct texts, and a key for each
//! row. A column of mostly distinct texts gives up the dictionary and becomes plain. Neither form has a size at which
//! it fails.

use std::ops::Range;

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory_usage::{MemoryUsage, PLACE};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xxhash_rust::xxh3::xxh3_64;

/// The key of a row without a text.
pub const NULL: u32 = u32::MAX;

/// The rows after which a dictionary may be given up.
const TRIED_ROWS: usize = 4096;
/// The size of the texts at which a dictionary is given up in any case.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// Up to this many texts and bytes it does not matter whether rows use them.
const FEW_TEXTS: usize = 1024;
const FEW_BYTES: usize = 64 << 10;

/// Concatenated texts.
#[derive(Clone, Debug, Default)]
pub struct TextBuffer {
    bytes: Vec<u8>,
    /// The end of each text.
    ends: Vec<u32>,
}

impl TextBuffer {
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    #[inline]
    pub fn get(&self, at: usize) -> &[u8] {
        self.bytes.get(self.range(at)).unwrap_or_default()
    }

    #[inline]
    fn range(&self, at: usize) -> Range<usize> {
        let begin = at.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(at).copied().unwrap_or_default();
        begin.copied().unwrap_or_default() as usize..end as usize
    }

    #[inline]
    pub(super) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn space(&self) -> MemoryUsage {
        MemoryUsage::of(&self.bytes) + MemoryUsage::of(&self.ends)
    }
}

/// A text column. The caller keeps it within [`u32::MAX`] bytes of text.
#[derive(Debug)]
pub struct TextColumn {
    kind: TextColumnEncoding,
    first: TextColumnEncoding,
    /// One key per row; [`NULL`] for skipped rows.
    keys: Vec<u32>,
    texts: TextBuffer,
    /// Keys by their texts.
    index: HashTable<u32>,
    /// Texts that were interned by callers, which cache their keys for many rows.
    interned: usize,
    interned_bytes: usize,
    /// Whether callers cache keys of this column, so that its successor should keep the same keys.
    is_known: bool,
    line: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextColumnEncoding {
    /// Texts are distinct.
    Dictionary,
    /// Each row has its own text.
    Plain,
}

impl TextColumn {
    pub fn new(kind: TextColumnEncoding) -> TextColumn {
        TextColumn {
            kind,
            first: kind,
            keys: Vec::new(),
            texts: TextBuffer::default(),
            index: HashTable::new(),
            interned: 0,
            interned_bytes: 0,
            is_known: false,
            line: next_line(),
        }
    }

    /// The encoding with which it was created.
    pub fn first_kind(&self) -> TextColumnEncoding {
        self.first
    }

    /// The current encoding. In a plain column each row has its own text, except rows with interned keys.
    #[inline]
    pub fn kind(&self) -> TextColumnEncoding {
        self.kind
    }

    /// Columns of one line inherited texts from each other: keys that exist in both have the same text.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// One key for each row up to the last that has a text.
    #[inline]
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    #[inline]
    pub fn texts(&self) -> &TextBuffer {
        &self.texts
    }

    #[inline]
    pub fn text_of(&self, row: usize) -> Option<&[u8]> {
        let key = *self.keys.get(row).filter(|key| **key != NULL)?;
        Some(self.texts.get(key as usize))
    }

    /// What a function makes of the text of each row. It is called once for each text of the dictionary.
    pub fn converted<'a, T: Copy + 'a>(
        &'a self,
        rows: usize,
        of_text: impl Fn(&[u8]) -> Option<T>,
    ) -> impl Iterator<Item = Option<T>> + 'a {
        let made: Vec<Option<T>> = (0..self.texts.len()).map(|key| of_text(self.texts.get(key))).collect();
        (0..rows).map(move |row| {
            let key = *self.keys.get(row)?;
            made.get(key as usize).copied().flatten()
        })
    }

    /// Appends the text of a later row, or replaces that of the last row. Returns whether it was replaced.
    #[inline]
    pub fn push(&mut self, row: usize, text: &[u8]) -> bool {
        if row < self.keys.len() {
            return self.replace(row, text);
        }
        let key = self.key_of(text);
        if self.keys.len() < row {
            self.keys.resize(row, NULL);
        }
        self.keys.push(key);
        self.may_give_up();
        false
    }

    /// Appends the same text for later rows.
    pub fn push_run(&mut self, rows: Range<usize>, text: &[u8]) {
        if rows.is_empty() {
            return;
        }
        if self.keys.len() < rows.start {
            self.keys.resize(rows.start, NULL);
        }
        match self.kind {
            TextColumnEncoding::Dictionary => {
                let key = self.key_of(text);
                self.keys.resize(rows.end, key);
                self.may_give_up();
            }
            // The rows can share one text even so.
            TextColumnEncoding::Plain => {
                self.texts.push(text);
                self.keys.resize(rows.end, self.texts.len() as u32 - 1);
            }
        }
    }

    /// Returns the key of a text for later rows. Keys are valid until the column is cleared.
    pub fn intern(&mut self, text: &[u8]) -> u32 {
        self.is_known = true;
        let before = self.texts.len();
        let key = self.key_of(text);
        if self.texts.len() > before {
            self.interned += 1;
            self.interned_bytes += text.len();
        }
        key
    }

    /// Appends a later row with an interned key. This never gives up the dictionary: an interned text belongs to many
    /// rows, however few of them have come so far.
    #[inline]
    pub fn push_key(&mut self, row: usize, key: u32) {
        if self.keys.len() < row {
            self.keys.resize(row, NULL);
        }
        self.keys.push(key);
    }

    #[inline]
    fn key_of(&mut self, text: &[u8]) -> u32 {
        if self.kind == TextColumnEncoding::Plain {
            self.texts.push(text);
            return self.texts.len() as u32 - 1;
        }
        // Adjacent rows often have the same text.
        if let Some(&last) = self.keys.last()
            && last != NULL
            && self.texts.get(last as usize) == text
        {
            return last;
        }
        let TextColumn { texts, index, .. } = self;
        let hash = xxh3_64(text);
        let same = |key: &u32| texts.get(*key as usize) == text;
        match index.entry(hash, same, |key| xxh3_64(texts.get(*key as usize))) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let key = texts.len() as u32;
                new.insert(key);
                texts.push(text);
                key
            }
        }
    }

    #[cold]
    fn replace(&mut self, row: usize, text: &[u8]) -> bool {
        if self.keys.get(row) == Some(&NULL) || row + 1 != self.keys.len() {
            // Only the last row can be replaced.
            return false;
        }
        let key = self.key_of(text);
        if let Some(last) = self.keys.last_mut() {
            *last = key;
        }
        true
    }

    #[inline]
    fn may_give_up(&mut self) {
        let (texts, rows) = (self.texts.len() - self.interned, self.keys.len());
        let is_poor = rows >= TRIED_ROWS && texts > rows / 2;
        if self.kind == TextColumnEncoding::Dictionary && (is_poor || self.texts.bytes.len() > TEXT_BYTES_MAX) {
            self.give_up();
        }
    }

    /// Rows keep their keys: in a plain column a key is also the index of a text.
    #[cold]
    fn give_up(&mut self) {
        self.kind = TextColumnEncoding::Plain;
        self.index = HashTable::new();
    }

    /// Removes all rows and keeps the buffers for similar rows.
    pub fn clear(&mut self, kind: TextColumnEncoding) {
        self.kind = kind;
        self.keys.clear();
        self.texts.clear();
        self.index.clear();
        (self.interned, self.interned_bytes) = (0, 0);
        (self.is_known, self.line) = (false, next_line());
    }

    /// Whether the next column should not inherit the texts, because too few rows use them.
    pub(super) fn is_stale(&self) -> bool {
        if !self.is_known {
            return false;
        }
        let (texts, bytes) = (self.texts.len(), self.texts.bytes.len());
        if self.kind == TextColumnEncoding::Plain || (texts < FEW_TEXTS && bytes < FEW_BYTES) {
            return self.kind == TextColumnEncoding::Plain;
        }
        let mut is_used = vec![false; texts];
        for key in &self.keys {
            if let Some(is_used) = is_used.get_mut(*key as usize) {
                *is_used = true;
            }
        }
        let used = (0..texts).filter(|key| is_used.get(*key) == Some(&true));
        let (used, used_bytes) = used.fold((0, 0), |(used, bytes), key| {
            (used + 1, bytes + self.texts.range(key).len())
        });
        used < texts / 2 || used_bytes < bytes / 2
    }

    /// Whether keys were interned, but no row exists.
    pub(super) fn is_idle(&self) -> bool {
        self.is_known && self.keys.is_empty()
    }

    /// An empty column with the same texts, if callers cache their keys. The keys stay valid there.
    pub fn heir(&self) -> Option<TextColumn> {
        self.is_known.then(|| TextColumn {
            kind: self.kind,
            first: self.first,
            keys: Vec::new(),
            texts: self.texts.clone(),
            index: self.index.clone(),
            // All inherited texts exist before the rows, so they count as interned.
            interned: self.texts.len(),
            interned_bytes: self.texts.bytes.len(),
            is_known: true,
            line: self.line,
        })
    }

    /// Begins with the texts of an heir. The column must be empty.
    pub fn take_over(&mut self, heir: TextColumn) {
        let keys = std::mem::take(&mut self.keys);
        *self = TextColumn { keys, ..heir };
    }

    pub fn space(&self) -> MemoryUsage {
        let place = match self.kind {
            TextColumnEncoding::Dictionary => PLACE,
            TextColumnEncoding::Plain => 0,
        };
        let of_all = MemoryUsage::of(&self.keys) + self.texts.space() + MemoryUsage::of_index(&self.index);
        MemoryUsage {
            shared: self.interned_bytes + self.interned * (size_of::<u32>() + place),
            ..of_all
        }
    }
}

fn next_line() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Writes up to 16 bytes as hexadecimal digits.
#[inline]
pub fn hex<'a>(bytes: &[u8], out: &'a mut [u8; 32]) -> &'a [u8] {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let (pairs, _) = out.as_chunks_mut::<2>();
    for ([high, low], byte) in pairs.iter_mut().zip(bytes) {
        *high = DIGITS[usize::from(byte >> 4)];
        *low = DIGITS[usize::from(byte & 15)];
    }
    out.get(..2 * bytes.len()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(column: &TextColumn, rows: usize) -> Vec<Option<String>> {
        let text = |row| {
            column
                .text_of(row)
                .map(|text| String::from_utf8(text.to_vec()).unwrap())
        };
        (0..rows).map(text).collect()
    }

    #[test]
    fn rows_that_are_passed_over_are_null() {
        for kind in [TextColumnEncoding::Dictionary, TextColumnEncoding::Plain] {
            let mut column = TextColumn::new(kind);
            column.push(1, b"a");
            column.push(2, b"");
            column.push(5, b"a");
            column.push_run(7..9, b"b");
            column.push_run(9..9, b"c");
            let expected = [
                None,
                Some("a"),
                Some(""),
                None,
                None,
                Some("a"),
                None,
                Some("b"),
                Some("b"),
                None,
            ];
            assert_eq!(
                all(&column, 10),
                expected.map(|text| text.map(str::to_owned)),
                "{kind:?}"
            );
            assert_eq!(
                column.texts().len(),
                if kind == TextColumnEncoding::Plain { 4 } else { 3 }
            );
        }
    }

    #[test]
    fn of_two_texts_of_a_row_the_last_counts() {
        for kind in [TextColumnEncoding::Dictionary, TextColumnEncoding::Plain] {
            let mut column = TextColumn::new(kind);
            column.push(0, b"first");
            assert!(!column.push(1, b"a longer one"));
            assert!(column.push(1, b"x") && column.push(1, b"first"));
            column.push(2, b"next");
            let expected = ["first", "first", "next"].map(|text| Some(text.to_owned()));
            assert_eq!(all(&column, 3), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_dictionary_of_which_most_is_new_is_given_up_and_loses_nothing() {
        let mut column = TextColumn::new(TextColumnEncoding::Dictionary);
        let text = |row: usize| format!("{}", row - row % 3 / 2);
        for row in 0..10_000 {
            column.push(row, text(row).as_bytes());
        }
        assert_eq!(column.kind(), TextColumnEncoding::Plain);
        assert!((0..10_000).all(|row| column.text_of(row) == Some(text(row).as_bytes())));
        let mut few = TextColumn::new(TextColumnEncoding::Dictionary);
        for row in 0..10_000 {
            few.push(row, (row % 7).to_string().as_bytes());
        }
        assert_eq!((few.kind(), few.texts().len()), (TextColumnEncoding::Dictionary, 7));
        few.clear(TextColumnEncoding::Dictionary);
        assert_eq!((few.keys().len(), few.texts().len(), few.text_of(0)), (0, 0, None));
        few.push(0, b"6");
        assert_eq!(few.text_of(0), Some(&b"6"[..]));
    }

    #[test]
    fn a_dictionary_is_given_up_for_texts_that_rows_bring_and_not_for_keys_that_are_known() {
        const ROWS: usize = 20_000;
        // Every `one_in`-th row has a new text; the others have interned keys, each of them repeatedly.
        let filled = |one_in: usize| {
            let mut column = TextColumn::new(TextColumnEncoding::Dictionary);
            let known: Vec<u32> = (0..6_000)
                .map(|n| column.intern(format!("known {n}").as_bytes()))
                .collect();
            for row in 0..ROWS {
                match row % one_in {
                    0 => assert!(!column.push(row, format!("new {row}").as_bytes())),
                    _ => column.push_key(row, known[row % known.len()]),
                }
            }
            let text = |row: usize| match row % one_in {
                0 => format!("new {row}"),
                _ => format!("known {}", row % known.len()),
            };
            assert!((0..ROWS).all(|row| column.text_of(row) == Some(text(row).as_bytes())));
            column
        };
        let mut few = filled(10);
        assert_eq!(few.kind(), TextColumnEncoding::Dictionary);
        assert_eq!(filled(1).kind(), TextColumnEncoding::Plain, "most is new");
        // Each interned text with its end and its index entry.
        let known: usize = (0..6_000).map(|n| format!("known {n}").len() + 4 + 5).sum();
        assert_eq!(few.space().shared, known);
        assert!(few.space().own() >= ROWS * 4);
        few.clear(TextColumnEncoding::Dictionary);
        assert_eq!((few.interned, few.space().shared), (0, 0));
    }

    #[test]
    fn a_column_begins_with_the_texts_of_one_that_has_ended_if_somebody_knows_their_keys() {
        let mut ended = TextColumn::new(TextColumnEncoding::Dictionary);
        ended.push(0, b"of a row");
        let known = ended.intern(b"known");
        ended.push_key(1, known);
        let mut next = TextColumn::new(TextColumnEncoding::Dictionary);
        next.push(0, b"of another time");
        next.clear(TextColumnEncoding::Dictionary);
        next.take_over(ended.heir().unwrap());
        assert_eq!((next.line(), next.keys()), (ended.line(), &[][..]));
        assert!(next.is_idle() && !ended.is_idle());
        next.push_key(2, known);
        next.push(3, b"of a row");
        next.push(4, b"new");
        let expected = [None, None, Some("known"), Some("of a row"), Some("new")].map(|text| text.map(str::to_owned));
        assert_eq!(all(&next, 5), expected);
        assert_eq!((next.texts().len(), ended.texts().len()), (3, 2));
        next.clear(TextColumnEncoding::Dictionary);
        assert_ne!(next.line(), ended.line());
        next.push(0, b"of a row");
        assert!(next.heir().is_none());
    }

    #[test]
    fn the_key_of_a_text_that_a_row_brought_before_is_known_all_the_same() {
        let mut ended = TextColumn::new(TextColumnEncoding::Dictionary);
        ended.push(0, b"a");
        ended.push(1, b"b");
        let known = ended.intern(b"b");
        let mut next = ended.heir().unwrap();
        next.push_key(0, known);
        assert_eq!(next.text_of(0), Some(&b"b"[..]));
    }

    #[test]
    fn texts_of_which_rows_have_few_are_stale() {
        let with = |texts: usize, rows: usize| {
            let mut column = TextColumn::new(TextColumnEncoding::Dictionary);
            let keys: Vec<u32> = (0..texts)
                .map(|n| column.intern(format!("{n:04}").as_bytes()))
                .collect();
            for row in 0..rows {
                column.push_key(row, keys[row % keys.len()]);
            }
            column
        };
        assert!(!with(2 * FEW_TEXTS, FEW_TEXTS).is_stale());
        assert!(with(2 * FEW_TEXTS, FEW_TEXTS - 1).is_stale());
        assert!(!with(FEW_TEXTS - 1, 1).is_stale());
        let mut long = with(1, 1);
        long.intern(&[b'x'; FEW_BYTES]);
        assert!(long.is_stale());
        long.push(1, &[b'x'; FEW_BYTES]);
        assert!(!long.is_stale());
        let mut given_up = with(1, 1);
        given_up.give_up();
        assert!(given_up.is_stale());
        assert!(!TextColumn::new(TextColumnEncoding::Plain).is_stale());
    }
}
