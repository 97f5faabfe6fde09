//! `JSON.stringify` and `JSON.parse`.

use thalweg_record::{Text, Value, json};

use super::heap::{EvalResult, Heap, HeapObject, Js, MEMBERS_MAX, ObjectRef, bail};
use super::{coerce, date, number};

const DEPTH_MAX: usize = 64;

/// `JSON.stringify(value, null, indent)`.
pub(super) fn stringify(heap: &mut Heap<'_>, value: &Js, indent: &str) -> EvalResult<Js> {
    let mut out = String::new();
    match write(heap, value, indent, 0, &mut out)? {
        true => heap.add_text(out),
        false => Ok(Js::Undefined),
    }
}

/// The indent of each level from the third argument of `JSON.stringify`.
pub(super) fn indent(value: &Js) -> EvalResult<String> {
    Ok(match value {
        Js::Number(n) => " ".repeat(number::to_integer(*n).clamp(0.0, 10.0) as usize),
        Js::Text(text) if text.is_ascii() => text.chars().take(10).collect(),
        Js::Undefined | Js::Null | Js::Bool(_) => String::new(),
        _ => return bail("an unusual indent"),
    })
}

/// Writes a value; `false` if it has no JSON form.
fn write(heap: &mut Heap<'_>, value: &Js, indent: &str, depth: usize, out: &mut String) -> EvalResult<bool> {
    if depth > DEPTH_MAX || out.len() > 1 << 20 {
        return bail("it creates a lot of data");
    }
    match value {
        Js::Empty => return bail("a variable before its declaration"),
        Js::Undefined => return Ok(false),
        Js::Null => out.push_str("null"),
        Js::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Js::Number(n) if n.is_finite() => out.push_str(&number::text(*n)),
        Js::Number(_) => out.push_str("null"),
        Js::Text(text) => json::write_js_string(text, out),
        Js::Object(place) => match heap.seen(*place) {
            Some(HeapObject::Date(ms)) => {
                out.push('"');
                out.push_str(&date::iso(*ms)?);
                out.push('"');
            }
            Some(HeapObject::Regex(_)) => return bail("the text of a special object"),
            _ if heap.is_array(*place) => write_array(heap, *place, indent, depth, out)?,
            _ => write_object(heap, *place, indent, depth, out)?,
        },
    }
    Ok(true)
}

fn write_array(heap: &mut Heap<'_>, place: ObjectRef, indent: &str, depth: usize, out: &mut String) -> EvalResult<()> {
    let elements = heap.elements(place)?.cloned().unwrap_or_default();
    if elements.is_empty() {
        out.push_str("[]");
        return Ok(());
    }
    out.push('[');
    for (i, element) in elements.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        line(indent, depth + 1, out);
        if !write(heap, element, indent, depth + 1, out)? {
            out.push_str("null");
        }
    }
    line(indent, depth, out);
    out.push(']');
    Ok(())
}

fn write_object(heap: &mut Heap<'_>, place: ObjectRef, indent: &str, depth: usize, out: &mut String) -> EvalResult<()> {
    let members = heap.entries(place)?;
    if members.iter().any(|(name, _)| name == "toJSON") {
        return bail("an object with a toJSON of its own");
    }
    out.push('{');
    let mut is_first = true;
    for (name, member) in &members {
        let before = out.len();
        if !is_first {
            out.push(',');
        }
        line(indent, depth + 1, out);
        json::write_js_string(name, out);
        out.push(':');
        if !indent.is_empty() {
            out.push(' ');
        }
        match write(heap, member, indent, depth + 1, out)? {
            true => is_first = false,
            false => out.truncate(before),
        }
    }
    if !is_first {
        line(indent, depth, out);
    }
    out.push('}');
    Ok(())
}

fn line(indent: &str, depth: usize, out: &mut String) {
    if !indent.is_empty() {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

/// `JSON.parse(text)`. Invalid JSON throws, so it bails out.
pub(super) fn parse(heap: &mut Heap<'_>, value: &Js) -> EvalResult<Js> {
    let text = coerce::text(heap, value)?;
    // JSON can contain an unpaired surrogate, and `__proto__` as an ordinary member.
    if text.contains("\\u") || text.contains("__proto__") {
        return bail("unusual JSON");
    }
    heap.spend(text.len() * 4)?;
    match json::parse(text.as_bytes()) {
        Ok(parsed) => build(heap, &parsed),
        Err(_) => bail("text that is not JSON"),
    }
}

fn build(heap: &mut Heap<'_>, value: &Value) -> EvalResult<Js> {
    match value {
        Value::Array(values) => {
            let elements: EvalResult<Vec<Js>> = values.iter().map(|value| build(heap, value)).collect();
            heap.add_array(elements?)
        }
        Value::Object(object) => {
            if object.len() > MEMBERS_MAX {
                return bail("an object of many members");
            }
            let mut members: Vec<(Text, Js)> = Vec::with_capacity(object.len());
            for (name, value) in object.iter() {
                members.push((name.clone(), build(heap, value)?));
            }
            heap.add(HeapObject::Plain(members))
        }
        other => heap.add_value(other),
    }
}
