use proptest::prelude::*;
use prost::Message;

use super::*;

/// The public format as a general decoder reads it.
#[derive(Clone, PartialEq, Message)]
struct ProtoSketch {
    #[prost(message, optional, tag = "1")]
    mapping: Option<ProtoMapping>,
    #[prost(message, optional, tag = "2")]
    positive: Option<ProtoStore>,
    #[prost(message, optional, tag = "3")]
    negative: Option<ProtoStore>,
    #[prost(double, tag = "4")]
    zeros: f64,
}

#[derive(Clone, PartialEq, Message)]
struct ProtoMapping {
    #[prost(double, tag = "1")]
    gamma: f64,
    #[prost(double, tag = "2")]
    offset: f64,
    #[prost(int32, tag = "3")]
    interpolation: i32,
}

#[derive(Clone, PartialEq, Message)]
struct ProtoStore {
    #[prost(btree_map = "sint32, double", tag = "1")]
    sparse: std::collections::BTreeMap<i32, f64>,
    #[prost(double, repeated, tag = "2")]
    run: Vec<f64>,
    #[prost(sint32, tag = "3")]
    first: i32,
}

fn proto(mapping: ProtoMapping, positive: ProtoStore) -> Vec<u8> {
    let sketch = ProtoSketch {
        mapping: Some(mapping),
        positive: Some(positive),
        ..ProtoSketch::default()
    };
    sketch.encode_to_vec()
}

fn ours() -> ProtoMapping {
    ProtoMapping {
        gamma: GAMMA,
        ..ProtoMapping::default()
    }
}

fn of(values: &[f64]) -> Sketch {
    let mut sketch = Sketch::default();
    values.iter().for_each(|value| sketch.add(*value));
    sketch
}

fn bytes(sketch: &Sketch) -> Vec<u8> {
    let mut bytes = Vec::new();
    sketch.encode(&mut bytes);
    bytes
}

fn read(bytes: &[u8]) -> Result<Sketch, SketchError> {
    let mut sketch = Sketch::default();
    sketch.merge_bytes(bytes).map(|()| sketch)
}

/// The value that has the rank of a quantile.
fn exact(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(part * (values.len() - 1) as f64) as usize]
}

#[test]
fn quantiles_are_near_values() {
    let sketch = of(&[-100.0, -1.0, 0.0, 0.0, 5.0, 1e10]);
    assert_eq!(sketch.count(), 6.0);
    for (part, expected) in [(0.0, -100.0), (0.2, -1.0), (0.5, 0.0), (0.8, 5.0), (1.0, 1e10)] {
        let found = sketch.quantile(part).unwrap();
        assert!(
            (found - expected).abs() <= 0.010_000_1 * f64::abs(expected),
            "{part}: {found}"
        );
    }
    assert_eq!(Sketch::default().quantile(0.5), None);
    for part in [-0.1, 1.1, f64::NAN] {
        assert_eq!(sketch.quantile(part), None, "{part}");
    }
}

#[test]
fn quantiles_of_one_value_are_that_value() {
    for value in [7.0, -7.0, 0.1, 1e300, -1e-300, 0.0] {
        let sketch = of(&[value, value]);
        for sketch in [read(&bytes(&sketch)).unwrap(), sketch] {
            for part in [0.0, 0.5, 1.0] {
                let found = sketch.quantile(part).unwrap();
                // A bin may stand for a value within the values: that of one value is exact on one side.
                assert_eq!(found, value, "{part}");
            }
        }
    }
}

/// Other programs may use the same fields for something else, or write sketches without them.
#[test]
fn ends_that_no_bin_has_are_not_used() {
    let bins = |values: &[f64]| {
        let whole = ProtoSketch::decode(&bytes(&of(values))[..]).unwrap();
        whole.encode_to_vec()
    };
    let plain = bins(&[3.0, 5.0]);
    let usual: Vec<Option<f64>> = [0.0, 1.0].map(|part| read(&plain).unwrap().quantile(part)).into();
    for end in [f64::NAN, f64::INFINITY, -1.0, 0.0, 2.9, 3.5, 1e300] {
        for key in [0x71, 0x79] {
            let odd = [&plain[..], &[key], &end.to_le_bytes()].concat();
            let found: Vec<Option<f64>> = [0.0, 1.0].map(|part| read(&odd).unwrap().quantile(part)).into();
            assert_eq!(found, usual, "{end}");
        }
    }
    // A bin that another sketch has, too, stands for all of its values.
    let mut merged = read(&plain).unwrap();
    merged.merge_bytes(&bytes(&of(&[3.0, 5.0]))).unwrap();
    assert_eq!(vec![merged.quantile(0.0), merged.quantile(1.0)], usual);
}

