//! Sketches as bytes, in the public protobuf format of DDSketch:
//!
//! ```proto
//! message DDSketch {
//!     IndexMapping mapping = 1; Store positiveValues = 2; Store negativeValues = 3; double zeroCount = 4;
//! }
//! message IndexMapping {
//!     double gamma = 1; double indexOffset = 2; Interpolation interpolation = 3;  // 0 = logarithmic
//! }
//! message Store {
//!     map<sint32, double> binCounts = 1; repeated double contiguousBinCounts = 2; sint32 contiguousBinIndexOffset = 3;
//! }
//! ```
//!
//! Fields 14 and 15, which the public format does not have, are the least and the greatest value, or numbers shortly
//! within them, each only if the outermost bin stands for a value beyond it.
//!
//! Both forms of a store are read. Only the contiguous form is written, from the first bin with a count to the last.
//! The sparse form is smaller for few bins, but some public implementations do not read it and take the sketch for
//! empty.

use super::bin::{SignedBin, outermost};
use super::mapping::{GAMMA, INDEX_MAX, INDEX_MIN, VALUE_MIN};
use super::store::SketchBinStore;
use super::{Sketch, SketchError};
use thalweg_kit::varint;
use thalweg_kit::wire::{END, FieldKey, WireCursor, WireResult, bytes, fixed64, number, once, zigzag};

/// The relative tolerance for gamma: its lowest bits depend on how it is computed.
const GAMMA_TOLERANCE: f64 = 1e-12;
/// The most by which a value differs from what its bin stands for.
const END_TOLERANCE: f64 = 0.011;
/// The highest count. No sum of such counts overflows.
const COUNT_MAX: f64 = 1e30;

mod sketch {
    use super::*;
    pub const MAPPING: FieldKey = bytes(1);
    pub const POSITIVE: FieldKey = bytes(2);
    pub const NEGATIVE: FieldKey = bytes(3);
    pub const ZEROS: FieldKey = fixed64(4);
    pub const LEAST: FieldKey = fixed64(14);
    pub const GREATEST: FieldKey = fixed64(15);
}
mod mapping {
    use super::*;
    pub const GAMMA: FieldKey = fixed64(1);
    pub const OFFSET: FieldKey = fixed64(2);
    pub const INTERPOLATION: FieldKey = number(3);
}
mod store {
    use super::*;
    pub const SPARSE: FieldKey = bytes(1);
    pub const RUN: FieldKey = bytes(2);
    pub const RUN_UNPACKED: FieldKey = fixed64(2);
    pub const FIRST: FieldKey = number(3);
}
mod entry {
    use super::*;
    pub const INDEX: FieldKey = number(1);
    pub const COUNT: FieldKey = fixed64(2);
}

/// Validated bytes of a sketch, which can be merged without decoding them first.
#[derive(Clone, Copy, Debug)]
pub struct EncodedSketch<'a> {
    positive: EncodedBins<'a>,
    negative: EncodedBins<'a>,
    pub(super) zeros: f64,
    /// The lowest and the highest bin with a count.
    pub(super) outermost: Option<(SignedBin, SignedBin)>,
    /// The fields with the ends. Another program may use them for something else.
    least: Option<f64>,
    greatest: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct EncodedBins<'a> {
    message: Option<WireCursor<'a>>,
    /// The index of the first contiguous bin.
    first: i64,
    /// The outermost bins with a count.
    range: Option<(i32, i32)>,
    /// The counts from the first to the last of them, if they are packed in one field, as this program writes them.
    run: Option<&'a [[u8; 8]]>,
}

