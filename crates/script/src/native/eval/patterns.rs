//! Destructuring, and loops over lists.

use thalweg_record::Text;

use super::{Completion, Evaluator};
use crate::native::heap::{EvalResult, Js, bail, property_name};
use crate::native::ir::{BindingElement, Block, Expr, Key, Pattern};

impl<'c> Evaluator<'c, '_> {
    pub(super) fn bind(&mut self, bound: &'c BindingElement, value: Js) -> EvalResult<()> {
        let value = match (&value, &bound.default) {
            (Js::Undefined, Some(default)) => self.expr(default)?,
            _ => value,
        };
        self.put(&bound.pattern, value)
    }

    pub(super) fn put(&mut self, pattern: &'c Pattern, value: Js) -> EvalResult<()> {
        match pattern {
            Pattern::Slot(slot) => self.set_local(*slot, value),
            Pattern::Object(members) => {
                if value.is_nullish() {
                    return bail("nothing to destructure");
                }
                for (key, bound) in members {
                    let name = match key {
                        Key::Named(name) => name.clone(),
                        Key::Computed(key) => {
                            let key = self.expr(key)?;
                            property_name(&mut self.heap, &key)?
                        }
                    };
                    let member = self.member(&value, &name)?;
                    self.bind(bound, member)?;
                }
            }
            Pattern::Array(elements, rest) => {
                // An array is read live at each step.
                let array = match &value {
                    Js::Object(place) if self.heap.is_array(*place) => Some(*place),
                    _ => None,
                };
                let fixed = match array {
                    Some(_) => Vec::new(),
                    None => self.list(&value)?,
                };
                let mut at_end = false;
                for (i, element) in elements.iter().enumerate() {
                    let value = match array {
                        _ if at_end => None,
                        Some(place) => self.heap.elements(place)?.and_then(|elements| elements.get(i).cloned()),
                        None => fixed.get(i).cloned(),
                    };
                    at_end |= value.is_none();
                    if let Some(bound) = element {
                        self.bind(bound, value.unwrap_or(Js::Undefined))?;
                    }
                }
                if let Some(rest) = rest {
                    let list = match array {
                        Some(_) => self.list(&value)?,
                        None => fixed,
                    };
                    let remaining = list.get(elements.len()..).filter(|_| !at_end).unwrap_or_default();
                    let remaining = self.heap.add_array(remaining.to_vec())?;
                    self.put(rest, remaining)?;
                }
            }
        }
        Ok(())
    }

    /// The list of `...value`: the elements of an array, the characters of a text.
    pub(super) fn list(&mut self, value: &Js) -> EvalResult<Vec<Js>> {
        Ok(match value {
            Js::Text(text) => {
                self.heap.spend(text.len() * size_of::<Js>())?;
                text.chars().map(|c| Js::Text(char_text(c))).collect()
            }
            Js::Object(place) => {
                let length = self.heap.elements(*place)?.map_or(0, |elements| elements.len());
                self.heap.spend(length * size_of::<Js>())?;
                match self.heap.elements(*place)? {
                    Some(elements) => elements.clone(),
                    None => return bail("a list that is not an array"),
                }
            }
            _ => return bail("a list that is not an array"),
        })
    }

    pub(super) fn for_of(&mut self, pattern: &'c Pattern, list: &'c Expr, body: &'c Block) -> EvalResult<Completion> {
        // The variable of the loop is undeclared while its list is evaluated.
        self.begin(body);
        let list = self.expr(list)?;
        // An array is read live at each iteration.
        let array = match &list {
            Js::Object(place) if self.heap.is_array(*place) => Some(*place),
            _ => None,
        };
        let fixed = match array {
            Some(_) => Vec::new(),
            None => self.list(&list)?,
        };
        for i in 0.. {
            let value = match array {
                Some(place) => self.heap.elements(place)?.and_then(|elements| elements.get(i).cloned()),
                None => fixed.get(i).cloned(),
            };
            let Some(value) = value else { break };
            if let Some(ended) = self.turn(pattern, value, body)? {
                return Ok(ended);
            }
        }
        Ok(Completion::Next)
    }

    pub(super) fn for_in(&mut self, pattern: &'c Pattern, object: &'c Expr, body: &'c Block) -> EvalResult<Completion> {
        self.begin(body);
        let place = match self.expr(object)? {
            Js::Object(place) => place,
            Js::Undefined | Js::Null => return Ok(Completion::Next),
            _ => return bail("a loop over the members of a value that is not an object"),
        };
        for name in self.heap.keys(place)? {
            // Names deleted meanwhile are skipped.
            if !self.heap.has_own(place, &name)? {
                continue;
            }
            if let Some(ended) = self.turn(pattern, Js::Text(name), body)? {
                return Ok(ended);
            }
        }
        Ok(Completion::Next)
    }

    /// One iteration of a loop; returns how the loop ends, if it does.
    fn turn(&mut self, pattern: &'c Pattern, value: Js, body: &'c Block) -> EvalResult<Option<Completion>> {
        self.step()?;
        self.begin(body);
        self.put(pattern, value)?;
        Ok(match self.statements(&body.body)? {
            Completion::Break => Some(Completion::Next),
            Completion::Return(value) => Some(Completion::Return(value)),
            Completion::Next | Completion::Continue => None,
        })
    }
}

pub(super) fn char_text(c: char) -> Text {
    Text::new(c.encode_utf8(&mut [0; 4]))
}
