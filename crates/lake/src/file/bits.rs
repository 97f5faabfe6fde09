//! How Parquet packs numbers: levels and dictionary indices as runs, times as differences.

/// Values of a run that are worth one.
const RUN_MIN: usize = 8;
const BLOCK: usize = 128;
const MINI_BLOCKS: usize = 4;
const MINI_BLOCK: usize = BLOCK / MINI_BLOCKS;

pub(super) fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn zigzag(value: i64, out: &mut Vec<u8>) {
    varint((value << 1 ^ value >> 63) as u64, out);
}

/// Bits of the largest of `count` numbers from zero on.
pub(super) fn width_of(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}

/// One value, again and again.
pub(super) fn run(value: u32, count: usize, width: u32, out: &mut Vec<u8>) {
    varint((count as u64) << 1, out);
    let bytes = value.to_le_bytes();
    out.extend_from_slice(bytes.get(..width.div_ceil(8) as usize).unwrap_or_default());
}

/// Runs of one value, and what lies between them packed.
pub(super) fn hybrid(values: &[u32], width: u32, out: &mut Vec<u8>) {
    let (mut literals, mut at) = (0, 0);
    while let Some(&value) = values.get(at) {
        let rest = values.get(at..).unwrap_or_default();
        let len = rest.iter().take_while(|next| **next == value).count();
        // What is packed comes in groups of eight, of which the last may take from the run.
        let to_fill = (at - literals).wrapping_neg() % 8;
        if len >= to_fill + RUN_MIN {
            put_literals(values.get(literals..at + to_fill).unwrap_or_default(), width, out);
            run(value, len - to_fill, width, out);
            literals = at + len;
        }
        at += len;
    }
    put_literals(values.get(literals..).unwrap_or_default(), width, out);
}

fn put_literals(values: &[u32], width: u32, out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    varint((values.len().div_ceil(8) as u64) << 1 | 1, out);
    let wide = values.iter().map(|value| u64::from(*value));
    pack(wide, values.len().next_multiple_of(8), width, out);
}

/// So many values of a width, zeros behind those that there are.
fn pack(values: impl Iterator<Item = u64>, count: usize, width: u32, out: &mut Vec<u8>) {
    let end = out.len() + (count * width as usize).div_ceil(8);
    let (mut bits, mut held) = (0_u128, 0);
    for value in values {
        bits |= u128::from(value) << held;
        held += width;
        if held >= 64 {
            out.extend_from_slice(&(bits as u64).to_le_bytes());
            bits >>= 64;
            held -= 64;
        }
    }
    out.extend_from_slice(&(bits as u64).to_le_bytes());
    out.resize(end, 0);
}

/// Each number as its difference to the one before (DELTA_BINARY_PACKED).
pub(super) fn differences(values: &[i64], out: &mut Vec<u8>) {
    varint(BLOCK as u64, out);
    varint(MINI_BLOCKS as u64, out);
    varint(values.len() as u64, out);
    zigzag(values.first().copied().unwrap_or_default(), out);
    let mut last = values.first().copied().unwrap_or_default();
    for block in values.get(1..).unwrap_or_default().chunks(BLOCK) {
        let mut differences = [0_i64; BLOCK];
        for (difference, value) in differences.iter_mut().zip(block) {
            *difference = value.wrapping_sub(last);
            last = *value;
        }
        let differences = differences.get(..block.len()).unwrap_or_default();
        let least = differences.iter().copied().min().unwrap_or_default();
        zigzag(least, out);
        let above = |difference: &i64| difference.wrapping_sub(least) as u64;
        let mut widths = [0_u8; MINI_BLOCKS];
        for (width, mini) in widths.iter_mut().zip(differences.chunks(MINI_BLOCK)) {
            let all = mini.iter().map(above).fold(0, |all, bits| all | bits);
            *width = (u64::BITS - all.leading_zeros()) as u8;
        }
        out.extend_from_slice(&widths);
        for (width, mini) in widths.iter().zip(differences.chunks(MINI_BLOCK)) {
            pack(mini.iter().map(above), MINI_BLOCK, u32::from(*width), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes numbers back as the format's description says.
    struct Reader<'a>(&'a [u8]);

    impl Reader<'_> {
        fn varint(&mut self) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let (byte, rest) = self.0.split_first().unwrap();
                self.0 = rest;
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    return value;
                }
            }
        }

        fn zigzag(&mut self) -> i64 {
            let value = self.varint();
            (value >> 1) as i64 ^ -((value & 1) as i64)
        }

        fn packed(&mut self, count: usize, width: u32) -> Vec<u64> {
            let (bytes, rest) = self.0.split_at((count * width as usize).div_ceil(8));
            self.0 = rest;
            let bit = |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
            let value =
                |at: usize| (0..width as usize).fold(0, |value, of| value | bit(at * width as usize + of) << of);
            (0..count).map(value).collect()
        }

        fn hybrid(&mut self, count: usize, width: u32) -> Vec<u32> {
            let mut values = Vec::new();
            while values.len() < count {
                let head = self.varint();
                match head & 1 {
                    0 => {
                        let (bytes, rest) = self.0.split_at(width.div_ceil(8) as usize);
                        self.0 = rest;
                        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
                        values.extend(std::iter::repeat_n(value, (head >> 1) as usize));
                    }
                    _ => values.extend(
                        self.packed((head >> 1) as usize * 8, width)
                            .iter()
                            .map(|value| *value as u32),
                    ),
                }
            }
            values.truncate(count);
            values
        }

        fn differences(&mut self) -> Vec<i64> {
            let (block, minis, count, first) = (self.varint(), self.varint(), self.varint(), self.zigzag());
            assert_eq!((block, minis), (128, 4));
            let mut values = vec![first];
            while values.len() < count as usize {
                let least = self.zigzag();
                let (widths, rest) = self.0.split_at(4);
                self.0 = rest;
                for width in widths {
                    if values.len() < count as usize {
                        for above in self.packed(32, u32::from(*width)) {
                            let last = *values.last().unwrap();
                            values.push(last.wrapping_add(least).wrapping_add(above as i64));
                        }
                    }
                }
            }
            values.truncate(count as usize);
            values
        }
    }

    proptest! {
        #[test]
        fn indices_come_back(runs in prop::collection::vec((0_u32..600, 1_usize..30), 0..60), wide in any::<bool>()) {
            let values: Vec<u32> = runs.iter().flat_map(|(value, len)| std::iter::repeat_n(*value, *len)).collect();
            let width = if wide { 32 } else { width_of(600) };
            let mut bytes = Vec::new();
            hybrid(&values, width, &mut bytes);
            let mut reader = Reader(&bytes);
            prop_assert_eq!(reader.hybrid(values.len(), width), values);
            prop_assert!(reader.0.is_empty());
        }

        #[test]
        fn differences_come_back(values in prop::collection::vec(prop_oneof![any::<i64>(), -1000_i64..1000, Just(i64::MIN)], 1..400)) {
            let mut bytes = Vec::new();
            differences(&values, &mut bytes);
            let mut reader = Reader(&bytes);
            prop_assert_eq!(reader.differences(), values);
            prop_assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn a_run_of_a_dictionary_with_one_text_has_no_bits() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(width_of), [0, 0, 1, 2, 2, 3]);
        let mut bytes = Vec::new();
        hybrid(&[0; 100], 0, &mut bytes);
        assert_eq!(bytes, [200, 1]);
    }
}
