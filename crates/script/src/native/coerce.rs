//! JavaScript's conversions between values, and comparisons.

use std::cmp::Ordering;

use thalweg_record::Text;

use super::heap::{EvalResult, Heap, HeapObject, Js, ObjectRef, bail};
use super::{date, number};

/// `String(value)`.
pub(super) fn text(heap: &mut Heap<'_>, value: &Js) -> EvalResult<Text> {
    Ok(match value {
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined => Text::new_static("undefined"),
        Js::Null => Text::new_static("null"),
        Js::Bool(true) => Text::new_static("true"),
        Js::Bool(false) => Text::new_static("false"),
        Js::Number(n) => number::text(*n),
        Js::Text(text) => text.clone(),
        Js::Object(place) => object_text(heap, *place, 0)?,
    })
}

/// Appends `String(value)` to a text.
pub(super) fn push_text(heap: &mut Heap<'_>, value: &Js, out: &mut String) -> EvalResult<()> {
    match value {
        Js::Text(text) => out.push_str(text),
        other => out.push_str(&text(heap, other)?),
    }
    Ok(())
}

const NESTED_MAX: usize = 32;

/// An object as a text: the elements of an array; for others the result of `Object.prototype.toString`.
fn object_text(heap: &mut Heap<'_>, place: ObjectRef, depth: usize) -> EvalResult<Text> {
    if depth > NESTED_MAX {
        return bail("deeply nested arrays");
    }
    if place == ObjectRef::META {
        for name in ["toString", "valueOf"] {
            if heap.has_own(place, name)? {
                return bail("an object with a toString of its own");
            }
        }
        return Ok(Text::new_static("[object Object]"));
    }
    let elements = match heap.object(place)? {
        HeapObject::Array(elements) => elements.clone(),
        HeapObject::Plain(members) => {
            return match members.iter().any(|(name, _)| name == "toString" || name == "valueOf") {
                true => bail("an object with a toString of its own"),
                false => Ok(Text::new_static("[object Object]")),
            };
        }
        _ => return bail("the text of a special object"),
    };
    joined(heap, &elements, ",", depth)
}

/// `elements.join(separator)`.
pub(super) fn joined(heap: &mut Heap<'_>, elements: &[Js], separator: &str, depth: usize) -> EvalResult<Text> {
    let mut out = String::new();
    for (i, element) in elements.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        match element {
            Js::Undefined | Js::Null => {}
            Js::Object(place) => out.push_str(&object_text(heap, *place, depth + 1)?),
            other => push_text(heap, other, &mut out)?,
        }
        if out.len() > 1 << 20 {
            return bail("it creates a lot of data");
        }
    }
    heap.spend(out.len())?;
    Ok(out.into())
}

/// `Number(value)`.
pub(super) fn number(heap: &mut Heap<'_>, value: &Js) -> EvalResult<f64> {
    Ok(match value {
        Js::Number(n) => *n,
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined => f64::NAN,
        Js::Null => 0.0,
        Js::Bool(truth) => f64::from(u8::from(*truth)),
        Js::Text(text) => return of_text(text),
        Js::Object(place) => match heap.object(*place)? {
            HeapObject::Date(ms) => *ms,
            _ => return of_text(&object_text(heap, *place, 0)?),
        },
    })
}

fn of_text(text: &str) -> EvalResult<f64> {
    number::of_text(text).map_or_else(|| bail("many digits of another radix"), Ok)
}

/// The value as `+` and comparisons use it: objects become texts.
fn primitive(heap: &mut Heap<'_>, value: &Js, wants_number: bool) -> EvalResult<Js> {
    match value {
        Js::Object(place) => match heap.object(*place)? {
            HeapObject::Date(ms) if wants_number => Ok(Js::Number(*ms)),
            HeapObject::Date(_) => bail("the text of a date in the time zone of this machine"),
            _ => object_text(heap, *place, 0).map(Js::Text),
        },
        Js::Empty => bail("a variable before its declaration"),
        other => Ok(other.clone()),
    }
}