#[test]
fn what_has_no_bin_is_left_out_and_what_is_tiny_is_zero() {
    let mut sketch = of(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    sketch.add_count(1.0, 0.0);
    sketch.add_count(1.0, -1.0);
    sketch.add_count(1.0, f64::NAN);
    assert!(sketch.is_empty());
    assert_eq!(of(&[0.0, -0.0, f64::MIN_POSITIVE, -5e-324]).quantile(1.0), Some(0.0));
    let extremes = of(&[f64::MAX, f64::MIN]);
    for (part, expected) in [(0.0, f64::MIN), (1.0, f64::MAX)] {
        let found = extremes.quantile(part).unwrap();
        assert!((found / expected - 1.0).abs() <= 0.01, "{found}");
    }
    let mut parts = Sketch::default();
    parts.add_count(3.0, 0.25);
    assert_eq!(parts.count(), 0.25);
    assert!((parts.quantile(1.0).unwrap() - 3.0).abs() < 0.03);
}

#[test]
fn bytes_are_those_of_the_public_form() {
    let sketch = of(&[1.0, 1.0, GAMMA * GAMMA * 0.999, -1.0, 0.0]);
    let expected = ProtoSketch {
        mapping: Some(ours()),
        positive: Some(ProtoStore {
            run: vec![2.0, 0.0, 1.0],
            ..ProtoStore::default()
        }),
        negative: Some(ProtoStore {
            run: vec![1.0],
            ..ProtoStore::default()
        }),
        zeros: 1.0,
    };
    assert_eq!(ProtoSketch::decode(&bytes(&sketch)[..]).unwrap(), expected);
    assert_eq!(expected.encode_to_vec(), bytes(&sketch));
    assert_eq!(read(&expected.encode_to_vec()).unwrap(), sketch);
    assert_eq!(bytes(&Sketch::default()).len(), 11, "the mapping alone");
    assert!(read(&bytes(&Sketch::default())).unwrap().is_empty() && read(&[]).unwrap().is_empty());
}

#[test]
fn sparse_and_contiguous_bins_are_read_and_too_many_are_collapsed() {
    let store = ProtoStore {
        sparse: [(-7, 1.0), (3, 2.0), (9, 0.0)].into(),
        run: vec![0.0, 0.5, 0.0, 0.0],
        first: 2,
    };
    let mixed = read(&proto(ours(), store)).unwrap();
    let expected = ProtoStore {
        run: vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.5],
        first: -7,
        ..ProtoStore::default()
    };
    assert_eq!(bytes(&mixed), proto(ours(), expected));
    let wide = ProtoStore {
        run: vec![1.0; 3000],
        ..ProtoStore::default()
    };
    let wide = read(&proto(ours(), wide)).unwrap();
    let kept = ProtoSketch::decode(&bytes(&wide)[..]).unwrap().positive.unwrap();
    assert_eq!((kept.first, kept.run.len(), kept.run[0]), (952, BINS_MAX, 953.0));
    // As an old encoder may write it: each number in its own field.
    let mut unpacked = bytes(&Sketch::default());
    let store: Vec<u8> = [1.0_f64, 2.0]
        .iter()
        .flat_map(|count| [&[0x11][..], &count.to_le_bytes()].concat())
        .collect();
    unpacked.extend([0x12, store.len() as u8]);
    unpacked.extend(store);
    assert_eq!(read(&unpacked).unwrap().count(), 3.0);
}

