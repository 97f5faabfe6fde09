//! Built-in functions with global names.

use super::Evaluator;
use crate::native::heap::{EvalResult, HeapObject, Js, bail, property_name};
use crate::native::ir::Global;
use crate::native::{arithmetic, coerce, date, json, number};

impl Evaluator<'_, '_> {
    pub(super) fn global_call(&mut self, global: Global, arguments: &[Js]) -> EvalResult<Js> {
        use Global as G;
        let first = arguments.first().unwrap_or(&Js::Undefined);
        let second = arguments.get(1).unwrap_or(&Js::Undefined);
        Ok(match global {
            G::String => match arguments.first() {
                None => Js::from(""),
                Some(value) => Js::Text(coerce::text(&mut self.heap, value)?),
            },
            G::Number => match arguments.first() {
                None => Js::Number(0.0),
                Some(value) => Js::Number(coerce::number(&mut self.heap, value)?),
            },
            G::Boolean => first.truth().into(),
            G::ParseFloat | G::NumberParseFloat => match first {
                Js::Number(n) if n.abs() < 1e21 && (*n == 0.0 || n.abs() >= 1e-6) => Js::Number(n + 0.0),
                other => {
                    let text = coerce::text(&mut self.heap, other)?;
                    Js::Number(number::parse_float(&text))
                }
            },
            G::ParseInt | G::NumberParseInt => {
                let text = coerce::text(&mut self.heap, first)?;
                let radix = match second {
                    Js::Undefined => 0.0,
                    other => coerce::number(&mut self.heap, other)?,
                };
                match number::parse_int(&text, radix) {
                    Some(number) => Js::Number(number),
                    None => return bail("parseInt of many digits"),
                }
            }
            G::IsNan => coerce::number(&mut self.heap, first)?.is_nan().into(),
            G::IsFinite => coerce::number(&mut self.heap, first)?.is_finite().into(),
            G::NumberIsNan => matches!(first, Js::Number(n) if n.is_nan()).into(),
            G::NumberIsFinite => matches!(first, Js::Number(n) if n.is_finite()).into(),
            G::NumberIsInteger => matches!(first, Js::Number(n) if n.is_finite() && n.fract() == 0.0).into(),
            G::NumberIsSafeInteger => {
                matches!(first, Js::Number(n) if n.fract() == 0.0 && n.abs() <= 9_007_199_254_740_991.0).into()
            }
            G::ArrayIsArray => matches!(first, Js::Object(place) if self.heap.is_array(*place)).into(),
            G::DateNow => {
                self.heap.depends = true;
                Js::Number(date::now())
            }
            G::DateParse => {
                let text = coerce::text(&mut self.heap, first)?;
                Js::Number(date::parse(&text)?)
            }
            G::JsonStringify => {
                let indent = json::indent(arguments.get(2).unwrap_or(&Js::Undefined))?;
                json::stringify(&mut self.heap, first, &indent)?
            }
            G::JsonParse => json::parse(&mut self.heap, first)?,
            G::ObjectKeys | G::ObjectValues | G::ObjectEntries => self.members_of(global, first)?,
            G::ObjectAssign => {
                let Js::Object(into) = first else {
                    return bail("Object.assign to a value that is not an object");
                };
                for source in arguments.iter().skip(1) {
                    self.copy_members(*into, source)?;
                }
                first.clone()
            }
            G::ObjectFromEntries => {
                let members = self.heap.members();
                let object = self.heap.add(HeapObject::Plain(members))?;
                for entry in self.list(first)? {
                    let (Js::Object(entry), Js::Object(place)) = (&entry, &object) else {
                        return bail("an entry that is not an array");
                    };
                    let pair = match self.heap.elements(*entry)? {
                        Some(pair) => pair.clone(),
                        None => return bail("an entry that is not an array"),
                    };
                    let name = property_name(&mut self.heap, pair.first().unwrap_or(&Js::Undefined))?;
                    let value = pair.get(1).cloned().unwrap_or(Js::Undefined);
                    self.heap.set(*place, &name, value)?;
                }
                object
            }
            G::ObjectHasOwn => {
                let Js::Object(place) = first else {
                    return bail("the members of a value that is not an object");
                };
                let name = property_name(&mut self.heap, second)?;
                self.heap.has_own(*place, &name)?.into()
            }
            G::StringFromCharCode => {
                let mut out = String::new();
                for unit in arguments {
                    let unit = number::to_i32(coerce::number(&mut self.heap, unit)?) as u32 & 0xffff;
                    match char::from_u32(unit) {
                        Some(c) => out.push(c),
                        None => return bail("half a surrogate pair"),
                    }
                }
                out.into()
            }
            G::MathMax | G::MathMin => return self.extreme(global, arguments),
            G::MathHypot => {
                // As QuickJS does it: the magnitude of one number, or pairwise in order.
                let mut length = coerce::number(&mut self.heap, arguments.first().unwrap_or(&Js::Number(0.0)))?.abs();
                for argument in arguments.iter().skip(1) {
                    length = length.hypot(coerce::number(&mut self.heap, argument)?);
                }
                Js::Number(length)
            }
            G::MathPow | G::MathAtan2 | G::MathImul => {
                let a = coerce::number(&mut self.heap, first)?;
                let b = coerce::number(&mut self.heap, second)?;
                Js::Number(match global {
                    G::MathPow => arithmetic::power(a, b),
                    G::MathAtan2 => a.atan2(b),
                    _ => arithmetic::whole_product(a, b),
                })
            }
            function => {
                let n = coerce::number(&mut self.heap, first)?;
                match arithmetic::function(function) {
                    Some(function) => Js::Number(function(n)),
                    None => return bail("an unusual function"),
                }
            }
        })
    }

    fn extreme(&mut self, global: Global, arguments: &[Js]) -> EvalResult<Js> {
        let is_max = global == Global::MathMax;
        let mut result = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
        for argument in arguments {
            let n = coerce::number(&mut self.heap, argument)?;
            let is_further = match is_max {
                true => n > result || (n == 0.0 && result == 0.0 && result.is_sign_negative()),
                false => n < result || (n == 0.0 && result == 0.0 && n.is_sign_negative()),
            };
            if result.is_nan() || n.is_nan() {
                result = f64::NAN;
            } else if is_further {
                result = n;
            }
        }
        Ok(Js::Number(result))
    }

    fn members_of(&mut self, global: Global, object: &Js) -> EvalResult<Js> {
        let Js::Object(place) = object else {
            return bail("the members of a value that is not an object");
        };
        if global == Global::ObjectKeys {
            let keys = self.heap.keys(*place)?;
            return self.heap.add_array(keys.into_iter().map(Js::Text).collect());
        }
        let entries = self.heap.entries(*place)?;
        if global == Global::ObjectValues {
            return self
                .heap
                .add_array(entries.into_iter().map(|(_, value)| value).collect());
        }
        let mut pairs = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            pairs.push(self.heap.add_array(vec![Js::Text(name), value])?);
        }
        self.heap.add_array(pairs)
    }
}
