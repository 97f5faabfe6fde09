//! Parquet number encodings: RLE/bit-packing for levels and dictionary indices, delta packing for times.

use thalweg_kit::varint;

/// The least number of equal values that are written as a run.
const RUN_MIN: usize = 8;
const BLOCK: usize = 128;
const MINI_BLOCKS: usize = 4;
const MINI_BLOCK: usize = BLOCK / MINI_BLOCKS;

/// The bit width of indices below `count`.
pub(super) fn width_of(count: usize) -> u32 {
    usize::BITS - count.saturating_sub(1).leading_zeros()
}

/// Writes one repeated value as a run.
pub(super) fn run(value: u32, count: usize, width: u32, out: &mut Vec<u8>) {
    varint::put(out, (count as u64) << 1);
    let bytes = value.to_le_bytes();
    out.extend_from_slice(bytes.get(..width.div_ceil(8) as usize).unwrap_or_default());
}

/// The RLE/bit-packing hybrid: runs of one value, and packed literals between them.
pub(super) fn hybrid(values: &[u32], width: u32, out: &mut Vec<u8>) {
    let (mut literals, mut at) = (0, 0);
    while let Some(&value) = values.get(at) {
        let rest = values.get(at..).unwrap_or_default();
        let len = rest.iter().take_while(|next| **next == value).count();
        // Literals are packed in groups of eight; the last group may borrow values from the run.
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
    varint::put(out, (values.len().div_ceil(8) as u64) << 1 | 1);
    let wide = values.iter().map(|value| u64::from(*value));
    pack(wide, values.len().next_multiple_of(8), width, out);
}

/// Packs values of one width, padded with zeros to `count`.
fn pack(values: impl Iterator<Item = u64>, count: usize, width: u32, out: &mut Vec<u8>) {
    let end = out.len() + (count * width as usize).div_ceil(8);
    let (mut bits, mut held) = (0_u64, 0);
    for value in values {
        bits |= value << held;
        held += width;
        if held >= u64::BITS {
            out.extend_from_slice(&bits.to_le_bytes());
            held -= u64::BITS;
            // The rest of a value that did not fit.
            bits = value.checked_shr(width - held).unwrap_or_default();
        }
    }
    out.extend_from_slice(&bits.to_le_bytes());
    out.resize(end, 0);
}

/// Delta encoding (DELTA_BINARY_PACKED).
pub(super) fn differences(values: &[i64], out: &mut Vec<u8>) {
    varint::put(out, BLOCK as u64);
    varint::put(out, MINI_BLOCKS as u64);
    varint::put(out, values.len() as u64);
    varint::put_signed(out, values.first().copied().unwrap_or_default());
    let mut last = values.first().copied().unwrap_or_default();
    for block in values.get(1..).unwrap_or_default().chunks(BLOCK) {
        let mut differences = [0_i64; BLOCK];
        for (difference, value) in differences.iter_mut().zip(block) {
            *difference = value.wrapping_sub(last);
            last = *value;
        }
        let differences = differences.get(..block.len()).unwrap_or_default();
        let least = differences.iter().copied().min().unwrap_or_default();
        varint::put_signed(out, least);
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

/// Bytes after a page that readers may read beyond its end. Their values do not matter.
pub(super) const PADDING: usize = 16;

/// Reads a varint and advances `at`.
pub(super) fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let (value, len) = varint::read(bytes.get(*at..)?).ok()?;
    *at += len;
    Some(value)
}

/// Reads a signed varint and advances `at`.
pub(super) fn take_zigzag(bytes: &[u8], at: &mut usize) -> Option<i64> {
    take_varint(bytes, at).map(varint::unzigzag)
}

/// Reads what [`hybrid`] packed, incrementally. The bytes must be those of a page followed by [`PADDING`].
#[derive(Debug, Default)]
pub(super) struct HybridReader {
    /// The next run, or the beginning of the current packed values.
    at: usize,
    width: u32,
    /// Values left in this run.
    left: usize,
    /// The repeated value; `None` if the values are packed.
    value: Option<u32>,
    /// Packed values already read.
    taken: usize,
}

impl HybridReader {
    /// `None` if the width is invalid.
    pub fn new(at: usize, width: u32) -> Option<HybridReader> {
        (width <= u32::BITS).then(|| HybridReader {
            at,
            width,
            ..HybridReader::default()
        })
    }

    /// Reads the next values; `None` if fewer are left.
    pub fn read(&mut self, bytes: &[u8], mut count: usize, out: &mut Vec<u32>) -> Option<()> {
        while count > 0 {
            if self.left == 0 {
                self.next_run(bytes)?;
            }
            let taken = count.min(self.left);
            match self.value {
                Some(value) => out.resize(out.len() + taken, value),
                None => self.unpack(bytes, taken, out)?,
            }
            self.pass(taken);
            count -= taken;
        }
        Some(())
    }

    pub fn skip(&mut self, bytes: &[u8], mut count: usize) -> Option<()> {
        while count > 0 {
            if self.left == 0 {
                self.next_run(bytes)?;
            }
            let skipped = count.min(self.left);
            self.pass(skipped);
            count -= skipped;
        }
        Some(())
    }

    fn next_run(&mut self, bytes: &[u8]) -> Option<()> {
        let head = usize::try_from(take_varint(bytes, &mut self.at)?).ok()?;
        let (count, is_packed) = (head >> 1, head & 1 == 1);
        self.taken = 0;
        if is_packed {
            self.left = count.checked_mul(8)?;
            self.value = None;
        } else {
            let len = self.width.div_ceil(8) as usize;
            let bytes = bytes.get(self.at..self.at + len)?;
            self.value = Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)));
            self.left = count;
            self.at += len;
        }
        // An empty run would never end.
        (self.left > 0).then_some(())
    }

    fn unpack(&self, bytes: &[u8], count: usize, out: &mut Vec<u32>) -> Option<()> {
        let width = self.width as usize;
        let packed = bytes.get(self.at..)?;
        let first = self.taken.checked_mul(width)?;
        // Also reading the last value must stay within the padding.
        packed.get((first + count.checked_mul(width)?) / 8 + 7)?;
        let mask = (1_u64 << width) - 1;
        let value = |number: usize| {
            let bit = first + number * width;
            let bits = packed.get(bit / 8..).and_then(<[u8]>::first_chunk::<8>);
            bits.map_or(0, |bits| (u64::from_le_bytes(*bits) >> (bit % 8) & mask) as u32)
        };
        out.extend((0..count).map(value));
        Some(())
    }

    fn pass(&mut self, count: usize) {
        self.left -= count;
        self.taken += count;
        if self.left == 0 && self.value.is_none() {
            self.at = self
                .at
                .saturating_add(self.taken.saturating_mul(self.width as usize) / 8);
        }
    }
}