#[test]
fn what_is_no_sketch_of_ours_is_told_and_changes_nothing() {
    let one = |index, count| ProtoStore {
        sparse: [(index, count)].into(),
        ..ProtoStore::default()
    };
    let with = |gamma, offset, interpolation| ProtoMapping {
        gamma,
        offset,
        interpolation,
    };
    let nearly = read(&proto(with(GAMMA + 2e-16, 0.0, 0), one(1, 1.0)));
    assert_eq!(nearly.unwrap().count(), 1.0);
    let mut sketch = of(&[1.0]);
    let before = sketch.clone();
    for (given, expected) in [
        (
            proto(with(1.1, 0.0, 0), one(1, 1.0)),
            "gamma 1.1, offset 0, interpolation 0",
        ),
        (proto(with(GAMMA, 1.0, 0), one(1, 1.0)), "offset 1,"),
        (proto(with(GAMMA, 0.0, 3), one(1, 1.0)), "interpolation 3"),
        (proto(ours(), one(i32::MAX, 1.0)), "out of range"),
        (proto(ours(), one(-40_000, 1.0)), "out of range"),
        (proto(ours(), one(1, f64::NAN)), "the count of a bin is invalid"),
        (proto(ours(), one(1, -1.0)), "the count of a bin is invalid"),
        (proto(ours(), one(1, f64::INFINITY)), "the count of a bin is invalid"),
        (vec![0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f], "no bin mapping"),
        (vec![0x0a, 9, 1], "byte 2: a field is longer than its message"),
        (vec![0x08, 1], "does not have the type of a sketch"),
        (b"text".to_vec(), "not a sketch"),
    ] {
        let error = sketch.merge_bytes(&given).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} instead of {expected}");
        assert_eq!(sketch, before);
    }
}

#[test]
fn buckets_have_equal_shares_between_their_ends() {
    let mut sketch = Sketch::default();
    sketch.add_histogram(&[1.0, 256.0], &[0, 16, 0], None, None);
    let values: Vec<f64> = (0..8)
        .map(|share| 256_f64.powf((f64::from(share) + 0.5) / 8.0))
        .collect();
    let mut expected = Sketch::default();
    values.iter().for_each(|value| expected.add_count(*value, 2.0));
    assert_eq!(sketch, expected);

    let few = |count: i64| {
        let mut sketch = Sketch::default();
        sketch.add_histogram(&[0.0, 12.0], &[0, count, 0], None, None);
        sketch
    };
    assert_eq!(few(3), of(&[2.0, 6.0, 10.0]), "linear from zero, whole shares");
    assert_eq!(few(20).count(), 20.0);

    let mut negative = Sketch::default();
    negative.add_histogram(&[-10.0, -6.0], &[0, 2, 0], None, None);
    assert_eq!(negative, of(&[-9.0, -7.0]));
}

#[test]
fn the_outermost_buckets_end_at_the_least_and_the_greatest_value() {
    let entered = |bounds: &[f64], counts: &[i64], min, max| {
        let mut sketch = Sketch::default();
        sketch.add_histogram(bounds, counts, min, max);
        sketch
    };
    let root = |low: f64, high: f64| (low * high).sqrt();
    let both = entered(&[10.0, 20.0], &[1, 0, 1], Some(5.0), Some(80.0));
    assert_eq!(both, of(&[root(5.0, 10.0), root(20.0, 80.0)]));
    assert_eq!(entered(&[10.0, 20.0], &[1, 0, 1], None, None), of(&[5.0, 20.0]));
    assert_eq!(entered(&[-10.0], &[1, 1], None, None), of(&[-10.0, -10.0]));
    assert_eq!(entered(&[-10.0], &[1, 0], Some(-30.0), None), of(&[-20.0]));
    // The ends decide where a bucket contradicts them.
    let wrong = entered(&[10.0, 20.0], &[1, 0, 1], Some(15.0), Some(f64::NAN));
    assert_eq!(wrong, of(&[15.0, 20.0]));
    // Ends that contradict each other are ignored.
    let crossed = entered(&[10.0, 20.0], &[0, 1, 0], Some(15.0), Some(12.0));
    assert_eq!(crossed, of(&[root(10.0, 20.0)]));
    assert_eq!(entered(&[], &[1], Some(2.0), Some(8.0)), of(&[4.0]));
    assert_eq!(
        entered(&[], &[7], None, Some(8.0)).count(),
        7.0,
        "all at the end that is known"
    );
    assert!(entered(&[], &[7], None, None).is_empty());
    assert_eq!(entered(&[1.0, f64::INFINITY], &[0, 1, 0], None, None), of(&[1.0]));
}

