//! The types that attribute columns can have: which texts are values of a type, and the text of a value.
//!
//! Attributes come as texts, whatever they were when they were sent. A text that fits the type of its column becomes a value
//! of it, any other stays a text in the overflow map. A text fits `long` or `double` if it is a number as JSON writes one and
//! the type has exactly this number, so nothing is rounded; of a double that is the number of its shortest digits.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray as _, BooleanArray, Float64Array, Int64Array, StringViewArray, StringViewBuilder,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::error::ArrowError;

use crate::rows::double_text::write_double;
use thalweg_delta::schema::{ColumnType, TableColumn};

/// The most digits of a whole number of 64 bits.
const LONG_DIGITS_MAX: usize = 19;

/// The type of an attribute column that has no texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeType {
    Long,
    Double,
    Boolean,
}

impl AttributeType {
    /// The names of the types that a column can be declared with.
    pub const DECLARED: [&str; 4] = ["long", "double", "boolean", "string"];

    /// The column type of a name in [`AttributeType::DECLARED`].
    pub fn declared(name: &str) -> Option<ColumnType> {
        Some(match name {
            "long" => ColumnType::Long,
            "double" => ColumnType::Double,
            "boolean" => ColumnType::Boolean,
            "string" => ColumnType::String,
            _ => return None,
        })
    }

    fn of_type(kind: &ColumnType) -> Option<AttributeType> {
        match kind {
            ColumnType::Long => Some(AttributeType::Long),
            ColumnType::Double => Some(AttributeType::Double),
            ColumnType::Boolean => Some(AttributeType::Boolean),
            _ => None,
        }
    }

    /// `None`: the column has texts, or none of an attribute.
    pub fn of_column(column: &TableColumn) -> Option<AttributeType> {
        AttributeType::of_type(&column.kind).filter(|_| column.binding().is_some())
    }

    pub fn column_type(self) -> ColumnType {
        match self {
            AttributeType::Long => ColumnType::Long,
            AttributeType::Double => ColumnType::Double,
            AttributeType::Boolean => ColumnType::Boolean,
        }
    }

    /// Whether a text is a value of the type.
    pub fn fits(self, text: &[u8]) -> bool {
        match self {
            AttributeType::Long => long(text).is_some(),
            AttributeType::Double => double(text).is_some(),
            AttributeType::Boolean => boolean(text).is_some(),
        }
    }

    /// The values of texts; null where a text does not fit.
    pub fn array<'a>(self, texts: impl Iterator<Item = Option<&'a [u8]>>) -> ArrayRef {
        match self {
            AttributeType::Long => Arc::new(texts.map(|text| long(text?)).collect::<Int64Array>()),
            AttributeType::Double => Arc::new(texts.map(|text| double(text?)).collect::<Float64Array>()),
            AttributeType::Boolean => Arc::new(texts.map(|text| boolean(text?)).collect::<BooleanArray>()),
        }
    }
}

/// The whole number of a text; `None` if it is none, or one beyond 64 bits.
pub fn long(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let number = JsonNumber::of(text)?;
    match number.is_whole() {
        true => text.parse().ok(),
        false => DecimalDigits::of(&number)?.long(),
    }
}

/// The double that is exactly the number of a text.
pub fn double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    match text {
        "NaN" => return Some(f64::NAN),
        "Infinity" => return Some(f64::INFINITY),
        "-Infinity" => return Some(f64::NEG_INFINITY),
        _ => {}
    }
    let sent = JsonNumber::of(text)?;
    let value: f64 = text.parse().ok()?;
    let mut shortest = String::new();
    write_double(value, &mut shortest);
    if shortest == text {
        return Some(value);
    }
    // A number that is too large is infinite, which is no number of JSON.
    let shortest = DecimalDigits::of(&JsonNumber::of(&shortest)?)?;
    (shortest == DecimalDigits::of(&sent)?).then_some(value)
}

