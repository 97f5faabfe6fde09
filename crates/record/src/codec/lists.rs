//! Sorted lists of keys and texts, written as the difference to an earlier list.
//!
//! Each entry is a number. Bit 0: its key is that of an entry of the earlier list, whose distance from the last such
//! entry is in the bits from 3 on. Bit 1: its text is the same too. Bit 2: it has no text. A text that follows a known
//! key begins with the number of bytes that it shares with the earlier text.

use std::cmp::Ordering;

use thalweg_kit::varint;

use super::wire::{WireReader, put_bytes};
use super::{COPIED_BYTES_MAX, CodecError};
use crate::Text;

const KNOWN: u64 = 1;
const SAME: u64 = 2;
const NONE: u64 = 4;
const SKIP_SHIFT: u32 = 3;

/// An entry: a key with a text, or without one if the list contains changes.
pub(super) trait ListEntry {
    fn key(&self) -> &Text;
    fn text(&self) -> Option<&Text>;
}

impl ListEntry for (Text, Text) {
    fn key(&self) -> &Text {
        &self.0
    }

    fn text(&self) -> Option<&Text> {
        Some(&self.1)
    }
}

impl ListEntry for (Text, Option<Text>) {
    fn key(&self) -> &Text {
        &self.0
    }

    fn text(&self) -> Option<&Text> {
        self.1.as_ref()
    }
}

/// Counts the bytes that texts copy from earlier ones, in one parcel.
pub(super) struct CopyBudget {
    bytes: usize,
    bytes_max: usize,
    /// Whether a request exceeded the limit.
    refused: bool,
}

impl Default for CopyBudget {
    fn default() -> CopyBudget {
        CopyBudget::within(COPIED_BYTES_MAX)
    }
}

impl CopyBudget {
    pub fn within(bytes_max: usize) -> CopyBudget {
        CopyBudget {
            bytes: 0,
            bytes_max,
            refused: false,
        }
    }

    /// Begins the next parcel.
    pub fn clear(&mut self) {
        *self = CopyBudget::within(self.bytes_max);
    }

    /// Counts bytes; `false`, without counting, if the limit is exceeded.
    #[inline]
    pub fn add(&mut self, bytes: usize) -> bool {
        let sum = self.bytes + bytes;
        let allowed = sum <= self.bytes_max;
        if allowed {
            self.bytes = sum;
        }
        self.refused |= !allowed;
        allowed
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether all requests of this parcel were within the limit, so that the limit has changed nothing.
    pub fn is_complete(&self) -> bool {
        !self.refused
    }
}

fn text_len<E: ListEntry>(entry: &E) -> usize {
    entry.text().map_or(0, |text| text.len())
}

/// Appends a list that is sorted by key, like the earlier one.
pub(super) fn put_list<E: ListEntry>(out: &mut Vec<u8>, list: &[E], earlier: &[E], copied: &mut CopyBudget) {
    varint::put(out, list.len() as u64);
    let (mut looked, mut next) = (0, 0);
    for entry in list {
        let none = if entry.text().is_none() { NONE } else { 0 };
        let known = loop {
            let Some(known) = earlier.get(looked) else { break None };
            match order(known.key(), entry.key()) {
                Ordering::Less => looked += 1,
                Ordering::Equal => break Some(known),
                Ordering::Greater => break None,
            }
        };
        let Some(known) = known.filter(|known| copied.add(known.key().len())) else {
            varint::put(out, none);
            put_bytes(out, entry.key().as_bytes());
            if let Some(text) = entry.text() {
                put_bytes(out, text.as_bytes());
            }
            continue;
        };
        let skip = ((looked - next) as u64) << SKIP_SHIFT | KNOWN;
        next = looked + 1;
        let is_same = known.text().zip(entry.text()).is_some_and(|(a, b)| is_equal(a, b));
        if is_same && copied.add(text_len(entry)) {
            varint::put(out, skip | SAME);
            continue;
        }
        varint::put(out, skip | none);
        if let Some(text) = entry.text() {
            let shared = known.text().map_or(0, |known| shared_bytes(known, text));
            let shared = if copied.add(shared) { shared } else { 0 };
            varint::put(out, shared as u64);
            put_bytes(out, text.as_bytes().get(shared..).unwrap_or_default());
        }
    }
}

/// Most texts are equal, and many share their memory, which avoids a comparison of bytes.
#[inline]
fn is_equal(a: &Text, b: &Text) -> bool {
    std::ptr::eq(a.as_str(), b.as_str()) || a == b
}

#[inline]
fn order(a: &Text, b: &Text) -> Ordering {
    match is_equal(a, b) {
        true => Ordering::Equal,
        false => a.cmp(b),
    }
}

fn shared_bytes(a: &str, b: &str) -> usize {
    const WORD: usize = size_of::<u64>();
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let words = a.chunks_exact(WORD).zip(b.chunks_exact(WORD));
    let whole = WORD * words.take_while(|(a, b)| a == b).count();
    let rest = |bytes| <[u8]>::get(bytes, whole..).unwrap_or_default().iter();
    whole + rest(a).zip(rest(b)).take_while(|(a, b)| a == b).count()
}

/// Where a text of a decoded list is.
#[derive(Clone, Copy)]
pub(super) enum TextRef {
    /// In the entry of the earlier list.
    Earlier(usize),
    /// In the scratch buffer.
    New(usize, usize),
    None,
}

/// A decoded list, before texts are created from it. Reused, so that a known list allocates nothing.
#[derive(Default)]
pub(super) struct DecodedList {
    pub entries: Vec<(TextRef, TextRef)>,
    scratch: String,
}

impl DecodedList {
    pub fn key<'a, E: ListEntry>(&'a self, piece: TextRef, earlier: &'a [E]) -> &'a str {
        match piece {
            TextRef::Earlier(at) => earlier.get(at).map_or("", |entry| entry.key()),
            new => self.new_text(new),
        }
    }