/// Reads what [`differences`] packed, incrementally. The bytes must be those of a page followed by [`PADDING`].
#[derive(Debug)]
pub(super) struct DeltaPackedReader {
    /// The next block, or the packed differences of the current miniblock.
    at: usize,
    /// Numbers left.
    left: usize,
    is_begun: bool,
    last: i64,
    least: i64,
    widths: [u8; MINI_BLOCKS],
    /// The current miniblock, and how many of its values were read.
    mini: usize,
    taken: usize,
}

impl DeltaPackedReader {
    /// `None` if the block sizes differ from those that this program writes.
    pub fn new(bytes: &[u8], mut at: usize) -> Option<DeltaPackedReader> {
        let (block, minis) = (take_varint(bytes, &mut at)?, take_varint(bytes, &mut at)?);
        let count = take_varint(bytes, &mut at)?;
        let first = take_zigzag(bytes, &mut at)?;
        ((block, minis) == (BLOCK as u64, MINI_BLOCKS as u64)).then_some(())?;
        Some(DeltaPackedReader {
            at,
            left: usize::try_from(count).ok()?,
            is_begun: false,
            last: first,
            least: 0,
            widths: [0; MINI_BLOCKS],
            mini: MINI_BLOCKS,
            taken: 0,
        })
    }

