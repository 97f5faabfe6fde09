//! Columns of numbers.

use std::ops::Range;

use super::memory_usage::MemoryUsage;

/// Numbers of rows; rows without one have zero.
#[derive(Debug, Default)]
pub struct NumberColumn<T> {
    values: Vec<T>,
    /// The validity bitmap, maintained once a row was skipped.
    present: Vec<u64>,
    nulls: usize,
}

impl<T: Copy + Default> NumberColumn<T> {
    pub fn new() -> NumberColumn<T> {
        NumberColumn::default()
    }

    /// One value for each row up to the last that has one.
    #[inline]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    #[inline]
    pub fn get(&self, row: usize) -> Option<T> {
        self.values.get(row).copied().filter(|_| self.is_present(row))
    }

    #[inline]
    pub fn is_present(&self, row: usize) -> bool {
        row < self.values.len()
            && (self.nulls == 0
                || self
                    .present
                    .get(row / 64)
                    .is_some_and(|bits| bits >> (row % 64) & 1 == 1))
    }

    /// The nulls among the rows up to the last that has a value.
    pub fn nulls(&self) -> usize {
        self.nulls
    }

    /// Appends the value of a later row, or replaces that of the last one.
    #[inline]
    pub fn push(&mut self, row: usize, value: T) {
        self.push_run(row..row + 1, value);
    }

    #[inline]
    pub fn push_run(&mut self, rows: Range<usize>, value: T) {
        let len = self.values.len();
        if rows.start < len {
            if rows.start + 1 == len && rows.end == len {
                self.values[rows.start] = value;
            }
            return;
        }
        if rows.start > len {
            self.pass_over(rows.start);
        }
        self.values.resize(rows.end, value);
        if self.nulls > 0 {
            self.mark(rows);
        }
    }

    #[cold]
    fn pass_over(&mut self, row: usize) {
        let len = self.values.len();
        if self.nulls == 0 {
            self.present.clear();
            self.mark(0..len);
        }
        self.nulls += row - len;
        self.values.resize(row, T::default());
    }

    fn mark(&mut self, rows: Range<usize>) {
        self.present.resize(rows.end.div_ceil(64), 0);
        for row in rows {
            if let Some(bits) = self.present.get_mut(row / 64) {
                *bits |= 1 << (row % 64);
            }
        }
    }

    /// Removes all rows and keeps the buffers.
    pub fn clear(&mut self) {
        self.values.clear();
        self.present.clear();
        self.nulls = 0;
    }

    pub fn space(&self) -> MemoryUsage {
        MemoryUsage::of(&self.values) + MemoryUsage::of(&self.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_passed_over_are_null_and_the_last_number_of_a_row_counts() {
        let mut column = NumberColumn::new();
        column.push(0, 7_i64);
        column.push(0, 8);
        assert_eq!((column.nulls(), column.get(0), column.get(1)), (0, Some(8), None));
        column.push_run(70..72, 9);
        column.push(200, -1);
        let there: Vec<usize> = (0..300).filter(|row| column.get(*row).is_some()).collect();
        assert_eq!(there, [0, 70, 71, 200]);
        assert_eq!(
            (column.nulls(), column.values().len(), column.get(71)),
            (197, 201, Some(9))
        );
        column.clear();
        column.push(2, 1);
        assert_eq!((column.get(0), column.get(2), column.nulls()), (None, Some(1), 2));
    }
}
