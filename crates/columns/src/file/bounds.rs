//! The least and the greatest value of a page or column, by which readers skip.

use parquet::data_type::{BoolType, ByteArray, DataType, DoubleType, Int32Type, Int64Type};
use parquet::file::statistics::{Statistics, ValueStatistics};

/// Longer texts are truncated.
const TEXT_BYTES_MAX: usize = 64;

/// A lower or upper bound of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextBound {
    bytes: Vec<u8>,
    is_exact: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PageBounds {
    Longs(i64, i64),
    Integers(i32, i32),
    Doubles(f64, f64),
    Booleans(bool, bool),
    Texts(TextBound, TextBound),
}

impl PageBounds {
    /// `is_text`: the values are UTF-8, and so are their bounds.
    pub fn of_texts(least: &[u8], greatest: &[u8], is_text: bool) -> PageBounds {
        match is_text {
            true => PageBounds::Texts(lower(least), upper(greatest)),
            false => PageBounds::Texts(lower_bytes(least), upper_bytes(greatest)),
        }
    }

    /// The bounds of texts that may have been truncated already.
    pub fn of_cut_texts(least: &[u8], greatest: &[u8]) -> PageBounds {
        let bound = |bytes: &[u8]| TextBound {
            bytes: bytes.to_vec(),
            // Truncation ends at a character boundary, so it may drop up to three more bytes.
            is_exact: bytes.len() <= TEXT_BYTES_MAX - 4,
        };
        PageBounds::Texts(bound(least), bound(greatest))
    }

    /// Combines two bounds of one column, which have the same type.
    pub fn and(self, other: PageBounds) -> PageBounds {
        use PageBounds::*;
        match (self, other) {
            (Longs(a, b), Longs(c, d)) => Longs(a.min(c), b.max(d)),
            (Integers(a, b), Integers(c, d)) => Integers(a.min(c), b.max(d)),
            (Doubles(a, b), Doubles(c, d)) => Doubles(a.min(c), b.max(d)),
            (Booleans(a, b), Booleans(c, d)) => Booleans(a & c, b | d),
            (Texts(a, b), Texts(c, d)) => {
                let least = if c.bytes < a.bytes { c } else { a };
                let greatest = if d.bytes > b.bytes { d } else { b };
                Texts(least, greatest)
            }
            (known, _) => known,
        }
    }

    /// Whether neither bound is below that of the previous page.
    pub fn follows(&self, before: &PageBounds) -> bool {
        use PageBounds::*;
        match (before, self) {
            (Longs(a, b), Longs(c, d)) => a <= c && b <= d,
            (Integers(a, b), Integers(c, d)) => a <= c && b <= d,
            (Doubles(a, b), Doubles(c, d)) => a <= c && b <= d,
            (Booleans(a, b), Booleans(c, d)) => a <= c && b <= d,
            (Texts(a, b), Texts(c, d)) => a.bytes <= c.bytes && b.bytes <= d.bytes,
            _ => false,
        }
    }

    /// The bounds in the encoding of the page index.
    pub fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        match self {
            PageBounds::Longs(least, greatest) => (least.to_le_bytes().into(), greatest.to_le_bytes().into()),
            PageBounds::Integers(least, greatest) => (least.to_le_bytes().into(), greatest.to_le_bytes().into()),
            PageBounds::Doubles(least, greatest) => (least.to_le_bytes().into(), greatest.to_le_bytes().into()),
            PageBounds::Booleans(least, greatest) => (vec![u8::from(*least)], vec![u8::from(*greatest)]),
            PageBounds::Texts(least, greatest) => (least.bytes.clone(), greatest.bytes.clone()),
        }
    }

    pub fn statistics(self, nulls: u64) -> Statistics {
        fn of<D: DataType>(least: D::T, greatest: D::T, nulls: u64) -> ValueStatistics<D::T> {
            ValueStatistics::new(Some(least), Some(greatest), None, Some(nulls), false)
                .with_backwards_compatible_min_max(true)
        }
        match self {
            PageBounds::Longs(least, greatest) => of::<Int64Type>(least, greatest, nulls).into(),
            PageBounds::Integers(least, greatest) => of::<Int32Type>(least, greatest, nulls).into(),
            PageBounds::Doubles(least, greatest) => of::<DoubleType>(least, greatest, nulls).into(),
            PageBounds::Booleans(least, greatest) => of::<BoolType>(least, greatest, nulls).into(),
            PageBounds::Texts(least, greatest) => {
                let (is_least_exact, is_greatest_exact) = (least.is_exact, greatest.is_exact);
                let (least, greatest) = (ByteArray::from(least.bytes), ByteArray::from(greatest.bytes));
                ValueStatistics::new(Some(least), Some(greatest), None, Some(nulls), false)
                    .with_min_is_exact(is_least_exact)
                    .with_max_is_exact(is_greatest_exact)
                    .into()
            }
        }
    }
}

/// The truncated text, which ends at a character boundary; `None` if the text is short enough.
fn cut(text: &[u8]) -> Option<&str> {
    let cut = text.get(..TEXT_BYTES_MAX).filter(|_| text.len() > TEXT_BYTES_MAX)?;
    Some(match std::str::from_utf8(cut) {
        Ok(cut) => cut,
        Err(error) => std::str::from_utf8(cut.get(..error.valid_up_to())?).ok()?,
    })
}

fn lower(text: &[u8]) -> TextBound {
    TextBound {
        bytes: cut(text).map_or(text, str::as_bytes).to_vec(),
        is_exact: text.len() <= TEXT_BYTES_MAX,
    }
}

