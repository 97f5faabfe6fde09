//! The combined buckets of all points of a window, as long as they are compatible.

use super::exponential_buckets::ExponentialBuckets;

#[derive(Debug, Default)]
pub(super) struct WindowBuckets {
    state: WindowBucketLayout,
    bounds: Vec<f64>,
    counts: Vec<i64>,
    scaled: ExponentialBuckets,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum WindowBucketLayout {
    /// No point has buckets.
    #[default]
    None,
    /// All points have these bounds.
    Explicit,
    Exponential,
    /// The points' buckets are incompatible.
    Mixed,
}

impl WindowBuckets {
    pub fn clear(&mut self) {
        self.state = WindowBucketLayout::None;
        self.bounds.clear();
        self.counts.clear();
        self.scaled.clear();
    }

    pub fn mix(&mut self) {
        self.state = WindowBucketLayout::Mixed;
    }

    pub fn add_explicit(&mut self, bounds: &[f64], counts: &[i64]) {
        match self.state {
            WindowBucketLayout::None => {
                self.bounds.extend_from_slice(bounds);
                self.counts.extend_from_slice(counts);
                self.state = WindowBucketLayout::Explicit;
            }
            WindowBucketLayout::Explicit if self.bounds == bounds && self.counts.len() == counts.len() => {
                for (sum, count) in self.counts.iter_mut().zip(counts) {
                    *sum = sum.saturating_add(*count);
                }
            }
            _ => self.mix(),
        }
    }

    pub fn add_scaled(&mut self, buckets: &ExponentialBuckets) {
        match self.state {
            WindowBucketLayout::None | WindowBucketLayout::Exponential if buckets.has_columns() => {
                self.scaled.add(buckets);
                self.state = WindowBucketLayout::Exponential;
            }
            _ => self.mix(),
        }
    }

    /// Called when no more buckets follow.
    pub fn close(&mut self) {
        if self.state == WindowBucketLayout::Exponential {
            self.scaled.put_columns(&mut self.bounds, &mut self.counts);
        }
    }

    /// The bounds, and counts with one element more. Valid after `close`.
    pub fn columns(&self) -> Option<(&[f64], &[i64])> {
        match self.state {
            WindowBucketLayout::Explicit | WindowBucketLayout::Exponential => Some((&self.bounds, &self.counts)),
            WindowBucketLayout::None | WindowBucketLayout::Mixed => None,
        }
    }
}