impl<'a> EncodedSketch<'a> {
    /// Validates all bytes. Empty input is a sketch without values, as in protobuf.
    pub fn read(sketch: &'a [u8]) -> std::result::Result<EncodedSketch<'a>, SketchError> {
        let mut at = WireCursor::new(sketch);
        let (mut mapping, mut positive, mut negative, mut zeros) = (None, None, None, 0.0);
        let (mut least, mut greatest) = (None, None);
        loop {
            match at.key()? {
                sketch::MAPPING => once(&mut mapping, at.message()?)?,
                sketch::POSITIVE => once(&mut positive, at.message()?)?,
                sketch::NEGATIVE => once(&mut negative, at.message()?)?,
                sketch::ZEROS => zeros = count(&mut at)?,
                sketch::LEAST => least = Some(f64::from_bits(at.fixed64()?)),
                sketch::GREATEST => greatest = Some(f64::from_bits(at.fixed64()?)),
                END => break,
                key => pass_over(&mut at, key, 4)?,
            }
        }
        let (positive, negative) = (EncodedBins::read(positive)?, EncodedBins::read(negative)?);
        let encoded = EncodedSketch {
            outermost: outermost(negative.range, zeros, positive.range),
            positive,
            negative,
            zeros,
            least,
            greatest,
        };
        match mapping {
            Some(mapping) => check_mapping(mapping)?,
            None if encoded.is_empty() => {}
            None => return Err(SketchError::NoMapping),
        }
        Ok(encoded)
    }

    pub fn is_empty(&self) -> bool {
        self.outermost.is_none()
    }

    /// The least value, given the lowest bin, or what this bin stands for.
    pub(super) fn least_of(&self, lowest: SignedBin) -> f64 {
        let of_bin = lowest.value();
        let least = self.least.filter(|least| of_bin < *least && is_near(*least, of_bin));
        least.unwrap_or(of_bin)
    }

    /// The greatest value, given the highest bin, or what this bin stands for.
    pub(super) fn greatest_of(&self, highest: SignedBin) -> f64 {
        let of_bin = highest.value();
        let greatest = self
            .greatest
            .filter(|greatest| *greatest < of_bin && is_near(*greatest, of_bin));
        greatest.unwrap_or(of_bin)
    }

    pub(super) fn add_to(&self, positive: &mut SketchBinStore, negative: &mut SketchBinStore) {
        self.positive.add_to(positive);
        self.negative.add_to(negative);
    }
}

fn check_mapping(mut at: WireCursor<'_>) -> std::result::Result<(), SketchError> {
    let (mut gamma, mut offset, mut interpolation) = (0.0, 0.0, 0);
    loop {
        match at.key()? {
            mapping::GAMMA => gamma = f64::from_bits(at.fixed64()?),
            mapping::OFFSET => offset = f64::from_bits(at.fixed64()?),
            mapping::INTERPOLATION => interpolation = at.number()?,
            END => break,
            key => pass_over(&mut at, key, 3)?,
        }
    }
    let is_ours = (gamma - GAMMA).abs() <= GAMMA_TOLERANCE && offset == 0.0 && interpolation == 0;
    match is_ours {
        true => Ok(()),
        false => Err(SketchError::OtherMapping {
            gamma,
            offset,
            interpolation,
        }),
    }
}

impl<'a> EncodedBins<'a> {
    fn read(message: Option<WireCursor<'a>>) -> WireResult<EncodedBins<'a>> {
        let Some(message) = message else {
            return Ok(EncodedBins::default());
        };
        let (mut at, mut first, mut run, mut is_one_run) = (message, 0, None, true);
        loop {
            match at.key()? {
                store::FIRST => first = zigzag(at.number()?),
                store::RUN if run.is_none() => run = Some(at.message()?),
                key @ (store::RUN | store::RUN_UNPACKED | store::SPARSE) => {
                    is_one_run = false;
                    at.skip(key, 0)?;
                }
                END => break,
                key => pass_over(&mut at, key, 3)?,
            }
        }
        let mut bins = EncodedBins {
            message: Some(message),
            first,
            range: None,
            run: None,
        };
        if let Some(run) = run.filter(|_| is_one_run) {
            if let Some(run) = BinRun::of(&message, first, unpacked(&run)?)? {
                (bins.range, bins.run) = (Some((run.low, run.high)), Some(run.counts));
            }
            return Ok(bins);
        }
        let mut range: Option<(i32, i32)> = None;
        bins.visit(|from, counts| {
            if let Some(BinRun { low, high, .. }) = BinRun::of(&message, from, counts)? {
                let (lowest, highest) = range.unwrap_or((low, high));
                range = Some((lowest.min(low), highest.max(high)));
            }
            Ok(())
        })?;
        bins.range = range;
        Ok(bins)
    }

    /// Calls `show` with runs of consecutive bins: the index of the first bin, and the counts.
    fn visit(&self, mut show: impl FnMut(i64, &[[u8; 8]]) -> WireResult<()>) -> WireResult<()> {
        let Some(mut at) = self.message else { return Ok(()) };
        let mut next = self.first;
        let mut show_run = |at: &WireCursor<'_>, counts: &[[u8; 8]]| {
            let from = next;
            let len = i64::try_from(counts.len()).unwrap_or(i64::MAX);
            next = next
                .checked_add(len)
                .ok_or_else(|| at.malformed("the index of a bin is out of range"))?;
            show(from, counts)
        };
        // Sparse and contiguous bins may be interleaved; the sparse ones are read in a second pass.
        loop {
            match at.key()? {
                store::RUN => {
                    let packed = at.message()?;
                    show_run(&packed, unpacked(&packed)?)?;
                }
                store::RUN_UNPACKED => {
                    let count = at.fixed64()?.to_le_bytes();
                    show_run(&at, &[count])?;
                }
                key @ (store::SPARSE | store::FIRST) => at.skip(key, 0)?,
                END => break,
                key => pass_over(&mut at, key, 3)?,
            }
        }
        self.visit_sparse(show)
    }