/// A bucket with bounds may have the least or the greatest value, too.
#[test]
fn no_point_of_a_bucket_is_beyond_the_least_and_the_greatest_value() {
    let mut sketch = Sketch::default();
    sketch.add_histogram(&[10.0, 20.0, 40.0], &[0, 50, 50, 0], Some(12.0), Some(25.0));
    let ends = |sketch: &Sketch| [0.0, 1.0].map(|part| sketch.quantile(part).unwrap());
    let [least, greatest] = ends(&sketch);
    assert!(
        (12.0..12.5).contains(&least) && (24.0..=25.0).contains(&greatest),
        "{least} {greatest}"
    );
    // Of one bucket from 2 to 4, one from -4 to -2, and zeros.
    for (min, max) in [
        (-2.5, 3.5),
        (-2.5, 0.0),
        (0.1, 3.5),
        (2.5, 2.5),
        (-1.0, 1.0),
        (100.0, 200.0),
    ] {
        let run = SketchBucketRun {
            offset: 1,
            counts: &[9],
        };
        let mut sketch = Sketch::default();
        sketch.add_exponential(0, 2, run, run, (Some(min), Some(max)));
        let [least, greatest] = ends(&sketch);
        assert!(min <= least && greatest <= max, "{min} to {max}: {least} to {greatest}");
        assert_eq!(sketch.count(), 20.0);
    }
}

#[test]
fn exponential_buckets_are_bins_of_their_own() {
    let entered = |scale, zeros, positive: SketchBucketRun<'_>, negative: SketchBucketRun<'_>| {
        let mut sketch = Sketch::default();
        sketch.add_exponential(scale, zeros, positive, negative, (None, None));
        sketch
    };
    let run = |offset, counts: &'static [i64]| SketchBucketRun { offset, counts };
    let none = SketchBucketRun::default();
    // From 2 to 4, and from -16 to -8.
    let some = entered(0, 5, run(1, &[1]), run(3, &[1]));
    assert_eq!(some, of(&[0.0, 0.0, 0.0, 0.0, 0.0, 8_f64.sqrt(), -(128_f64.sqrt())]));
    // Narrower than a bin: one bin gets all values.
    let narrow = entered(10, 0, run(512, &[100]), none);
    assert!((narrow.quantile(0.0).unwrap() / 2_f64.sqrt() - 1.0).abs() < 0.02);
    assert_eq!(narrow.quantile(0.0), narrow.quantile(1.0));
    for scale in [i32::MIN, -11, 0, 20, 40, i32::MAX] {
        for offset in [i32::MIN, -1, 0, i32::MAX - 1] {
            let odd = entered(scale, 0, run(offset, &[1, 0, 9]), none);
            assert_eq!(odd.count(), 10.0, "{scale} {offset}");
            assert!(odd.quantile(1.0).unwrap().is_finite());
        }
    }
}

fn values() -> impl Strategy<Value = Vec<f64>> {
    let value = prop_oneof![
        4 => -1e3..1e3,
        2 => (-300.0..300.0_f64).prop_map(|exponent| 10_f64.powf(exponent)),
        1 => Just(0.0),
        1 => any::<f64>(),
    ];
    proptest::collection::vec(value, 0..200)
}

/// What a sketch is made of.
#[derive(Clone, Debug)]
enum SketchContents {
    Values(Vec<f64>),
    Histogram {
        bounds: Vec<f64>,
        counts: Vec<i64>,
        ends: (Option<f64>, Option<f64>),
    },
    Exponential {
        scale: i32,
        zeros: i64,
        offset: i32,
        sides: [Vec<i64>; 2],
        ends: (Option<f64>, Option<f64>),
    },
    /// A sketch of another program, without ends.
    Foreign {
        positive: ProtoStore,
        zeros: f64,
    },
}

