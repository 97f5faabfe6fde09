//! For tests: measures how the time of some work grows with the size of an external input. No input may cause work that
//! grows faster than the input itself.

use std::hint::black_box;
use std::time::Duration;

use thalweg_kit::clock;

/// Factor between the small and the large input.
const TIMES: usize = 16;

/// Of this many runs the fastest counts, because other load disturbed it least.
const RUNS: usize = 9;

/// The exponent by which the time grows between `n` and sixteen times `n`: about 1 for linear work, 2 for quadratic.
/// `make` is not measured. The larger run should take less than a millisecond, so that it is seldom interrupted.
pub fn exponent<I, O>(n: usize, make: impl Fn(usize) -> I, work: impl Fn(I) -> O) -> f64 {
    let fastest = |n: usize| {
        let run = |_| {
            let input = make(n);
            let start = clock::now();
            let output = black_box(work(black_box(input)));
            let took = start.elapsed();
            drop(output);
            took
        };
        (0..RUNS)
            .map(run)
            .min()
            .unwrap_or_default()
            .max(Duration::from_nanos(1))
    };
    let (small, large) = (fastest(n), fastest(n * TIMES));
    (large.as_secs_f64() / small.as_secs_f64()).ln() / (TIMES as f64).ln()
}

/// Above the effect of sorting and caches on linear work, and well below quadratic.
pub const LINEAR: f64 = 1.6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_through_all_for_each_is_told_from_a_step_for_each() {
        let make = |n: usize| (0..n as u64).collect::<Vec<u64>>();
        let steps = exponent(5_000, make, |all| all.iter().map(|one| one ^ (one >> 3)).sum::<u64>());
        let looks = exponent(200, make, |all| {
            all.iter()
                .filter(|one| all.iter().rev().any(|other| black_box(other) == *one))
                .count()
        });
        assert!(steps < LINEAR && looks > LINEAR, "{steps} {looks}");
    }
}
