//! Compares sketches of this crate with those of the public implementation for Python: both make the same sketch of the
//! same values, and each reads what the other writes.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/python/ask.rs"]
mod ask;

use serde_json::{Value, json};
use thalweg_sketch::{BINS_MAX, GAMMA, Sketch};

const PARTS: [f64; 7] = [0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0];

/// The answers of the public implementation, one per question.
fn ask(questions: &[Value]) -> Vec<Value> {
    ask::ask("tests/public_ddsketch.py", questions)
}

fn of(values: &[f64]) -> Sketch {
    let mut sketch = Sketch::default();
    values.iter().for_each(|value| sketch.add(*value));
    sketch
}

fn hex(sketch: &Sketch) -> String {
    let mut bytes = Vec::new();
    sketch.encode(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(hex: &Value) -> Sketch {
    let digits = hex.as_str().unwrap();
    let bytes: Vec<u8> = (0..digits.len() / 2)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let mut sketch = Sketch::default();
    sketch.merge_bytes(&bytes).unwrap();
    sketch
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Values of all magnitudes, some so far apart that bins are collapsed.
fn samples() -> Vec<Vec<f64>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let decades = [0.1, 1.0, 6.0, 17.0, 40.0, 300.0];
    let mut samples: Vec<Vec<f64>> = decades
        .iter()
        .map(|decades| {
            let mut value = || 10_f64.powf((random.next() * 2.0 - 1.0) * decades);
            let values = (0..500).map(|at| if at % 3 == 0 { -value() } else { value() });
            values.chain([0.0]).collect()
        })
        .collect();
    samples.extend([
        vec![],
        vec![1.0],
        vec![-1.0],
        vec![0.0],
        vec![5e-324],
        vec![f64::MAX / 1.03],
    ]);
    samples
}

#[test]
fn each_makes_of_values_what_the_other_makes() {
    let samples = samples();
    let questions: Vec<Value> = samples
        .iter()
        .map(|values| json!({"values": values, "sketch": hex(&of(values)), "parts": PARTS}))
        .collect();
    for (values, answer) in samples.iter().zip(ask(&questions)) {
        let ours = of(values);
        assert_eq!(read(&answer["sketch"]), ours, "{values:?}");
        assert_eq!(answer["count"], json!(ours.count()), "{values:?}");
        let finite = || values.iter().copied();
        let (least, greatest) = (finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max));
        let ends = [0.0, 1.0].map(|part| ours.quantile(part));
        for (part, theirs) in PARTS.into_iter().zip(answer["quantiles"].as_array().unwrap()) {
            // The other implementation gives what a bin stands for, even beyond the least and the greatest value.
            let theirs = theirs.as_f64().map(|theirs| theirs.max(least).min(greatest));
            match (ours.quantile(part), theirs) {
                (Some(ours), Some(theirs)) => {
                    // The least and the greatest value are kept with eight bits.
                    let near = if ends.contains(&Some(ours)) { 1.0 / 256.0 } else { 1e-9 };
                    assert!((ours - theirs).abs() <= near * theirs.abs(), "{part}: {ours} {theirs}");
                }
                (ours, theirs) => assert_eq!(ours, theirs),
            }
        }
    }
}

#[test]
fn each_merges_what_the_other_merges() {
    let samples = samples();
    let pairs: Vec<(&Vec<f64>, &Vec<f64>)> = samples.iter().zip(samples.iter().skip(1)).collect();
    let questions: Vec<Value> = pairs
        .iter()
        .map(|(one, other)| json!({"values": one, "sketch": hex(&of(other)), "merge": true, "parts": []}))
        .collect();
    for ((one, other), answer) in pairs.iter().zip(ask(&questions)) {
        let both = of(&[&one[..], &other[..]].concat());
        assert_eq!(read(&answer["sketch"]), both, "{one:?} {other:?}");
    }
}

/// At the bounds of a bin the last bit of the logarithm decides.
#[test]
fn values_at_the_ends_of_bins_are_in_the_same_bin() {
    let step = i32::try_from(BINS_MAX - 100).unwrap();
    let mut questions = Vec::new();
    let mut samples = Vec::new();
    for first in (-35_300..35_400).step_by(BINS_MAX - 100) {
        let mut values = Vec::new();
        for bin in first..(first + step).min(35_450) {
            let end = (f64::from(bin) * GAMMA.log2()).exp2();
            let (below, above) = (end.next_down(), end.next_up());
            values.extend([below.next_down(), below, end, above, above.next_up()]);
        }
        questions.push(json!({"values": values, "sketch": "", "parts": []}));
        samples.push(values);
    }
    assert!(samples.iter().map(Vec::len).sum::<usize>() > 350_000);
    for (values, answer) in samples.iter().zip(ask(&questions)) {
        assert!(
            read(&answer["sketch"]) == of(values),
            "of the values from {:?} on",
            values.first()
        );
    }
}