impl SketchContents {
    fn add_to(&self, sketch: &mut Sketch) {
        match self {
            SketchContents::Values(values) => values.iter().for_each(|value| sketch.add(*value)),
            SketchContents::Histogram { bounds, counts, ends } => {
                sketch.add_histogram(bounds, counts, ends.0, ends.1);
            }
            SketchContents::Exponential {
                scale,
                zeros,
                offset,
                sides,
                ends,
            } => {
                let [positive, negative] = sides.each_ref().map(|counts| SketchBucketRun {
                    offset: *offset,
                    counts,
                });
                sketch.add_exponential(*scale, *zeros, positive, negative, *ends);
            }
            SketchContents::Foreign { positive, zeros } => {
                let foreign = ProtoSketch {
                    mapping: Some(ours()),
                    positive: Some(positive.clone()),
                    negative: None,
                    zeros: *zeros,
                };
                sketch.merge_bytes(&foreign.encode_to_vec()).unwrap();
            }
        }
    }

    /// The least and the greatest value. Of another program's sketch these are what its outermost bins stand for.
    fn range(&self) -> (f64, f64) {
        let around = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, greatest), value| {
                (least.min(value), greatest.max(value))
            })
        };
        match self {
            SketchContents::Values(values) => around(&mut values.iter().copied().filter(|value| value.is_finite())),
            SketchContents::Histogram { ends, .. } | SketchContents::Exponential { ends, .. } => {
                (ends.0.unwrap_or(f64::NEG_INFINITY), ends.1.unwrap_or(f64::INFINITY))
            }
            SketchContents::Foreign { positive, zeros } => {
                let bins = positive.sparse.iter().filter(|(_, count)| **count > 0.0);
                let zero = (*zeros > 0.0).then_some(0.0);
                around(&mut bins.map(|(index, _)| value_of(*index)).chain(zero))
            }
        }
    }
}

fn ends() -> impl Strategy<Value = (Option<f64>, Option<f64>)> {
    let end = || prop_oneof![2 => -100.0..100.0_f64, 1 => (-9..9_i32).prop_map(f64::from), 1 => (-400..400_i32).prop_map(|at| GAMMA.powi(at))];
    (end(), end(), any::<[bool; 2]>()).prop_map(|(one, other, [has_min, has_max]): (f64, f64, [bool; 2])| {
        (has_min.then_some(one.min(other)), has_max.then_some(one.max(other)))
    })
}

fn contents() -> impl Strategy<Value = SketchContents> {
    let counts = |len| proptest::collection::vec(prop_oneof![Just(0), 0..20_i64], len);
    let histogram = (proptest::collection::btree_set(-50_i32..50, 0..6), counts(7..8), ends());
    let exponential = (-3..8, 0..3_i64, -40..40, [counts(0..6), counts(0..6)], ends());
    let foreign = (
        proptest::collection::btree_map(-60..60_i32, 0.0..3.0, 0..6),
        0.0..1.0_f64,
    );
    prop_oneof![
        values().prop_map(SketchContents::Values),
        proptest::collection::vec(-9.0..9.0, 0..4).prop_map(SketchContents::Values),
        histogram.prop_map(|(bounds, counts, ends)| {
            let bounds: Vec<f64> = bounds.into_iter().map(f64::from).collect();
            let counts = counts[..=bounds.len()].to_vec();
            SketchContents::Histogram { bounds, counts, ends }
        }),
        exponential.prop_map(|(scale, zeros, offset, sides, ends)| SketchContents::Exponential {
            scale,
            zeros,
            offset,
            sides,
            ends,
        }),
        foreign.prop_map(|(sparse, zeros)| SketchContents::Foreign {
            positive: ProtoStore {
                sparse,
                ..ProtoStore::default()
            },
            zeros: if zeros < 0.5 { 0.0 } else { zeros },
        }),
    ]
}

