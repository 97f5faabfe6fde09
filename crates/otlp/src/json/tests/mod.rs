//! Tests the mapping against the reference decoder, against real senders, and against hostile input.

mod documents;
mod hostile;
pub mod random;
pub mod style;
mod values;
pub mod written;

use proptest::prelude::*;
use prost::Message;

use std::fmt;

use super::*;
use crate::proto;
use crate::validate::walk;
use style::{Dice, Style};
use thalweg_columns::rows::record_limits::RecordLimits;

/// Converts a text to protobuf.
fn proto_of(signal: Signal, json: &str) -> JsonResult<Vec<u8>> {
    let mut out = Vec::new();
    to_proto(signal, json.as_bytes(), &JsonLimits::default(), &mut out)?;
    let walked = walk(signal, &out, &RecordLimits::default());
    assert!(walked.is_ok(), "{walked:?}");
    Ok(out)
}

/// Checks that JSON in any style is read as the request it was written from.
fn agrees<M>(signal: Signal, request: &M, json: &str) -> std::result::Result<(), String>
where
    M: Message + Default + PartialEq + fmt::Debug,
{
    let bytes = proto_of(signal, json).map_err(|error| format!("{error} in {json}"))?;
    let read = M::decode(&*bytes).map_err(|error| format!("{error} in {json}"))?;
    match read == *request {
        true => Ok(()),
        false => Err(format!("{request:?}\nwas written {json}\nand read {read:?}")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn json_is_read_as_the_request_it_was_written_from(seed in any::<u64>(), style in any::<u64>()) {
        for mut style in [Style::random(style), Style::plain()] {
            let request = random::logs(&mut Dice::new(seed));
            prop_assert_eq!(agrees(Signal::Logs, &request, &written::logs(&mut style, &request)), Ok(()));
            let request = random::metrics(&mut Dice::new(seed));
            prop_assert_eq!(agrees(Signal::Metrics, &request, &written::metrics(&mut style, &request)), Ok(()));
            let request = random::traces(&mut Dice::new(seed));
            prop_assert_eq!(agrees(Signal::Traces, &request, &written::traces(&mut style, &request)), Ok(()));
        }
    }
}