/// `a + b`.
pub(super) fn add(heap: &mut Heap<'_>, a: &Js, b: &Js) -> EvalResult<Js> {
    match (a, b) {
        (Js::Number(a), Js::Number(b)) => return Ok(Js::Number(a + b)),
        (Js::Text(a), Js::Text(b)) => return concatenated(heap, a, b),
        _ => {}
    }
    let (a, b) = (primitive(heap, a, false)?, primitive(heap, b, false)?);
    if matches!(a, Js::Text(_)) || matches!(b, Js::Text(_)) {
        let (a, b) = (text(heap, &a)?, text(heap, &b)?);
        return concatenated(heap, &a, &b);
    }
    Ok(Js::Number(number(heap, &a)? + number(heap, &b)?))
}

fn concatenated(heap: &mut Heap<'_>, a: &Text, b: &Text) -> EvalResult<Js> {
    if a.is_empty() {
        return Ok(Js::Text(b.clone()));
    }
    if b.is_empty() {
        return Ok(Js::Text(a.clone()));
    }
    heap.spend(a.len() + b.len())?;
    let mut builder = smol_str::SmolStrBuilder::new();
    builder.push_str(a);
    builder.push_str(b);
    Ok(Js::Text(builder.finish()))
}

/// `a === b`.
pub(super) fn strictly_equal(a: &Js, b: &Js) -> EvalResult<bool> {
    Ok(match (a, b) {
        (Js::Empty, _) | (_, Js::Empty) => return bail("a variable before its declaration"),
        (Js::Undefined, Js::Undefined) | (Js::Null, Js::Null) => true,
        (Js::Bool(a), Js::Bool(b)) => a == b,
        (Js::Number(a), Js::Number(b)) => a == b,
        (Js::Text(a), Js::Text(b)) => a == b,
        (Js::Object(a), Js::Object(b)) => a == b,
        _ => false,
    })
}

/// `a == b`.
pub(super) fn loosely_equal(heap: &mut Heap<'_>, a: &Js, b: &Js) -> EvalResult<bool> {
    Ok(match (a, b) {
        (Js::Undefined | Js::Null, Js::Undefined | Js::Null) => true,
        (Js::Undefined | Js::Null, Js::Empty) | (Js::Empty, _) => return bail("a variable before its declaration"),
        (Js::Undefined | Js::Null, _) | (_, Js::Undefined | Js::Null) => false,
        (Js::Number(_), Js::Number(_))
        | (Js::Text(_), Js::Text(_))
        | (Js::Bool(_), Js::Bool(_))
        | (Js::Object(_), Js::Object(_)) => strictly_equal(a, b)?,
        (Js::Object(_), _) => {
            let a = primitive(heap, a, false)?;
            loosely_equal(heap, &a, b)?
        }
        (_, Js::Object(_)) => {
            let b = primitive(heap, b, false)?;
            loosely_equal(heap, a, &b)?
        }
        _ => number(heap, a)? == number(heap, b)?,
    })
}

/// Compares `a` to `b`; `None` if one is not a number.
pub(super) fn compared(heap: &mut Heap<'_>, a: &Js, b: &Js) -> EvalResult<Option<Ordering>> {
    if let (Js::Number(a), Js::Number(b)) = (a, b) {
        return Ok(a.partial_cmp(b));
    }
    let (a, b) = (primitive(heap, a, true)?, primitive(heap, b, true)?);
    if let (Js::Text(a), Js::Text(b)) = (&a, &b) {
        return Ok(Some(by_units(a, b)));
    }
    Ok(number(heap, &a)?.partial_cmp(&number(heap, &b)?))
}

/// Orders texts by their UTF-16 units.
pub(super) fn by_units(a: &str, b: &str) -> Ordering {
    // The order of units differs from that of code points only beyond U+E000.
    let is_far = |text: &str| text.bytes().any(|b| b >= 0xee);
    if is_far(a) || is_far(b) {
        return a.encode_utf16().cmp(b.encode_utf16());
    }
    a.cmp(b)
}

/// `typeof value`.
pub(super) fn type_name(value: &Js) -> EvalResult<&'static str> {
    Ok(match value {
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined => "undefined",
        Js::Null | Js::Object(_) => "object",
        Js::Bool(_) => "boolean",
        Js::Number(_) => "number",
        Js::Text(_) => "string",
    })
}

