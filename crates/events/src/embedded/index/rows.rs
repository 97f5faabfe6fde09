//! Lists of messages: by position for each stream, by global position for each category. Tables store a list in chunks,
//! column by column, because most columns of most chunks are constant or consecutive.

use thalweg_kit::varint;
use thalweg_log::Offset;

/// Maximum number of rows in a chunk.
pub(crate) const CHUNK: usize = 512;

/// The entry of a message in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexRow {
    /// The sort key of the list: the position in the stream, or the global position.
    pub ordinal: u64,
    pub global: u64,
    pub offset: Offset,
    /// The hash of the type.
    pub kind: u16,
    /// The hash of the category of `correlationStreamName`; 0 if there is none. Only in lists of categories, like the
    /// next field.
    pub correlation: u16,
    /// The hash that distributes streams among members, or [`NO_GROUP`].
    pub group: u64,
}

/// For streams that belong to no member. No hash is this large.
pub(crate) const NO_GROUP: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ListKind {
    Stream,
    Category,
}

const CONSTANT: u8 = 0;
const FOLLOWING: u8 = 1;
const STEPS: u8 = 2;
const PLAIN: u8 = 3;

/// Encodes sorted rows.
pub(super) fn encode(list: ListKind, rows: &[IndexRow], out: &mut Vec<u8>) {
    varint::put(out, rows.len() as u64);
    if list == ListKind::Stream {
        column(out, rows, |row| row.ordinal);
    }
    column(out, rows, |row| row.global);
    column(out, rows, |row| row.global.wrapping_sub(row.offset));
    column(out, rows, |row| u64::from(row.kind));
    if list == ListKind::Category {
        column(out, rows, |row| u64::from(row.correlation));
        column(out, rows, |row| row.group);
    }
}

/// `None` if the bytes are not a chunk.
pub(super) fn decode(list: ListKind, bytes: &[u8], out: &mut Vec<IndexRow>) -> Option<()> {
    let (count, mut rest) = varint::take(bytes)?;
    let count = usize::try_from(count).ok().filter(|count| *count <= CHUNK)?;
    out.clear();
    out.resize(count, IndexRow::default());
    if list == ListKind::Stream {
        read(&mut rest, out, |row, value| row.ordinal = value)?;
    }
    read(&mut rest, out, |row, value| row.global = value)?;
    read(&mut rest, out, |row, value| row.offset = row.global.wrapping_sub(value))?;
    read(&mut rest, out, |row, value| row.kind = value as u16)?;
    match list {
        ListKind::Stream => {}
        ListKind::Category => {
            read(&mut rest, out, |row, value| row.correlation = value as u16)?;
            read(&mut rest, out, |row, value| row.group = value)?;
            out.iter_mut().for_each(|row| row.ordinal = row.global);
        }
    }
    rest.is_empty().then_some(())
}

fn column(out: &mut Vec<u8>, rows: &[IndexRow], of: impl Fn(&IndexRow) -> u64) {
    let first = rows.first().map_or(0, &of);
    let (mut constant, mut following, mut widest) = (true, true, 0);
    let mut before = first;
    for (row, n) in rows.iter().zip(0_u64..) {
        let value = of(row);
        constant &= value == first;
        following &= value == first.wrapping_add(n);
        widest = widest.max(varint::zigzag(step(before, value)));
        before = value;
    }
    let form = match (constant, following) {
        (true, _) => CONSTANT,
        (_, true) => FOLLOWING,
        // The difference would take more space than the value.
        _ if widest >= 1 << 56 => PLAIN,
        _ => STEPS,
    };
    out.push(form);
    if form == PLAIN {
        rows.iter()
            .for_each(|row| out.extend_from_slice(&of(row).to_le_bytes()));
        return;
    }
    varint::put(out, first);
    if form == STEPS {
        let mut before = first;
        for row in rows.iter().skip(1) {
            let value = of(row);
            varint::put_signed(out, step(before, value));
            before = value;
        }
    }
}

fn read(rest: &mut &[u8], rows: &mut [IndexRow], set: impl Fn(&mut IndexRow, u64)) -> Option<()> {
    let (form, after) = rest.split_first()?;
    if *form == PLAIN {
        let (own, after) = after.split_at_checked(8 * rows.len())?;
        let values = own.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        rows.iter_mut().zip(values).for_each(|(row, value)| set(row, value));
        *rest = after;
        return Some(());
    }
    let (first, mut after) = varint::take(after)?;
    let mut value = first;
    for (n, row) in rows.iter_mut().enumerate() {
        match *form {
            CONSTANT => {}
            FOLLOWING => value = first.wrapping_add(n as u64),
            STEPS if n == 0 => {}
            STEPS => {
                let (step, following) = varint::take(after)?;
                value = value.wrapping_add_signed(varint::unzigzag(step));
                after = following;
            }
            _ => return None,
        }
        set(row, value);
    }
    *rest = after;
    Some(())
}

/// From one value to the next, in either direction.
fn step(before: u64, value: u64) -> i64 {
    value.wrapping_sub(before).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0_u64..4, any::<u64>(), Just(u64::MAX)]
    }

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            rows in proptest::collection::vec((number(), number(), number(), 0_u16..3, any::<u16>(), number()), 1..60),
            follows in any::<bool>(),
        ) {
            let rows: Vec<IndexRow> = rows.into_iter().enumerate().map(|(n, (ordinal, global, offset, kind, correlation, group))| {
                let n = n as u64;
                match follows {
                    true => IndexRow { ordinal: 7 + n, global: 100 + 3 * n, offset: 90 + 3 * n, kind: 5, correlation, group },
                    false => IndexRow { ordinal, global, offset, kind, correlation, group },
                }
            }).collect();
            for list in [ListKind::Stream, ListKind::Category] {
                let expected: Vec<IndexRow> = rows.iter().map(|row| match list {
                    ListKind::Stream => IndexRow { correlation: 0, group: 0, ..*row },
                    ListKind::Category => IndexRow { ordinal: row.global, ..*row },
                }).collect();
                let (mut bytes, mut found) = (Vec::new(), Vec::new());
                encode(list, &rows, &mut bytes);
                prop_assert_eq!(decode(list, &bytes, &mut found), Some(()));
                prop_assert_eq!(&found, &expected);
                for cut in 0..bytes.len() {
                    prop_assert_eq!(decode(list, &bytes[..cut], &mut found), None);
                }
            }
        }

        #[test]
        fn no_bytes_break_it(bytes in any::<Vec<u8>>()) {
            let mut found = Vec::new();
            let _ = decode(ListKind::Stream, &bytes, &mut found);
            let _ = decode(ListKind::Category, &bytes, &mut found);
        }
    }

    #[test]
    fn a_stream_written_one_message_after_the_other_takes_a_few_bytes() {
        let rows: Vec<IndexRow> = (0..500)
            .map(|n| IndexRow {
                ordinal: n,
                global: 1000 + n,
                offset: 999 + n,
                kind: 7,
                ..IndexRow::default()
            })
            .collect();
        let mut bytes = Vec::new();
        encode(ListKind::Stream, &rows, &mut bytes);
        assert!(bytes.len() < 16, "{} bytes", bytes.len());
    }
}