fn upper(text: &[u8]) -> TextBound {
    let Some(cut) = cut(text) else {
        return TextBound {
            bytes: text.to_vec(),
            is_exact: true,
        };
    };
    // The least text above all texts with this prefix.
    let mut rest = cut;
    while let Some(last) = rest.chars().next_back() {
        rest = rest.get(..rest.len() - last.len_utf8()).unwrap_or_default();
        if let Some(bytes) = above(rest.as_bytes(), last) {
            return TextBound { bytes, is_exact: false };
        }
    }
    upper_beyond_greatest(text)
}

/// The bound of a text that begins with more greatest characters than bounds have: no truncated text is above it.
fn upper_beyond_greatest(text: &[u8]) -> TextBound {
    let greatest = char::MAX.encode_utf8(&mut [0; 4]).as_bytes().to_vec();
    let run = text.chunks(4).take_while(|bytes| *bytes == greatest).count() * 4;
    let (run, rest) = text.split_at(run);
    let next = rest.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
    match next.and_then(|next| above(run, next)) {
        Some(bytes) => TextBound { bytes, is_exact: false },
        None => TextBound {
            bytes: text.to_vec(),
            is_exact: true,
        },
    }
}

/// The text `before` with the character after `last`; `None` if there is none.
fn above(before: &[u8], last: char) -> Option<Vec<u8>> {
    let next = (u32::from(last) + 1..).map_while(|code| (code <= 0x10_ffff).then(|| char::from_u32(code)));
    let next = next.take(0x801).flatten().next()?;
    let mut bytes = before.to_vec();
    bytes.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
    Some(bytes)
}

/// The bounds of bytes that are no text are truncated at any byte.
fn lower_bytes(bytes: &[u8]) -> TextBound {
    TextBound {
        bytes: bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes).to_vec(),
        is_exact: bytes.len() <= TEXT_BYTES_MAX,
    }
}

fn upper_bytes(bytes: &[u8]) -> TextBound {
    let cut = bytes.get(..TEXT_BYTES_MAX).filter(|_| bytes.len() > TEXT_BYTES_MAX);
    let at = cut.and_then(|cut| cut.iter().rposition(|byte| *byte < u8::MAX));
    let Some((before, last)) = at.and_then(|at| bytes.get(..at).zip(bytes.get(at))) else {
        return TextBound {
            bytes: bytes.to_vec(),
            is_exact: true,
        };
    };
    let mut bytes = before.to_vec();
    bytes.push(last + 1);
    TextBound { bytes, is_exact: false }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ends(least: &str, greatest: &str) -> (String, String) {
        let bounds = PageBounds::of_texts(least.as_bytes(), greatest.as_bytes(), true);
        let PageBounds::Texts(least, greatest) = bounds else {
            panic!()
        };
        let text = |bound: TextBound| String::from_utf8(bound.bytes).unwrap();
        (text(least), text(greatest))
    }

    #[test]
    fn long_texts_are_cut_below_and_above() {
        let long = "b".repeat(65);
        assert_eq!(ends(&long, &long), ("b".repeat(64), "b".repeat(63) + "c"));
        let wide = format!("{}ää", "x".repeat(63));
        assert_eq!(ends(&wide, &wide), ("x".repeat(63), "x".repeat(62) + "y"));
        let last = "\u{10ffff}".repeat(20);
        assert_eq!(ends("a", &last), ("a".to_owned(), last.clone()));
        let beyond_last = format!("{last}more");
        assert_eq!(ends("a", &beyond_last).1, format!("{last}n"));
        let before_last = format!("a{last}");
        assert_eq!(ends("a", &before_last).1, "b");
        let surrogates = "\u{d7ff}".repeat(30);
        assert_eq!(ends("", &surrogates).1, "\u{d7ff}".repeat(20) + "\u{e000}");
    }

    #[test]
    fn bytes_that_are_no_text_are_cut_at_any_byte() {
        let of = |bytes: &[u8]| PageBounds::of_texts(bytes, bytes, false).bytes();
        let sketch = [&[0x0a, 0x09, 0x09, 0xfd, 0x4a][..], &[0xff; 75]].concat();
        assert_eq!(of(&sketch), (sketch[..64].to_vec(), vec![0x0a, 0x09, 0x09, 0xfd, 0x4b]));
        assert_eq!(
            of(&[0xff; 80]),
            (vec![0xff; 64], vec![0xff; 80]),
            "no shorter bytes are above"
        );
        assert_eq!(of(&[0xff, 0]), (vec![0xff, 0], vec![0xff, 0]));
    }

    proptest! {
        #[test]
        fn texts_lie_between_their_bounds(texts in prop::collection::vec("[ab]{60,70}|\\PC{0,40}|\u{10ffff}{14,20}a{0,2}", 1..8)) {
            let bounds = texts.iter().map(|text| PageBounds::of_texts(text.as_bytes(), text.as_bytes(), true));
            let PageBounds::Texts(least, greatest) = bounds.reduce(PageBounds::and).unwrap() else {
                panic!()
            };
            for text in &texts {
                prop_assert!(least.bytes.as_slice() <= text.as_bytes() && text.as_bytes() <= greatest.bytes.as_slice());
            }
            prop_assert!(std::str::from_utf8(&greatest.bytes).is_ok());
        }

        #[test]
        fn bytes_lie_between_their_bounds(all in prop::collection::vec(prop::collection::vec(250_u8.., 60..70), 1..8)) {
            let bounds = all.iter().map(|bytes| PageBounds::of_texts(bytes, bytes, false));
            let (least, greatest) = bounds.reduce(PageBounds::and).unwrap().bytes();
            for bytes in &all {
                prop_assert!(least <= *bytes && *bytes <= greatest && least.len() <= TEXT_BYTES_MAX);
            }
        }
    }
}