    /// Passes the next numbers to `give`; `None` if fewer are left.
    pub fn read(&mut self, bytes: &[u8], mut count: usize, mut give: impl FnMut(i64)) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        if count > 0 && !std::mem::replace(&mut self.is_begun, true) {
            give(self.last);
            count -= 1;
        }
        while count > 0 {
            if self.mini == MINI_BLOCKS {
                self.least = take_zigzag(bytes, &mut self.at)?;
                self.widths = *bytes.get(self.at..)?.first_chunk()?;
                self.at += MINI_BLOCKS;
                (self.mini, self.taken) = (0, 0);
            }
            let width = usize::from(*self.widths.get(self.mini).filter(|width| **width <= 64)?);
            let packed = bytes.get(self.at..)?;
            let taken = count.min(MINI_BLOCK - self.taken);
            let mask = u64::MAX.checked_shr(u64::BITS - width as u32).unwrap_or(0);
            for number in self.taken..self.taken + taken {
                let bit = number * width;
                let bits = u128::from_le_bytes(*packed.get(bit / 8..)?.first_chunk()?);
                let above = (bits >> (bit % 8)) as u64 & mask;
                self.last = self.last.wrapping_add(self.least).wrapping_add(above as i64);
                give(self.last);
            }
            count -= taken;
            self.taken += taken;
            if self.taken == MINI_BLOCK {
                self.at += MINI_BLOCK * width / 8;
                self.mini += 1;
                self.taken = 0;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A straightforward decoder after the format's specification.
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

    /// Reads in several pieces, some of which are skipped.
    fn in_pieces(count: usize, pieces: &[usize], mut piece: impl FnMut(std::ops::Range<usize>, bool)) {
        let mut at = 0;
        for (number, len) in pieces.iter().cycle().enumerate() {
            let end = count.min(at + len);
            piece(at..end, number % 3 == 2);
            at = end;
            if at == count {
                return;
            }
        }
    }

    fn padded(bytes: &[u8]) -> Vec<u8> {
        [bytes, &[0xa5; PADDING]].concat()
    }

    proptest! {
        #[test]
        fn readers_take_what_was_packed(
            runs in prop::collection::vec((0_u32..600, 1_usize..30), 1..60),
            values in prop::collection::vec(prop_oneof![any::<i64>(), -1000_i64..1000, Just(i64::MIN)], 1..400),
            pieces in prop::collection::vec(1_usize..150, 1..6),
        ) {
            let indices: Vec<u32> = runs.iter().flat_map(|(value, len)| std::iter::repeat_n(*value, *len)).collect();
            for width in [width_of(600), 17, 32] {
                let mut bytes = vec![7];
                hybrid(&indices, width, &mut bytes);
                let (bytes, mut reader) = (padded(&bytes), HybridReader::new(1, width).unwrap());
                in_pieces(indices.len(), &pieces, |rows, is_skipped| {
                    let mut found = Vec::new();
                    if is_skipped {
                        return reader.skip(&bytes, rows.len()).unwrap();
                    }
                    reader.read(&bytes, rows.len(), &mut found).unwrap();
                    assert_eq!(found, indices[rows]);
                });
            }
            let mut bytes = vec![7];
            differences(&values, &mut bytes);
            let bytes = padded(&bytes);
            let mut reader = DeltaPackedReader::new(&bytes, 1).unwrap();
            in_pieces(values.len(), &pieces, |rows, _| {
                let mut found = Vec::new();
                reader.read(&bytes, rows.len(), |value| found.push(value)).unwrap();
                assert_eq!(found, values[rows]);
            });
            let beyond = reader.read(&bytes, 1, |_| {});
            prop_assert!(beyond.is_none());
        }

        #[test]
        fn readers_of_other_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200), width in 0_u32..40) {
            let bytes = padded(&bytes);
            if let Some(mut reader) = HybridReader::new(0, width) {
                let mut found = Vec::new();
                let is_read = reader.read(&bytes, 1000, &mut found).is_some();
                prop_assert!(found.len() == 1000 || !is_read);
            }
            if let Some(mut reader) = DeltaPackedReader::new(&bytes, 0) {
                let mut found = 0;
                let is_read = reader.read(&bytes, 1000, |_| found += 1).is_some();
                prop_assert!(found == 1000 || !is_read);
            }
        }

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
