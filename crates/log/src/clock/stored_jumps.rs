//! How the history of the wall clock is stored: version 1 · wall clock minus log time before the first jump 8 · number of
//! jumps as varint · for each jump: log time 8, wall clock minus log time from then on 8.

use thalweg_kit::clock::{ClockJumps, JUMPS_MAX};
use thalweg_kit::varint;

use crate::format::{FieldReader, FieldWriter};

const VERSION: u8 = 1;

pub(super) fn encode(jumps: &ClockJumps) -> Vec<u8> {
    let list = jumps.list();
    let mut out = Vec::with_capacity(16 + 16 * list.len());
    FieldWriter(&mut out).u8(VERSION).i64(jumps.first());
    varint::put(&mut out, list.len() as u64);
    for (at, offset) in list {
        FieldWriter(&mut out).i64(*at).i64(*offset);
    }
    out
}

/// Returns `None` if the bytes are malformed or the jumps are not in order.
pub(super) fn decode(bytes: &[u8]) -> Option<ClockJumps> {
    let mut take = FieldReader(bytes);
    if take.u8()? != VERSION {
        return None;
    }
    let first = take.i64()?;
    let (count, rest) = varint::take(take.0)?;
    let mut take = FieldReader(rest);
    let mut list = Vec::new();
    for _ in 0..count.min(JUMPS_MAX as u64) {
        list.push((take.i64()?, take.i64()?));
    }
    let is_whole = take.0.is_empty() && list.len() as u64 == count;
    is_whole.then(|| ClockJumps::from_parts(first, list))?
}