pub fn boolean(text: &[u8]) -> Option<bool> {
    match text {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// The texts of an array of attribute values, as they are in a column of texts.
pub fn texts(values: &dyn Array) -> Result<StringViewArray, ArrowError> {
    fn each<T>(values: impl Iterator<Item = Option<T>>, write: impl Fn(T, &mut String)) -> StringViewArray {
        let (mut texts, mut text) = (StringViewBuilder::new(), String::new());
        for value in values {
            let Some(value) = value else {
                texts.append_null();
                continue;
            };
            text.clear();
            write(value, &mut text);
            texts.append_value(&text);
        }
        texts.finish()
    }
    Ok(match values.data_type() {
        DataType::Float64 => each(values.as_primitive::<Float64Type>().iter(), write_double),
        DataType::Boolean => each(values.as_boolean().iter(), |value, out| {
            out.push_str(if value { "true" } else { "false" });
        }),
        DataType::Int64 => each(values.as_primitive::<Int64Type>().iter(), |value, out| {
            out.push_str(&value.to_string());
        }),
        _ => cast(values, &DataType::Utf8View)?.as_string_view().clone(),
    })
}

/// A column of attribute values as one of another type: values become texts, and texts that fit become values. Arrays of any
/// other kind stay as they are.
pub fn as_type(values: ArrayRef, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    let wanted = match kind {
        DataType::Int64 => Some(AttributeType::Long),
        DataType::Float64 => Some(AttributeType::Double),
        DataType::Boolean => Some(AttributeType::Boolean),
        DataType::Utf8 => None,
        _ => return Ok(values),
    };
    let has_values = matches!(
        values.data_type(),
        DataType::Int64 | DataType::Float64 | DataType::Boolean
    );
    if values.data_type() == kind || (wanted.is_none() && !has_values) {
        return Ok(values);
    }
    let texts = texts(&values)?;
    Ok(match wanted {
        Some(wanted) => wanted.array(texts.iter().map(|text| text.map(str::as_bytes))),
        None => Arc::new(texts),
    })
}

/// The parts of a number as JSON writes it.
struct JsonNumber<'a> {
    is_negative: bool,
    whole: &'a str,
    fraction: Option<&'a str>,
    exponent: Option<&'a str>,
}

impl JsonNumber<'_> {
    fn of(text: &str) -> Option<JsonNumber<'_>> {
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let unsigned = text.strip_prefix('-');
        let is_negative = unsigned.is_some();
        let (mantissa, exponent) = match unsigned.unwrap_or(text).split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned.unwrap_or(text), None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let has_zeros = whole.len() > 1 && whole.starts_with('0');
        let is_exponent = |part: &str| is_digits(part.strip_prefix(['+', '-']).unwrap_or(part));
        let is_number =
            is_digits(whole) && !has_zeros && fraction.is_none_or(is_digits) && exponent.is_none_or(is_exponent);
        is_number.then_some(JsonNumber {
            is_negative,
            whole,
            fraction,
            exponent,
        })
    }

    fn is_whole(&self) -> bool {
        self.fraction.is_none() && self.exponent.is_none()
    }
}

/// A decimal number: its digits without zeros at either end, times a power of ten. Zero has no digits.
#[derive(Debug, PartialEq, Eq)]
struct DecimalDigits {
    is_negative: bool,
    digits: String,
    exponent: i64,
}

impl DecimalDigits {
    /// `None` if the exponent is beyond all types.
    fn of(number: &JsonNumber<'_>) -> Option<DecimalDigits> {
        let fraction = number.fraction.unwrap_or_default();
        let exponent: i64 = number.exponent.map_or(Ok(0), str::parse).ok()?;
        let all = format!("{}{fraction}", number.whole);
        let without_end = all.trim_end_matches('0');
        let dropped = i64::try_from(all.len() - without_end.len()).ok()?;
        let digits = without_end.trim_start_matches('0').to_owned();
        let exponent = exponent
            .checked_sub(i64::try_from(fraction.len()).ok()?)?
            .checked_add(dropped)?;
        Some(DecimalDigits {
            is_negative: number.is_negative,
            exponent: if digits.is_empty() { 0 } else { exponent },
            digits,
        })
    }

