//! Mutates valid bytes, for tests of decoders.

use proptest::prelude::*;
use proptest::sample::Index;

/// One change of some bytes.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    /// Truncates.
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    /// Replaces four bytes that may be a length.
    Length(Index, i32),
    /// Changes them slightly.
    LengthBy(Index, i32),
}

pub(crate) fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<Index>;
    let lengths = vec![i32::MIN, -2, -1, 0, 1, 2, 3, 255, 65_536, 1_000_001, i32::MAX];
    prop_oneof![
        (at(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        at().prop_map(Mutation::Cut),
        (at(), 1usize..5).prop_map(|(at, bytes)| Mutation::Remove(at, bytes)),
        (at(), prop::collection::vec(any::<u8>(), 1..5)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (at(), prop::sample::select(lengths)).prop_map(|(at, length)| Mutation::Length(at, length)),
        (at(), -2i32..3).prop_map(|(at, by)| Mutation::LengthBy(at, by)),
    ]
}

pub(crate) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    prop::collection::vec(mutation(), 1..4)
}

pub(crate) fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation]) {
    for mutation in mutations {
        if bytes.is_empty() {
            return;
        }
        let place = |at: &Index, bytes: &Vec<u8>| at.index(bytes.len());
        match mutation {
            Mutation::Flip(at, bit) => {
                let at = place(at, bytes);
                bytes[at] ^= 1 << bit;
            }
            Mutation::Set(at, byte) => {
                let at = place(at, bytes);
                bytes[at] = *byte;
            }
            Mutation::Cut(at) => bytes.truncate(place(at, bytes)),
            Mutation::Remove(at, count) => {
                let at = place(at, bytes);
                bytes.drain(at..bytes.len().min(at + count));
            }
            Mutation::Insert(at, inserted) => {
                let at = place(at, bytes);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Mutation::Length(at, length) => change_length(bytes, at, |_| *length),
            Mutation::LengthBy(at, by) => change_length(bytes, at, |length| length.wrapping_add(*by)),
        }
    }
}

fn change_length(bytes: &mut [u8], at: &Index, change: impl Fn(i32) -> i32) {
    let at = at.index(bytes.len());
    if let Some(length) = bytes[at..].first_chunk_mut::<4>() {
        *length = change(i32::from_le_bytes(*length)).to_le_bytes();
    }
}