proptest! {
    #[test]
    fn quantiles_are_within_one_percent(
        signs in any::<[bool; 2]>(),
        mut values in proptest::collection::vec((-8.0..8.0_f64).prop_map(|exponent| 10_f64.powf(exponent)), 1..500),
        part in 0.0..=1.0,
    ) {
        for (at, value) in values.iter_mut().enumerate() {
            *value *= if signs[at % 2] { 1.0 } else { -1.0 };
        }
        let found = of(&values).quantile(part).unwrap();
        let exact = exact(&mut values, part);
        prop_assert!((found - exact).abs() <= 0.010_000_1 * exact.abs(), "{found} {exact}");
        // The values are sorted now.
        let (least, greatest) = (values[0], values[values.len() - 1]);
        prop_assert!(least <= found && found <= greatest, "{least} {found} {greatest}");
        let again = read(&bytes(&of(&values))).unwrap();
        prop_assert_eq!(again.quantile(part), Some(found));
    }

    #[test]
    fn no_quantile_is_beyond_the_values_wherever_they_come_from(
        given in proptest::collection::vec((contents(), 0..3_u8), 1..6),
        portions in proptest::collection::vec(0.0..=1.0, 6),
    ) {
        let (mut sketch, mut range) = (Sketch::default(), (f64::INFINITY, f64::NEG_INFINITY));
        for (contents, way) in &given {
            let (least, greatest) = contents.range();
            range = (range.0.min(least), range.1.max(greatest));
            match way {
                0 => contents.add_to(&mut sketch),
                // As a window, or as a window that is made of windows.
                _ => {
                    let mut part = Sketch::default();
                    contents.add_to(&mut part);
                    let part = (1..*way).fold(bytes(&part), |window, _| bytes(&read(&window).unwrap()));
                    sketch.merge_bytes(&part).unwrap();
                }
            }
        }
        let mut portions = portions.clone();
        portions.extend([0.0, 1.0]);
        portions.sort_by(f64::total_cmp);
        let found: Vec<Option<f64>> = portions.iter().map(|part| sketch.quantile(*part)).collect();
        prop_assert!(found.is_sorted(), "{:?}", found);
        prop_assert_eq!(found.iter().all(Option::is_none), sketch.is_empty());
        for value in found.iter().flatten() {
            prop_assert!(range.0 <= *value && *value <= range.1, "{:?}: {}", range, value);
        }
        let again = read(&bytes(&sketch)).unwrap();
        prop_assert_eq!(portions.iter().map(|part| again.quantile(*part)).collect::<Vec<_>>(), found);
    }

    #[test]
    fn equal_contents_have_equal_bytes(values in values(), cut in 0..200_usize, order in any::<u64>()) {
        let whole = bytes(&of(&values));
        let mut shuffled = values.clone();
        shuffled.sort_by_key(|value| value.to_bits().wrapping_mul(order | 1));
        prop_assert_eq!(&bytes(&of(&shuffled)), &whole);
        let (one, other) = shuffled.split_at(cut.min(shuffled.len()));
        let (one, other) = (bytes(&of(one)), bytes(&of(other)));
        let mut merged = read(&one).unwrap();
        merged.merge_bytes(&other).unwrap();
        prop_assert_eq!(&bytes(&merged), &whole);
        // In memory that earlier contents left.
        merged.clear();
        merged.merge_bytes(&other).unwrap();
        merged.merge_bytes(&one).unwrap();
        prop_assert_eq!(&bytes(&merged), &whole);
        prop_assert_eq!(bytes(&read(&whole).unwrap()), whole);
    }

    #[test]
    fn a_bin_has_what_the_formula_says(value in proptest::num::f64::POSITIVE | proptest::num::f64::NORMAL) {
        prop_assume!(value > VALUE_MIN);
        let formula = (value.ln() / 2_f64.ln() * (2_f64.ln() * (1.0 / (2.0 * 0.01_f64 / 0.99).ln_1p()))).ceil();
        prop_assert_eq!(f64::from(bin_at(place(value))), formula);
    }

    #[test]
    fn any_bytes_are_read_or_refused(given in proptest::collection::vec(any::<u8>(), 0..100), values in values()) {
        fuzz(&given);
        let mut bytes = bytes(&of(&values));
        fuzz(&bytes);
        for (at, byte) in given.chunks_exact(2).map(|pair| (usize::from(pair[0]), pair[1])) {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        fuzz(&bytes);
    }
}
