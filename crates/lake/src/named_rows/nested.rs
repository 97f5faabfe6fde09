//! Lists, structs and maps of a row, from JSON. Values are checked first, so that writing them cannot fail.

use std::borrow::Cow;

use super::BadRow;
use super::cell::{CellValue, text, write_hex};
use thalweg_columns::rows::column_data::ColumnData;
use thalweg_delta::schema::{ColumnType, TableColumn};
use thalweg_kit::json_tokens::{JsonError, JsonLiteral, JsonTokenizer, unescape};

/// The nesting limit here; rows have a lower limit.
const DEPTH_MAX: usize = 512;

type NestedResult<T> = std::result::Result<T, String>;

/// Resolves the escapes of a JSON string.
pub(crate) fn plain<'a>(raw: &'a [u8], is_escaped: bool) -> (Cow<'a, str>, bool) {
    if !is_escaped {
        return text(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    unescape(raw, &mut out);
    match String::from_utf8(out) {
        Ok(text) => (Cow::Owned(text), false),
        Err(error) => (Cow::Owned(String::from_utf8_lossy(error.as_bytes()).into_owned()), true),
    }
}

/// Passes the members of an object to `show` as texts.
pub(super) fn pairs(json: &str, mut show: impl FnMut(&str, &str)) -> NestedResult<()> {
    let mut tokens = JsonTokenizer::new(json.as_bytes(), DEPTH_MAX);
    members(&mut tokens, |tokens, name| {
        let mut shown = String::new();
        next(tokens, |cell| cell.write(&mut shown))?;
        show(name, &shown);
        Ok(())
    })
}

/// The number of members of an object, and the length of its longest name; `None` if it is none.
pub(super) fn extent(json: &str) -> Option<(usize, usize)> {
    if !json.starts_with('{') {
        return None;
    }
    let (mut count, mut longest) = (0, 0);
    let mut tokens = JsonTokenizer::new(json.as_bytes(), DEPTH_MAX);
    let walked = members(&mut tokens, |tokens, name| {
        count += 1;
        longest = longest.max(name.len());
        tokens.skip().map_err(|error| error.to_string())
    });
    walked.ok().map(|()| (count, longest))
}

/// Passes the members of an object to `put`, up to its first error.
pub(super) fn each_member(
    json: &str,
    mut put: impl FnMut(&str, CellValue<'_>) -> Result<(), BadRow>,
) -> Result<(), BadRow> {
    let mut tokens = JsonTokenizer::new(json.as_bytes(), DEPTH_MAX);
    let mut bad = Ok(());
    let walked = members(&mut tokens, |tokens, name| {
        let done = value(tokens, |cell, _| put(name, cell)).map_err(|error| error.to_string())?;
        done.map_err(|error| {
            bad = Err(error);
            String::new()
        })
    });
    bad.and_then(|()| walked.map_err(BadRow::line))
}

fn members(
    tokens: &mut JsonTokenizer<'_>,
    mut each: impl FnMut(&mut JsonTokenizer<'_>, &str) -> NestedResult<()>,
) -> NestedResult<()> {
    tokens.object().map_err(|error| error.to_string())?;
    let mut is_first = true;
    while tokens.more(b'}', is_first).map_err(|error| error.to_string())? {
        is_first = false;
        let name = tokens.name().map_err(|error| error.to_string())?;
        each(tokens, &plain(name.raw, name.is_escaped).0)?;
    }
    Ok(())
}

/// Passes the next value to `show`, and whether it had invalid UTF-8.
pub(crate) fn value<T>(
    tokens: &mut JsonTokenizer<'_>,
    show: impl FnOnce(CellValue<'_>, bool) -> T,
) -> std::result::Result<T, JsonError> {
    Ok(match tokens.peek() {
        b'"' => {
            let quoted = tokens.quoted()?;
            let (text, is_replaced) = plain(quoted.raw, quoted.is_escaped);
            show(CellValue::Text(&text), is_replaced)
        }
        b'{' | b'[' => {
            let rest = tokens.rest();
            tokens.skip()?;
            let len = rest.len() - tokens.rest().len();
            let (json, is_replaced) = text(rest.get(..len).unwrap_or_default());
            show(CellValue::Json(&json), is_replaced)
        }
        b'-' | b'0'..=b'9' => {
            let digits = tokens.number()?;
            show(
                CellValue::Number(std::str::from_utf8(digits).unwrap_or_default()),
                false,
            )
        }
        _ => match tokens.literal()? {
            JsonLiteral::Null => show(CellValue::Null, false),
            JsonLiteral::True => show(CellValue::Bool(true), false),
            JsonLiteral::False => show(CellValue::Bool(false), false),
        },
    })
}

/// The same with errors as texts.
fn next<T>(tokens: &mut JsonTokenizer<'_>, show: impl FnOnce(CellValue<'_>) -> T) -> NestedResult<T> {
    value(tokens, |cell, _| show(cell)).map_err(|error| error.to_string())
}

/// Checks that a value fits a column of this type.
pub(super) fn check(json: &str, kind: &ColumnType) -> NestedResult<()> {
    let mut tokens = JsonTokenizer::new(json.as_bytes(), DEPTH_MAX);
    check_next(&mut tokens, kind)
}

fn check_next(tokens: &mut JsonTokenizer<'_>, kind: &ColumnType) -> NestedResult<()> {
    if tokens.null().map_err(|error| error.to_string())? {
        return Ok(());
    }
    match kind {
        ColumnType::Array(element) => items(tokens, |tokens| check_next(tokens, element)),
        ColumnType::Struct(of) => members(tokens, |tokens, name| match member(of, name) {
            Some((_, kind)) => check_next(tokens, kind).map_err(|why| format!("{name}: {why}")),
            None => Err(format!("{name:?} is not one of its members")),
        }),
        ColumnType::TextMap => members(tokens, |tokens, _| next(tokens, |_| ())),
        kind => {
            let fits = |cell: CellValue<'_>| match kind {
                ColumnType::Long => cell.nanos().is_some(),
                ColumnType::Integer => cell.long().is_some_and(|number| i32::try_from(number).is_ok()),
                ColumnType::Double => cell.double().is_some(),
                ColumnType::Boolean => cell.boolean().is_some(),
                _ => true,
            };
            match next(tokens, |cell| fits(cell).then_some(()).ok_or_else(|| cell.shown()))? {
                Ok(()) => Ok(()),
                Err(shown) => Err(format!("{shown} is not what its column has")),
            }
        }
    }
}

fn items(
    tokens: &mut JsonTokenizer<'_>,
    mut each: impl FnMut(&mut JsonTokenizer<'_>) -> NestedResult<()>,
) -> NestedResult<()> {
    tokens.list().map_err(|error| error.to_string())?;
    let mut is_first = true;
    while tokens.more(b']', is_first).map_err(|error| error.to_string())? {
        is_first = false;
        each(tokens)?;
    }
    Ok(())
}

fn member<'a>(of: &'a [TableColumn], name: &str) -> Option<(usize, &'a ColumnType)> {
    let at = of.iter().position(|member| member.name == name)?;
    of.get(at).map(|member| (at, &member.kind))
}

/// Writes a checked value.
pub(super) fn put(json: &str, kind: &ColumnType, data: &mut ColumnData, row: usize) {
    let mut tokens = JsonTokenizer::new(json.as_bytes(), DEPTH_MAX);
    // The value was checked before.
    let _ = put_next(&mut tokens, kind, data, row);
}

fn put_next(tokens: &mut JsonTokenizer<'_>, kind: &ColumnType, data: &mut ColumnData, row: usize) -> NestedResult<()> {
    if tokens.null().map_err(|error| error.to_string())? {
        return Ok(());
    }
    match (kind, data) {
        (ColumnType::Array(element), ColumnData::Lists(lists)) => {
            let put = items(tokens, |tokens| {
                let (data, item) = lists.next_item();
                put_next(tokens, element, data, item)
            });
            lists.close(row);
            put
        }
        (ColumnType::Struct(of), ColumnData::Structs(structs)) => members(tokens, |tokens, name| {
            let found = member(of, name).and_then(|(at, kind)| Some((structs.members.get_mut(at)?, kind)));
            match found {
                Some((data, kind)) => put_next(tokens, kind, data, row),
                None => next(tokens, |_| ()),
            }
        }),
        (ColumnType::TextMap, ColumnData::Maps(map)) => {
            let put = members(tokens, |tokens, name| {
                let mut text = String::new();
                next(tokens, |cell| cell.write(&mut text))?;
                map.push(name, &text);
                Ok(())
            });
            map.close_if_any(row);
            put
        }
        (_, data) => next(tokens, |cell| match data {
            ColumnData::Longs(_) => data.push_long(row, cell.nanos().unwrap_or_default()),
            ColumnData::Integers(_) => {
                let number = cell.long().and_then(|number| i32::try_from(number).ok());
                data.push_integer(row, number.unwrap_or_default());
            }
            ColumnData::Doubles(_) => data.push_double(row, cell.double().unwrap_or_default()),
            ColumnData::Booleans(_) => data.push_boolean(row, cell.boolean().unwrap_or_default()),
            _ => {
                let mut text = String::new();
                cell.write(&mut text);
                data.push_text(row, &text);
            }
        }),
    }
}

/// An id of this many bytes, as bytes or as hexadecimal digits.
pub(super) struct HexId<'a> {
    value: CellValue<'a>,
    bytes: usize,
}

pub(super) fn id(value: CellValue<'_>, bytes: usize) -> HexId<'_> {
    HexId { value, bytes }
}

impl HexId<'_> {
    pub fn write(&self, out: &mut String) {
        match self.value {
            CellValue::Bytes(bytes) if bytes.len() == self.bytes => write_hex(bytes, out),
            other => {
                let begin = out.len();
                other.write(out);
                if let Some(written) = out.get_mut(begin..) {
                    written.make_ascii_lowercase();
                }
            }
        }
    }
}

/// Whether a text is an id of this many bytes in hexadecimal digits.
pub(super) fn is_id(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