    fn visit_sparse(&self, mut show: impl FnMut(i64, &[[u8; 8]]) -> WireResult<()>) -> WireResult<()> {
        let Some(mut at) = self.message else { return Ok(()) };
        loop {
            match at.key()? {
                store::SPARSE => {
                    let (mut entry, mut index, mut count) = (at.message()?, 0, 0);
                    loop {
                        match entry.key()? {
                            entry::INDEX => index = zigzag(entry.number()?),
                            entry::COUNT => count = entry.fixed64()?,
                            END => break,
                            key => pass_over(&mut entry, key, 2)?,
                        }
                    }
                    show(index, &[count.to_le_bytes()])?;
                }
                END => return Ok(()),
                key => at.skip(key, 0)?,
            }
        }
    }

    fn add_to(&self, store: &mut SketchBinStore) {
        let Some((low, high)) = self.range else { return };
        if let Some(counts) = self.run {
            return store.add_run(low, counts);
        }
        store.make_room(low, high);
        let shown = self.visit(|from, counts| {
            if let Some((skipped, counts)) = without_zeros(counts)
                && let Some(low) = i64::try_from(skipped)
                    .ok()
                    .and_then(|skipped| from.checked_add(skipped))
                && let Ok(low) = i32::try_from(low)
            {
                store.add_run(low, counts);
            }
            Ok(())
        });
        debug_assert!(shown.is_ok(), "all of it was read before");
    }
}

/// The counts of a packed field.
fn unpacked<'a>(packed: &WireCursor<'a>) -> WireResult<&'a [[u8; 8]]> {
    match packed.rest().as_chunks() {
        (counts, []) => Ok(counts),
        _ => Err(packed.malformed("packed numbers end within a number")),
    }
}

/// Consecutive bins, of which the first and the last have a count.
struct BinRun<'a> {
    low: i32,
    high: i32,
    counts: &'a [[u8; 8]],
}

impl<'a> BinRun<'a> {
    /// Validates consecutive bins of a message; `None` if there is no count.
    fn of(message: &WireCursor<'_>, first: i64, counts: &'a [[u8; 8]]) -> WireResult<Option<BinRun<'a>>> {
        // Without an early exit, so that several counts are checked at once.
        let wrong = counts.iter().fold(0, |wrong, bytes| {
            wrong | u64::from(!is_count(f64::from_le_bytes(*bytes)))
        });
        if wrong != 0 {
            return Err(message.malformed("the count of a bin is invalid"));
        }
        let Some((skipped, counts)) = without_zeros(counts) else {
            return Ok(None);
        };
        let index = |at: usize| {
            let index = i64::try_from(at).ok().and_then(|at| first.checked_add(at));
            let index = index.and_then(|index| i32::try_from(index).ok());
            index
                .filter(|index| (INDEX_MIN..=INDEX_MAX).contains(index))
                .ok_or_else(|| message.malformed("the index of a bin is out of range"))
        };
        Ok(Some(BinRun {
            low: index(skipped)?,
            high: index(skipped + counts.len() - 1)?,
            counts,
        }))
    }
}

