//! The deadband and the swinging door, on plain points without messages.
//!
//! Times are milliseconds since 1970, as in samples; the door computes in seconds.

use std::fmt;
use std::time::Duration;

use thalweg_record::Number;

/// A point of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub t: i64,
    pub v: Number,
}

/// What to do with a point, and with the earlier point that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointVerdict {
    /// Pass it on; a point that is held back is dropped.
    Emit,
    /// Drop it.
    Filter,
    /// Hold it back until it is known whether it is needed; a point held back before is dropped.
    Hold,
    /// Pass on the point that was held back, and hold this one back in its place.
    EmitHeldAndHold,
}

/// An algorithm with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AlgorithmSettings {
    Deadband(Deadband),
    Door(SwingingDoor),
}

/// A point is kept if it differs from the last kept one by the threshold, or if that one is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Deadband {
    pub threshold: f64,
    /// Zero: no maximum.
    pub max_time: Duration,
}

/// A point is kept if no straight line from the last kept one is within the threshold of all points between.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SwingingDoor {
    pub threshold: f64,
    pub max_time: Duration,
    /// Minimum time between kept points.
    pub min_time: Duration,
}

/// Settings as a table key; equal for equal settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SettingsKey {
    name: &'static str,
    threshold_bits: u64,
    max_time: Duration,
    min_time: Duration,
}

impl AlgorithmSettings {
    pub fn key(&self) -> SettingsKey {
        let min_time = match self {
            AlgorithmSettings::Deadband(_) => Duration::ZERO,
            AlgorithmSettings::Door(settings) => settings.min_time,
        };
        SettingsKey {
            name: self.name(),
            // The two zeros are equal.
            threshold_bits: (self.threshold() + 0.0).to_bits(),
            max_time: self.max_time(),
            min_time,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            AlgorithmSettings::Deadband(_) => "deadband",
            AlgorithmSettings::Door(_) => "swinging_door",
        }
    }

    fn threshold(&self) -> f64 {
        match self {
            AlgorithmSettings::Deadband(settings) => settings.threshold,
            AlgorithmSettings::Door(settings) => settings.threshold,
        }
    }

    pub fn max_time(&self) -> Duration {
        match self {
            AlgorithmSettings::Deadband(settings) => settings.max_time,
            AlgorithmSettings::Door(settings) => settings.max_time,
        }
    }
}

impl fmt::Display for AlgorithmSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(threshold={:.3}", self.name(), self.threshold())?;
        if !self.max_time().is_zero() {
            write!(f, ",max_time={}", Short(self.max_time()))?;
        }
        if let AlgorithmSettings::Door(settings) = self
            && !settings.min_time.is_zero()
        {
            write!(f, ",min_time={}", Short(settings.min_time))?;
        }
        f.write_str(")")
    }
}

/// A duration in its largest whole unit: `3s`, `1500ms`, `1h`.
struct Short(Duration);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        for (unit, length) in [("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
            if ms >= length && ms.is_multiple_of(length) {
                return write!(f, "{}{unit}", ms / length);
            }
        }
        write!(f, "{ms}ms")
    }
}

/// The state of an algorithm for a series.
#[derive(Clone, Debug)]
pub(super) struct AlgorithmState {
    settings: AlgorithmSettings,
    /// The last point that was kept.
    base: Option<Point>,
    /// For the door: the point that is held back.
    held: Option<Point>,
    /// Slopes that a line from the base may have.
    slopes: (f64, f64),
    /// When a point was last kept.
    emitted: i64,
}

const OPEN: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

impl AlgorithmState {
    pub fn new(settings: AlgorithmSettings) -> AlgorithmState {
        AlgorithmState {
            settings,
            base: None,
            held: None,
            slopes: OPEN,
            emitted: 0,
        }
    }

    pub fn settings(&self) -> &AlgorithmSettings {
        &self.settings
    }

    /// Handles a point that is newer than all before it.
    pub fn point(&mut self, point: Point) -> PointVerdict {
        match self.settings {
            AlgorithmSettings::Deadband(settings) => self.in_deadband(point, settings),
            AlgorithmSettings::Door(settings) => self.in_door(point, settings),
        }
    }

