//! The sort order of rows in a file: by the sort columns of the table, nulls first. The sort is stable.

use thalweg_columns::file::FileColumn;
use thalweg_columns::rows::text::NULL;

/// More sort columns than any table has.
const COLUMNS_MAX: usize = 4;

/// The row indexes in sort order. Columns of unsortable types compare as equal.
pub(super) fn order(rows: usize, by: &[&FileColumn<'_>]) -> Vec<u32> {
    match by.len() {
        0 => (0..rows as u32).collect(),
        1 => sorted::<1>(rows, by),
        2 => sorted::<2>(rows, by),
        3 => sorted::<3>(rows, by),
        _ => sorted::<COLUMNS_MAX>(rows, by),
    }
}

fn sorted<const N: usize>(rows: usize, by: &[&FileColumn<'_>]) -> Vec<u32> {
    let mut keys: Vec<([u64; N], u32)> = (0..rows as u32).map(|row| ([0; N], row)).collect();
    for (at, column) in by.iter().enumerate().take(N) {
        fill(&mut keys, at, column);
    }
    // Rows mostly arrive in order.
    if !keys.is_sorted() {
        keys.sort();
    }
    keys.into_iter().map(|(_, row)| row).collect()
}

/// Fills in order-preserving numbers of a column's values; zero is null.
fn fill<const N: usize>(keys: &mut [([u64; N], u32)], at: usize, column: &FileColumn<'_>) {
    let of_long = |value: i64| (value as u64 ^ 1 << 63).max(1);
    match column {
        FileColumn::Longs { values, present, .. } => {
            for ((key, row), value) in keys.iter_mut().zip(values) {
                let is_present = present.as_ref().is_none_or(|present| present.value(*row as usize));
                key[at] = if is_present { of_long(*value) } else { 0 };
            }
        }
        FileColumn::Dictionary { texts, ids } => {
            let mut by_text: Vec<u32> = (0..texts.len() as u32).collect();
            by_text.sort_unstable_by_key(|id| texts[*id as usize]);
            let mut ranks = vec![0_u64; texts.len()];
            for (rank, id) in (1..).zip(by_text) {
                ranks[id as usize] = rank;
            }
            for ((key, _), id) in keys.iter_mut().zip(ids) {
                key[at] = if *id == NULL { 0 } else { ranks[*id as usize] };
            }
        }
        FileColumn::Plain(rows) => {
            // A prefix decides most comparisons.
            let head = |text: &[u8]| {
                let mut head = [0; 16];
                let len = text.len().min(head.len());
                head[..len].copy_from_slice(&text[..len]);
                u128::from_be_bytes(head)
            };
            let present = rows
                .iter()
                .zip(0_u32..)
                .filter_map(|(text, row)| text.map(|text| (head(text), text, row)));
            let mut by_text: Vec<(u128, &[u8], u32)> = present.collect();
            by_text.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.cmp(b.1)));
            let (mut rank, mut last) = (0, None);
            for (_, text, row) in by_text {
                if last != Some(text) {
                    rank += 1;
                    last = Some(text);
                }
                keys[row as usize].0[at] = rank;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_value_are_first_and_equal_ones_stay() {
        let texts: [&[u8]; 3] = [b"b", b"a", b"0123456789abcdef-2"];
        let ids = vec![0, 1, NULL, 1, 2, 0];
        let plain: Vec<Option<&[u8]>> = ids.iter().map(|id| texts.get(*id as usize).copied()).collect();
        let times = FileColumn::Longs {
            values: vec![5, i64::MAX, 0, -7, 0, 4],
            present: None,
            is_near: true,
        };
        let dictionary = FileColumn::Dictionary {
            texts: texts.to_vec(),
            ids,
        };
        for service in [dictionary, FileColumn::Plain(plain)] {
            assert_eq!(order(6, &[&service, &times]), [2, 4, 3, 1, 5, 0]);
            assert_eq!(order(6, &[&service]), [2, 4, 1, 3, 0, 5]);
            assert_eq!(order(6, &[&times, &FileColumn::Nothing, &service]), [3, 2, 4, 5, 0, 1]);
        }
        let long: [&[u8]; 2] = [b"0123456789abcdef-2", b"0123456789abcdef-1"];
        assert_eq!(order(2, &[&FileColumn::Plain(long.map(Some).to_vec())]), [1, 0]);
    }
}