/// The text of a value that is left in `msg.meta`. Excessive depth bails out, so that QuickJS reports it.
pub(super) fn meta_text(heap: &mut Heap<'_>, value: &Js, out: &mut String, depth: usize) -> EvalResult<()> {
    if depth > NESTED_MAX {
        return bail("deeply nested data");
    }
    if out.len() > 1 << 20 {
        return bail("it creates a lot of data");
    }
    match value {
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined | Js::Null => out.push_str("<nil>"),
        Js::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Js::Number(n) => out.push_str(&crate::view::number_text(*n)),
        Js::Text(text) => out.push_str(text),
        Js::Object(place) if *place == ObjectRef::META => members_text(heap, *place, out, depth)?,
        Js::Object(place) => match heap.object(*place)? {
            HeapObject::Array(elements) => {
                let elements = elements.clone();
                out.push('[');
                for (i, element) in elements.iter().enumerate() {
                    if i > 0 {
                        out.push(' ');
                    }
                    meta_text(heap, element, out, depth + 1)?;
                }
                out.push(']');
            }
            HeapObject::Plain(_) => members_text(heap, *place, out, depth)?,
            HeapObject::Date(ms) => out.push_str(&date::iso(*ms)?),
            _ => return bail("the text of a special object"),
        },
    }
    Ok(())
}

fn members_text(heap: &mut Heap<'_>, place: ObjectRef, out: &mut String, depth: usize) -> EvalResult<()> {
    let mut members = heap.entries(place)?;
    members.sort_by(|a, b| a.0.cmp(&b.0));
    out.push_str("map[");
    for (i, (name, member)) in members.iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        out.push_str(name);
        out.push(':');
        meta_text(heap, member, out, depth + 1)?;
    }
    out.push(']');
    Ok(())
}

/// The arguments of a console call as one line.
pub(super) fn console_text(heap: &mut Heap<'_>, arguments: &[Js]) -> EvalResult<String> {
    let mut out = String::new();
    for (i, argument) in arguments.iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        console_value(heap, argument, &mut out, 0)?;
    }
    // A single text may have exceeded the limit that is checked before each value.
    if out.len() > CONSOLE_MAX {
        return bail("a long line for the console");
    }
    Ok(out)
}

/// Longer lines are left to QuickJS, which truncates them at twice this length.
const CONSOLE_MAX: usize = 32 << 10;

fn console_value(heap: &mut Heap<'_>, value: &Js, out: &mut String, depth: usize) -> EvalResult<()> {
    if depth > NESTED_MAX || out.len() > CONSOLE_MAX {
        return bail("a long line for the console");
    }
    match value {
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined | Js::Null => out.push_str("null"),
        Js::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Js::Number(n) => out.push_str(&crate::view::console_number(*n)),
        Js::Text(text) => crate::view::quote(text, out),
        Js::Object(place) => {
            match heap.seen(*place) {
                Some(HeapObject::Date(ms)) => {
                    out.push_str(&date::iso(*ms)?);
                    return Ok(());
                }
                Some(HeapObject::Regex(_)) => return bail("the text of a special object"),
                _ => {}
            }
            if heap.is_array(*place) {
                let elements = heap.elements(*place)?.cloned().unwrap_or_default();
                if elements.is_empty() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push_str("[ ");
                for (i, element) in elements.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    console_value(heap, element, out, depth + 1)?;
                }
                out.push_str(" ]");
                return Ok(());
            }
            let mut members = heap.entries(*place)?;
            members.sort_by(|a, b| a.0.cmp(&b.0));
            if members.is_empty() {
                out.push_str("{}");
                return Ok(());
            }
            out.push_str("{ ");
            for (i, (name, member)) in members.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                if crate::view::is_identifier(name) {
                    out.push_str(name);
                } else {
                    crate::view::quote(name, out);
                }
                out.push_str(": ");
                console_value(heap, member, out, depth + 1)?;
            }
            out.push_str(" }");
        }
    }
    Ok(())
}