    /// Passes on the point that is held back, because its time is over.
    pub fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.base = Some(held);
            self.emitted = held.t;
        }
        self.slopes = OPEN;
    }

    fn is_overdue(&self, t: i64, max_time: Duration) -> bool {
        !max_time.is_zero() && milliseconds(max_time) <= t.saturating_sub(self.emitted)
    }

    fn emit(&mut self, point: Point) -> PointVerdict {
        self.base = Some(point);
        self.emitted = point.t;
        self.held = None;
        self.slopes = OPEN;
        PointVerdict::Emit
    }

    fn in_deadband(&mut self, point: Point, settings: Deadband) -> PointVerdict {
        let Some(base) = self.base else {
            return self.emit(point);
        };
        let differs = match settings.threshold == 0.0 {
            true => !point.v.equals(base.v),
            false => point.v.is_as_far_as(settings.threshold, base.v),
        };
        match differs || self.is_overdue(point.t, settings.max_time) {
            true => self.emit(point),
            false => PointVerdict::Filter,
        }
    }

    fn in_door(&mut self, point: Point, settings: SwingingDoor) -> PointVerdict {
        let Some(base) = self.base else {
            return self.emit(point);
        };
        if self.is_overdue(point.t, settings.max_time) {
            return self.emit(point);
        }
        let Some(held) = self.held else {
            self.hold(base, point, settings.threshold);
            return PointVerdict::Hold;
        };
        if !self.is_violated(base, held, point, settings.threshold) {
            self.hold(base, point, settings.threshold);
            return PointVerdict::Hold;
        }
        self.slopes = OPEN;
        self.held = Some(point);
        if !settings.min_time.is_zero() && held.t.saturating_sub(self.emitted) < milliseconds(settings.min_time) {
            return PointVerdict::Hold;
        }
        self.base = Some(held);
        self.emitted = held.t;
        PointVerdict::EmitHeldAndHold
    }

    fn hold(&mut self, base: Point, point: Point, threshold: f64) {
        self.held = Some(point);
        let dx = seconds(point.t, base.t);
        if dx > 0.0 {
            let (low, high) = self.slopes;
            let rise = point.v.minus(base.v);
            self.slopes = (low.max((rise - threshold) / dx), high.min((rise + threshold) / dx));
        }
    }

    fn is_violated(&self, base: Point, held: Point, point: Point, threshold: f64) -> bool {
        let dx = seconds(point.t, base.t);
        if dx == 0.0 {
            return true;
        }
        let slope = point.v.minus(base.v) / dx;
        let (low, high) = self.slopes;
        if !(low..=high).contains(&slope) || low > high {
            return true;
        }
        let away = seconds(held.t, base.t);
        away > 0.0 && off_line(base.v, slope * away, held.v).abs() >= threshold
    }
}