    /// `None` if it has a fraction, or is beyond 64 bits.
    fn long(&self) -> Option<i64> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let zeros = usize::try_from(self.exponent).ok()?;
        if self.digits.len().checked_add(zeros)? > LONG_DIGITS_MAX {
            return None;
        }
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}{}{}", self.digits, "0".repeat(zeros)).parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The values of a text in each type, as texts.
    fn of(text: &str) -> [Option<String>; 3] {
        let bytes = text.as_bytes();
        let in_text = |array: ArrayRef| texts(&array).unwrap().iter().next().flatten().map(str::to_owned);
        [AttributeType::Long, AttributeType::Double, AttributeType::Boolean].map(|kind| {
            let value = in_text(kind.array(std::iter::once(Some(bytes))));
            assert_eq!(kind.fits(bytes), value.is_some(), "{text}");
            value
        })
    }

    #[test]
    fn numbers_fit_if_the_type_has_exactly_this_number() {
        for (text, long, double) in [
            ("200", Some("200"), Some("200")),
            ("-7", Some("-7"), Some("-7")),
            ("0", Some("0"), Some("0")),
            ("-0", Some("0"), Some("-0")),
            ("0.0", Some("0"), Some("0")),
            ("0e5", Some("0"), Some("0")),
            ("200.0", Some("200"), Some("200")),
            ("12.30", None, Some("12.3")),
            ("1.5e1", Some("15"), Some("15")),
            ("1E+3", Some("1000"), Some("1000")),
            ("1e-7", None, Some("1e-7")),
            ("0.1", None, Some("0.1")),
            ("9007199254740992", Some("9007199254740992"), Some("9007199254740992")),
            ("9007199254740993", Some("9007199254740993"), None),
            ("1152921504606846976", Some("1152921504606846976"), None),
            ("100000000000000000000", None, Some("100000000000000000000")),
            ("9223372036854775807", Some("9223372036854775807"), None),
            ("-9223372036854775808", Some("-9223372036854775808"), None),
            ("9223372036854775808", None, None),
            ("92233720368547758e2", Some("9223372036854775800"), None),
            ("1e18", Some("1000000000000000000"), Some("1000000000000000000")),
            ("1e19", None, Some("10000000000000000000")),
            ("1.7976931348623157e308", None, Some("1.7976931348623157e+308")),
            ("5e-324", None, Some("5e-324")),
            ("NaN", None, Some("NaN")),
            ("Infinity", None, Some("Infinity")),
            ("-Infinity", None, Some("-Infinity")),
        ] {
            let expected = [long, double, None].map(|text| text.map(str::to_owned));
            assert_eq!(of(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_number_of_json_or_none_of_the_type_fits_nowhere() {
        for text in [
            "",
            " 1",
            "1 ",
            "+1",
            "007",
            "1_000",
            "1,5",
            ".5",
            "5.",
            "-",
            "--1",
            "0x10",
            "1e",
            "1e+",
            "e5",
            "1e400",
            "-1e400",
            "1e-400",
            "0.10000000000000000555",
            "1e99999999999999999999",
            "inf",
            "nan",
            "-NaN",
            "TRUE",
            "yes",
            "٣",
            "1\0",
            "123456789012345678901",
        ] {
            assert_eq!(of(text), [None, None, None], "{text}");
        }
        assert_eq!((boolean(b"true"), boolean(b"false")), (Some(true), Some(false)));
        let not_utf8 = [b'1', 0xff];
        assert_eq!((long(&not_utf8), double(&not_utf8)), (None, None));
    }

    #[test]
    fn columns_of_another_type_are_converted_and_others_stay() {
        let sent: ArrayRef = Arc::new(StringViewArray::from(vec![Some("7"), Some("x"), None, Some("true")]));
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for sent in [sent.clone(), cast(&sent, &dictionary).unwrap()] {
            let longs = as_type(sent.clone(), &DataType::Int64).unwrap();
            let found: Vec<Option<i64>> = longs.as_primitive::<Int64Type>().iter().collect();
            assert_eq!(found, [Some(7), None, None, None]);
            let truths = as_type(sent.clone(), &DataType::Boolean).unwrap();
            let found: Vec<Option<bool>> = truths.as_boolean().iter().collect();
            assert_eq!(found, [None, None, None, Some(true)]);
            assert_eq!(
                as_type(sent.clone(), &DataType::Utf8).unwrap().data_type(),
                sent.data_type()
            );
        }
        let doubles: ArrayRef = Arc::new(Float64Array::from(vec![Some(200.0), None, Some(2.5)]));
        let back = as_type(doubles.clone(), &DataType::Utf8).unwrap();
        let found: Vec<Option<&str>> = back.as_string_view().iter().collect();
        assert_eq!(found, [Some("200"), None, Some("2.5")]);
        let longs = as_type(doubles.clone(), &DataType::Int64).unwrap();
        assert_eq!(
            longs.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
            [Some(200), None, None]
        );
        assert_eq!(&as_type(doubles.clone(), &DataType::Binary).unwrap(), &doubles);
    }

    #[test]
    fn a_number_of_very_many_digits_is_read_once() {
        let zeros = "0".repeat(1 << 20);
        assert_eq!(
            of(&format!("1.{zeros}")),
            [Some("1".to_owned()), Some("1".to_owned()), None]
        );
        assert_eq!(of(&format!("1{zeros}")), [None, None, None]);
        assert_eq!(of(&format!("1.{zeros}1")), [None, None, None]);
    }

    proptest! {
        #[test]
        fn values_come_back_from_their_texts(number: i64, bits: u64) {
            let value = f64::from_bits(bits);
            let mut text = String::new();
            write_double(value, &mut text);
            let read = double(text.as_bytes()).unwrap();
            prop_assert!(read.to_bits() == value.to_bits() || (read.is_nan() && value.is_nan()), "{text}");
            let text = number.to_string();
            prop_assert_eq!(long(text.as_bytes()), Some(number));
            // As a double it is there only if that is the same number.
            if let Some(read) = double(text.as_bytes()) {
                let mut shortest = String::new();
                write_double(read, &mut shortest);
                prop_assert_eq!(shortest, text);
            }
        }

        /// Whole numbers up to 2^53 are doubles.
        #[test]
        fn small_whole_numbers_fit_doubles(number in -(1_i64 << 53)..=1 << 53) {
            prop_assert_eq!(double(number.to_string().as_bytes()), Some(number as f64));
        }

        #[test]
        fn other_spellings_are_the_same_number(number in -1_000_000_i64..1_000_000, scale in 0_u32..6, zeros in 0_usize..4) {
            let divisor = 10_i64.pow(scale);
            let plain = number as f64 / divisor as f64;
            let spelled = format!("{number}{}e-{}", "0".repeat(zeros), scale as usize + zeros);
            if number != 0 {
                prop_assert_eq!(double(spelled.as_bytes()), Some(plain));
                prop_assert_eq!(long(spelled.as_bytes()), (number % divisor == 0).then_some(number / divisor));
            }
        }
    }
}