    pub fn text<'a, E: ListEntry>(&'a self, piece: TextRef, earlier: &'a [E]) -> &'a str {
        match piece {
            TextRef::Earlier(at) => earlier.get(at).and_then(ListEntry::text).map_or("", Text::as_str),
            new => self.new_text(new),
        }
    }

    fn new_text(&self, piece: TextRef) -> &str {
        match piece {
            TextRef::New(start, end) => self.scratch.get(start..end).unwrap_or_default(),
            _ => "",
        }
    }

    /// Reads a list, and checks that it is sorted, without repeated keys and without empty texts.
    pub fn take<E: ListEntry>(
        &mut self,
        take: &mut WireReader<'_>,
        earlier: &[E],
        copied: &mut CopyBudget,
        may_be_none: bool,
    ) -> Result<(), CodecError> {
        self.entries.clear();
        self.scratch.clear();
        let count = take.count()?;
        let mut next = 0;
        for _ in 0..count {
            let head = take.varint()?;
            let none = head & NONE != 0;
            if none && (!may_be_none || head & SAME != 0) {
                return Err(take.damaged("a key has no text"));
            }
            let entry = if head & KNOWN == 0 {
                let key = self.put(take.text()?);
                let text = if none { TextRef::None } else { self.put(take.text()?) };
                (key, text)
            } else {
                let at = usize::try_from(head >> SKIP_SHIFT)
                    .ok()
                    .and_then(|skip| skip.checked_add(next));
                let found = at.and_then(|at| Some((at, earlier.get(at)?)));
                let (at, known) = found.ok_or_else(|| take.damaged("a key refers to no earlier key"))?;
                next = at + 1;
                copy(take, copied, known.key().len())?;
                (TextRef::Earlier(at), self.take_text(take, (at, known), head, copied)?)
            };
            self.check(take, entry, earlier)?;
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The text of a known key.
    fn take_text<E: ListEntry>(
        &mut self,
        take: &mut WireReader<'_>,
        (at, known): (usize, &E),
        head: u64,
        copied: &mut CopyBudget,
    ) -> Result<TextRef, CodecError> {
        if head & NONE != 0 {
            return Ok(TextRef::None);
        }
        if head & SAME != 0 {
            if known.text().is_none() {
                return Err(take.damaged("a text refers to no earlier text"));
            }
            copy(take, copied, text_len(known))?;
            return Ok(TextRef::Earlier(at));
        }
        let shared = take.varint()?;
        let rest = take.bytes()?;
        let shared = usize::try_from(shared).ok();
        let text = known.text().map_or("", Text::as_str).as_bytes();
        let begin = shared.and_then(|shared| text.get(..shared));
        let begin = begin.ok_or_else(|| take.damaged("a text shares more bytes than the earlier text has"))?;
        copy(take, copied, begin.len())?;
        // The split between beginning and rest may be in the middle of a character.
        let whole = match std::str::from_utf8(begin).ok().zip(std::str::from_utf8(rest).ok()) {
            Some((begin, rest)) => {
                let start = self.scratch.len();
                self.scratch.push_str(begin);
                self.scratch.push_str(rest);
                return Ok(TextRef::New(start, self.scratch.len()));
            }
            None => [begin, rest].concat(),
        };
        let whole = String::from_utf8(whole).map_err(|_| take.damaged("the text before it is not UTF-8"))?;
        Ok(self.put(&whole))
    }

    fn put(&mut self, text: &str) -> TextRef {
        let start = self.scratch.len();
        self.scratch.push_str(text);
        TextRef::New(start, self.scratch.len())
    }

    fn check<E: ListEntry>(
        &self,
        take: &WireReader<'_>,
        entry: (TextRef, TextRef),
        earlier: &[E],
    ) -> Result<(), CodecError> {
        if !matches!(entry.1, TextRef::None) && self.text(entry.1, earlier).is_empty() {
            return Err(take.damaged("the text of a key is empty"));
        }
        let key = self.key(entry.0, earlier);
        let last = self.entries.last().map(|(last, _)| self.key(*last, earlier));
        match last.is_some_and(|last| last >= key) {
            true => Err(take.damaged("keys are not in order")),
            false => Ok(()),
        }
    }
}

fn copy(take: &WireReader<'_>, copied: &mut CopyBudget, bytes: usize) -> Result<(), CodecError> {
    match copied.add(bytes) {
        true => Ok(()),
        false => Err(take.damaged("texts refer to each other too often")),
    }
}