/// The counts from the first to the last positive one, and the number of counts before them.
fn without_zeros(counts: &[[u8; 8]]) -> Option<(usize, &[[u8; 8]])> {
    let is_above_zero = |bytes: &[u8; 8]| f64::from_le_bytes(*bytes) > 0.0;
    let first = counts.iter().position(is_above_zero)?;
    let last = counts.iter().rposition(is_above_zero)?;
    counts.get(first..=last).map(|counts| (first, counts))
}

/// Whether a bin that stands for one value can have the other.
fn is_near(value: f64, of_bin: f64) -> bool {
    (value - of_bin).abs() <= (of_bin.abs() * END_TOLERANCE).max(VALUE_MIN)
}

fn is_count(count: f64) -> bool {
    (0.0..=COUNT_MAX).contains(&count)
}

fn count(at: &mut WireCursor<'_>) -> WireResult<f64> {
    let count = f64::from_bits(at.fixed64()?);
    match is_count(count) {
        true => Ok(count),
        false => Err(at.malformed("the count of a bin is invalid")),
    }
}

/// Skips an unknown field of a message with the field numbers up to `known`.
fn pass_over(at: &mut WireCursor<'_>, key: FieldKey, known: u32) -> WireResult<()> {
    match key >> 3 <= known {
        true => Err(at.malformed("a field does not have the type of a sketch")),
        false => at.skip(key, 0),
    }
}

impl Sketch {
    /// Appends the encoded sketch. Equal sketches have equal bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (positive, negative) = (self.positive.encoded_len(), self.negative.encoded_len());
        out.reserve(64 + positive + negative);
        put_key(sketch::MAPPING, out);
        out.push(9);
        put_double(mapping::GAMMA, GAMMA, out);
        for (key, store, len) in [
            (sketch::POSITIVE, &self.positive, positive),
            (sketch::NEGATIVE, &self.negative, negative),
        ] {
            if !store.is_empty() {
                put_key(key, out);
                put_number(len, out);
                store.encode(out);
            }
        }
        if self.zeros > 0.0 {
            put_double(sketch::ZEROS, self.zeros, out);
        }
        let (least, greatest) = self.clamps();
        for (key, end) in [(sketch::LEAST, least), (sketch::GREATEST, greatest)] {
            if let Some(end) = end {
                put_double(key, end, out);
            }
        }
    }
}

impl SketchBinStore {
    fn encoded_len(&self) -> usize {
        let counts = size_of_val(self.counts());
        let first = if self.low() == 0 {
            0
        } else {
            1 + number_len(self.zigzag_low())
        };
        1 + number_len(counts) + counts + first
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_key(store::RUN, out);
        put_number(size_of_val(self.counts()), out);
        for count in self.counts() {
            out.extend_from_slice(&count.to_le_bytes());
        }
        if self.low() != 0 {
            put_key(store::FIRST, out);
            put_number(self.zigzag_low(), out);
        }
    }

    fn zigzag_low(&self) -> usize {
        varint::zigzag(self.low().into()) as usize
    }
}

/// Keys of a sketch are below 128.
fn put_key(key: FieldKey, out: &mut Vec<u8>) {
    out.extend(u8::try_from(key));
}

fn put_double(key: FieldKey, number: f64, out: &mut Vec<u8>) {
    put_key(key, out);
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_number(number: usize, out: &mut Vec<u8>) {
    varint::put(out, number as u64);
}

fn number_len(number: usize) -> usize {
    varint::len(number as u64)
}
