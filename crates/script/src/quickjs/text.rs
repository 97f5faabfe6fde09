//! JavaScript values as text: the form of metadata, and the form of console lines.
//!
//! Both follow the output of the reference system (integers plain up to 2^53, other numbers in G-form), so both are
//! here. Text is bounded: a value that prints longer than the limit is truncated (console) or refused (metadata).

use super::from_js::{ConversionBudget, ConversionError, date_text, is_big_int, unboxed};
use super::runtime::list_of;
use super::value::{JsResult, Val};
use crate::view::{console_number, is_identifier, number_text, quote};

const DEPTH_MAX: usize = 128;

/// The text of a value that is left in `msg.meta`.
pub(super) fn meta_text(js: &Val, budget: &mut ConversionBudget) -> Result<String, ConversionError> {
    let mut writer = MetaText {
        out: String::new(),
        budget,
        ancestors: Vec::new(),
    };
    writer.value(js)?;
    Ok(writer.out)
}

struct MetaText<'a> {
    out: String,
    budget: &'a mut ConversionBudget,
    ancestors: Vec<*const ()>,
}

impl MetaText<'_> {
    fn value(&mut self, js: &Val) -> Result<(), ConversionError> {
        self.budget.spend(16)?;
        if js.is_string() {
            let (budget, out) = (&mut *self.budget, &mut self.out);
            return js.with_text(|text| {
                budget.spend(text.len())?;
                out.push_str(text);
                Ok(())
            })?;
        }
        if let Some(number) = js.as_number() {
            self.out.push_str(&number_text(number));
        } else if let Some(truth) = js.as_bool() {
            self.out.push_str(if truth { "true" } else { "false" });
        } else if js.is_nullish() {
            self.out.push_str("<nil>");
        } else if js.is_object() {
            return self.object_like(js);
        } else if is_big_int(js) {
            self.out.push_str(&js.text()?);
        } else {
            self.out.push_str(&symbol_text(js)?);
        }
        Ok(())
    }

    fn object_like(&mut self, js: &Val) -> Result<(), ConversionError> {
        if js.is_function() {
            self.out.push_str(&function_text(js)?);
            return Ok(());
        }
        if js.is_date() {
            self.out.push_str(&date_text(js)?);
            return Ok(());
        }
        if let Some(inner) = unboxed(js)? {
            return self.value(&inner);
        }
        let address = js.address();
        if self.ancestors.contains(&address) {
            return Err(ConversionError::Bad("an object contains itself"));
        }
        if self.ancestors.len() >= DEPTH_MAX {
            return Err(ConversionError::Bad(
                "arrays and objects are nested deeper than 128 levels",
            ));
        }
        self.ancestors.push(address);
        if js.is_array() || js.is_typed_array() {
            self.list(js)?;
        } else if js.is_collection() {
            let list = list_of(js)?;
            self.list(&list)?;
        } else {
            self.out.push_str("map[");
            for (i, (name, member)) in sorted_members(js)?.into_iter().enumerate() {
                if i > 0 {
                    self.out.push(' ');
                }
                self.budget.spend(name.len())?;
                self.out.push_str(&name);
                self.out.push(':');
                self.value(&member)?;
            }
            self.out.push(']');
        }
        self.ancestors.pop();
        Ok(())
    }

    fn list(&mut self, js: &Val) -> Result<(), ConversionError> {
        self.out.push('[');
        for i in 0..js.length()? {
            if i > 0 {
                self.out.push(' ');
            }
            let index = u32::try_from(i).map_err(|_| ConversionError::TooLarge)?;
            let element = js.get_index(index)?;
            self.value(&element)?;
        }
        self.out.push(']');
        Ok(())
    }
}

/// Own enumerable members, sorted by name.
fn sorted_members(js: &Val) -> JsResult<Vec<(String, Val)>> {
    let names = js.keys()?;
    let mut members = Vec::with_capacity(names.atoms().len());
    for atom in names.atoms() {
        // SAFETY: the atom is alive while the list is.
        let name = js.ctx.own(unsafe { rquickjs::qjs::JS_AtomToString(js.ctx.0, atom) })?;
        members.push((name.text()?, js.get(atom)?));
    }
    members.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(members)
}

