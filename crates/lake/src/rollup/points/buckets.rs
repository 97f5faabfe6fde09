//! The buckets of a window: of all its points together, as long as they fit each other.

use super::scaled::Scaled;

#[derive(Debug, Default)]
pub(super) struct Buckets {
    state: State,
    bounds: Vec<f64>,
    counts: Vec<i64>,
    scaled: Scaled,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum State {
    /// No point has buckets.
    #[default]
    None,
    /// All have these bounds.
    Explicit,
    Exponential,
    /// They do not fit each other.
    Mixed,
}

impl Buckets {
    pub fn clear(&mut self) {
        self.state = State::None;
        self.bounds.clear();
        self.counts.clear();
        self.scaled.clear();
    }

    pub fn mix(&mut self) {
        self.state = State::Mixed;
    }

    pub fn add_explicit(&mut self, bounds: &[f64], counts: &[i64]) {
        match self.state {
            State::None => {
                self.bounds.extend_from_slice(bounds);
                self.counts.extend_from_slice(counts);
                self.state = State::Explicit;
            }
            State::Explicit if self.bounds == bounds && self.counts.len() == counts.len() => {
                for (sum, count) in self.counts.iter_mut().zip(counts) {
                    *sum = sum.saturating_add(*count);
                }
            }
            _ => self.mix(),
        }
    }

    pub fn add_scaled(&mut self, buckets: &Scaled) {
        match self.state {
            State::None | State::Exponential if buckets.has_columns() => {
                self.scaled.add(buckets);
                self.state = State::Exponential;
            }
            _ => self.mix(),
        }
    }

    /// No more are added.
    pub fn close(&mut self) {
        if self.state == State::Exponential {
            self.scaled.put_columns(&mut self.bounds, &mut self.counts);
        }
    }

    /// Once it is closed: bounds, and one more count.
    pub fn columns(&self) -> Option<(&[f64], &[i64])> {
        match self.state {
            State::Explicit | State::Exponential => Some((&self.bounds, &self.counts)),
            State::None | State::Mixed => None,
        }
    }
}