/// The distance of a value from a line that has risen by `rise` since `base`. For doubles it is computed literally by
/// the rule, because at the threshold itself their rounding decides; integers may have more digits than that would
/// preserve.
fn off_line(base: Number, rise: f64, v: Number) -> f64 {
    match v.are_integers(base) {
        true => v.minus(base) - rise,
        false => v.as_f64() - (base.as_f64() + rise),
    }
}

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn seconds(t: i64, since: i64) -> f64 {
    t.saturating_sub(since) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(settings: AlgorithmSettings, points: &[(i64, f64)]) -> Vec<PointVerdict> {
        let mut state = AlgorithmState::new(settings);
        let point = |&(t, v): &(i64, f64)| Point { t, v: v.into() };
        points.iter().map(|at| state.point(point(at))).collect()
    }

    /// The kept points, with the one that is held back at the end.
    fn kept(settings: AlgorithmSettings, points: &[(i64, f64)]) -> Vec<(i64, f64)> {
        let mut held = None;
        let mut kept = Vec::new();
        for (verdict, &point) in run(settings, points).into_iter().zip(points) {
            match verdict {
                PointVerdict::Emit => {
                    held = None;
                    kept.push(point);
                }
                PointVerdict::Filter => {}
                PointVerdict::Hold => held = Some(point),
                PointVerdict::EmitHeldAndHold => kept.extend(held.replace(point)),
            }
        }
        kept.extend(held);
        kept
    }

    fn deadband(threshold: f64, max_time: u64) -> AlgorithmSettings {
        AlgorithmSettings::Deadband(Deadband {
            threshold,
            max_time: Duration::from_millis(max_time),
        })
    }

    fn door(threshold: f64, min_time: u64, max_time: u64) -> AlgorithmSettings {
        AlgorithmSettings::Door(SwingingDoor {
            threshold,
            min_time: Duration::from_millis(min_time),
            max_time: Duration::from_millis(max_time),
        })
    }

    #[test]
    fn the_deadband_keeps_changes_and_a_sign_of_life() {
        let points = [(0, 1.0), (1, 1.0), (2, 1.4), (3, 1.5), (4, 1.1), (5, 1.0), (9, 1.0)];
        assert_eq!(kept(deadband(0.5, 0), &points), [(0, 1.0), (3, 1.5), (5, 1.0)]);
        assert_eq!(
            kept(deadband(0.0, 0), &points),
            [(0, 1.0), (2, 1.4), (3, 1.5), (4, 1.1), (5, 1.0)]
        );
        assert_eq!(kept(deadband(9.0, 5), &points), [(0, 1.0), (5, 1.0)]);
    }

    #[test]
    fn the_door_keeps_the_corners_of_a_line() {
        let ramp: Vec<(i64, f64)> = (0..10).map(|i| (i * 1000, i as f64)).collect();
        assert_eq!(kept(door(0.1, 0, 0), &ramp), [(0, 0.0), (9000, 9.0)]);
        let roof: Vec<(i64, f64)> = (0..=10).map(|i: i64| (i * 1000, (5 - (i - 5).abs()) as f64)).collect();
        assert_eq!(kept(door(0.1, 0, 0), &roof), [(0, 0.0), (5000, 5.0), (10_000, 0.0)]);
        assert_eq!(
            kept(door(0.1, 0, 3000), &ramp),
            [(0, 0.0), (3000, 3.0), (6000, 6.0), (9000, 9.0)]
        );
    }

    #[test]
    fn a_door_without_threshold_keeps_every_point_one_step_late() {
        let points = [(0, 1.0), (1000, 2.0), (2000, 2.0), (3000, 7.5)];
        assert_eq!(kept(door(0.0, 0, 0), &points), points);
        use PointVerdict::{Emit, EmitHeldAndHold, Hold};
        assert_eq!(
            run(door(0.0, 0, 0), &points),
            [Emit, Hold, EmitHeldAndHold, EmitHeldAndHold]
        );
    }

    #[test]
    fn a_door_does_not_open_before_its_least_time() {
        let points = [
            (0, 0.0),
            (1000, 5.0),
            (2000, 0.0),
            (3000, 5.0),
            (4000, 0.0),
            (5000, 5.0),
        ];
        let kept = kept(door(0.5, 2500, 0), &points);
        assert!(
            kept.windows(2)
                .all(|pair| pair[1].0 - pair[0].0 >= 2500 || pair[1].0 == 5000),
            "{kept:?}"
        );
    }

    #[test]
    fn integers_are_told_apart_where_doubles_are_not() {
        const FAR: i64 = 1 << 60;
        let verdicts = |settings, values: &[i64]| -> Vec<PointVerdict> {
            let mut state = AlgorithmState::new(settings);
            let points = values.iter().zip(0..).map(|(n, t)| Point {
                t: 1000 * t,
                v: (FAR + n).into(),
            });
            points.map(|point| state.point(point)).collect()
        };
        use PointVerdict::{Emit, EmitHeldAndHold, Filter, Hold};
        assert_eq!(verdicts(deadband(0.0, 0), &[0, 1, 1, 2]), [Emit, Emit, Filter, Emit]);
        assert_eq!(verdicts(deadband(2.5, 0), &[0, 2, 3, 0]), [Emit, Filter, Emit, Emit]);
        // Steps of one, up and down again.
        assert_eq!(
            verdicts(door(0.5, 0, 0), &[0, 1, 2, 3, 2]),
            [Emit, Hold, Hold, Hold, EmitHeldAndHold]
        );
    }

    #[test]
    fn settings_are_told_in_short() {
        assert_eq!(deadband(0.5, 3000).to_string(), "deadband(threshold=0.500,max_time=3s)");
        assert_eq!(deadband(0.0, 0).to_string(), "deadband(threshold=0.000)");
        let door = door(1.25, 1500, 3_600_000).to_string();
        assert_eq!(door, "swinging_door(threshold=1.250,max_time=1h,min_time=1500ms)");
    }

    /// Kept points, including the flush. `b`: the base, `c`: the candidate, `e`: when a point was last kept.
    fn by_the_rules(threshold: f64, min_time: i64, max_time: i64, points: &[(i64, f64)]) -> Vec<(i64, f64)> {
        let mut out = Vec::new();
        let (mut b, mut c) = (None::<(i64, f64)>, None::<(i64, f64)>);
        let mut e = 0;
        let (mut lo, mut hi) = OPEN;
        let dx = |t: i64, since: i64| (t - since) as f64 / 1000.0;
        for &(t, v) in points {
            let Some((bt, bv)) = b else {
                out.push((t, v));
                (b, e) = (Some((t, v)), t);
                continue;
            };
            if max_time > 0 && t - e >= max_time {
                out.push((t, v));
                (b, e, c) = (Some((t, v)), t, None);
                (lo, hi) = OPEN;
                continue;
            }
            let violated = c.is_some_and(|(ct, cv)| {
                let s = (v - bv) / dx(t, bt);
                let outside = s < lo || s > hi || lo > hi;
                t == bt || outside || (ct > bt && (cv - (bv + s * dx(ct, bt))).abs() >= threshold)
            });
            match c {
                Some((ct, _)) if violated && min_time > 0 && ct - e < min_time => {
                    c = Some((t, v));
                    (lo, hi) = OPEN;
                }
                Some(candidate) if violated => {
                    out.push(candidate);
                    (b, e, c) = (Some(candidate), candidate.0, Some((t, v)));
                    (lo, hi) = OPEN;
                }
                _ => {
                    c = Some((t, v));
                    if t > bt {
                        hi = hi.min((v - bv + threshold) / dx(t, bt));
                        lo = lo.max((v - bv - threshold) / dx(t, bt));
                    }
                }
            }
        }
        out.extend(c);
        out
    }

    proptest! {
        /// The door against its seven rules, written down one by one.
        #[test]
        fn the_door_follows_its_rules(
            threshold in prop::sample::select(vec![0.0, 0.1, 1.0, 4.0]),
            min_time in prop::sample::select(vec![0_u64, 500, 4000]),
            max_time in prop::sample::select(vec![0_u64, 5000, 20_000]),
            steps in prop::collection::vec((1_i64..5000, -10_i8..10), 1..80),
        ) {
            let mut t = 0;
            let points: Vec<(i64, f64)> = steps.iter().map(|(dt, v)| { t += dt; (t, f64::from(*v)) }).collect();
            let found = kept(door(threshold, min_time, max_time), &points);
            prop_assert_eq!(&found, &by_the_rules(threshold, min_time as i64, max_time as i64, &points));
            prop_assert_eq!((found.first(), found.last()), (points.first(), points.last()));
        }

        /// The deadband never drops a point that is further than the threshold from the last one kept.
        #[test]
        fn what_the_deadband_leaves_out_lies_near_the_last_point(
            threshold in 0.0_f64..5.0,
            values in prop::collection::vec(-10.0_f64..10.0, 1..60),
        ) {
            let mut state = AlgorithmState::new(deadband(threshold, 0));
            let mut last = f64::NAN;
            for (t, v) in values.into_iter().enumerate() {
                match state.point(Point { t: t as i64, v: v.into() }) {
                    PointVerdict::Emit => last = v,
                    PointVerdict::Filter => prop_assert!((v - last).abs() < threshold || v == last),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
    }
}