fn symbol_text(js: &Val) -> JsResult<String> {
    let description = js.get_named(c"description")?;
    match description.is_string() {
        true => Ok(format!("Symbol({})", description.text()?)),
        false => Ok("Symbol()".to_owned()),
    }
}

fn function_text(js: &Val) -> JsResult<String> {
    let name = js.get_named(c"name")?;
    match name.is_string() {
        true => name.with_text(|name| match name {
            "" => "[Function (anonymous)]".to_owned(),
            name => format!("[Function: {name}]"),
        }),
        false => Ok("[Function (anonymous)]".to_owned()),
    }
}

/// Longer console text is truncated.
const CONSOLE_BYTES_MAX: usize = 64 << 10;

/// The arguments of a console call as one line.
pub(super) fn console_text(arguments: &[Val]) -> JsResult<String> {
    let mut writer = ConsoleText {
        out: String::new(),
        ancestors: Vec::new(),
    };
    for (i, argument) in arguments.iter().enumerate() {
        if i > 0 {
            writer.out.push(' ');
        }
        writer.value(argument)?;
    }
    if writer.full() {
        let end = writer.out.floor_char_boundary(CONSOLE_BYTES_MAX);
        writer.out.truncate(end);
        writer.out.push('…');
    }
    Ok(writer.out)
}

struct ConsoleText {
    out: String,
    ancestors: Vec<*const ()>,
}

impl ConsoleText {
    fn full(&self) -> bool {
        self.out.len() > CONSOLE_BYTES_MAX
    }

    fn value(&mut self, js: &Val) -> JsResult<()> {
        if self.full() {
            return Ok(());
        }
        if js.is_string() {
            let out = &mut self.out;
            return js.with_text(|text| quote(text, out));
        }
        if let Some(number) = js.as_number() {
            self.out.push_str(&console_number(number));
        } else if let Some(truth) = js.as_bool() {
            self.out.push_str(if truth { "true" } else { "false" });
        } else if js.is_nullish() {
            self.out.push_str("null");
        } else if js.is_object() {
            return self.object_like(js);
        } else if is_big_int(js) {
            self.out.push_str(&js.text()?);
        } else {
            self.out.push_str(&symbol_text(js)?);
        }
        Ok(())
    }

    fn object_like(&mut self, js: &Val) -> JsResult<()> {
        if js.is_function() {
            self.out.push_str(&function_text(js)?);
            return Ok(());
        }
        if js.is_date() {
            self.out.push_str(&date_text(js)?);
            return Ok(());
        }
        if js.is_error() {
            self.out.push_str(&js.text()?);
            return Ok(());
        }
        if let Some(inner) = unboxed(js)? {
            return self.value(&inner);
        }
        let address = js.address();
        if self.ancestors.contains(&address) || self.ancestors.len() >= DEPTH_MAX {
            self.out.push_str("[Circular]");
            return Ok(());
        }
        self.ancestors.push(address);
        let done = if js.is_array() || js.is_typed_array() {
            self.list(js)
        } else if js.is_collection() {
            list_of(js).and_then(|list| self.list(&list))
        } else {
            self.members(js)
        };
        self.ancestors.pop();
        done
    }

    fn list(&mut self, js: &Val) -> JsResult<()> {
        let length = js.length()?;
        if length == 0 {
            self.out.push_str("[]");
            return Ok(());
        }
        self.out.push_str("[ ");
        for i in 0..length {
            if self.full() {
                break;
            }
            if i > 0 {
                self.out.push_str(", ");
            }
            let element = js.get_index(u32::try_from(i).unwrap_or(u32::MAX))?;
            self.value(&element)?;
        }
        self.out.push_str(" ]");
        Ok(())
    }

    fn members(&mut self, js: &Val) -> JsResult<()> {
        let members = sorted_members(js)?;
        if members.is_empty() {
            self.out.push_str("{}");
            return Ok(());
        }
        self.out.push_str("{ ");
        for (i, (name, member)) in members.iter().enumerate() {
            if i > 0 {
                self.out.push_str(", ");
            }
            if is_identifier(name) {
                self.out.push_str(name);
            } else {
                quote(name, &mut self.out);
            }
            self.out.push_str(": ");
            self.value(member)?;
        }
        self.out.push_str(" }");
        Ok(())
    }
}
