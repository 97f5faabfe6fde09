//! Members, and methods by the type of their receiver.

use thalweg_record::Text;

use super::{Arguments, Evaluator, texts};
use crate::native::heap::{EvalResult, HeapObject, Js, ObjectRef, array_index, bail, is_inherited, property_name};
use crate::native::ir::Method;
use crate::native::{coerce, date, number};

impl Evaluator<'_, '_> {
    /// `value.name`.
    pub(super) fn member(&mut self, value: &Js, name: &Text) -> EvalResult<Js> {
        match value {
            Js::Object(place) => self.heap.get(*place, name),
            Js::Text(text) => {
                self.heap.work(text.len())?;
                match array_index(name) {
                    _ if name == "length" => Ok(Js::Number(texts::length(text) as f64)),
                    Some(index) => texts::unit_at(text, index),
                    None => bail("a method as a value"),
                }
            }
            _ => bail("a member of a value that is not an object"),
        }
    }

    /// `value[key]`.
    pub(super) fn index(&mut self, value: &Js, key: &Js) -> EvalResult<Js> {
        if let (Js::Object(place), Js::Number(index)) = (value, key)
            && *index >= 0.0
            && index.fract() == 0.0
            && let Some(elements) = self.heap.elements(*place)?
        {
            return Ok(elements.get(*index as usize).cloned().unwrap_or(Js::Undefined));
        }
        let name = property_name(&mut self.heap, key)?;
        self.member(value, &name)
    }

    /// `name in object`.
    pub(super) fn has(&mut self, name: &Js, object: &Js) -> EvalResult<bool> {
        let Js::Object(place) = object else {
            return bail("in on a value that is not an object");
        };
        let name = property_name(&mut self.heap, name)?;
        let is_array = self.heap.is_array(*place);
        if *place == ObjectRef::MSG && name == "payload" {
            return Ok(true);
        }
        match self.heap.has_own(*place, &name)? {
            true => Ok(true),
            false if is_inherited(&name) || (is_array && array_index(&name).is_none()) => {
                bail("a member that every object has")
            }
            false => Ok(false),
        }
    }

    /// Copies the members of a value into an object, as `{...value}` and `Object.assign` do.
    pub(super) fn copy_members(&mut self, into: ObjectRef, source: &Js) -> EvalResult<()> {
        match source {
            Js::Undefined | Js::Null | Js::Bool(_) | Js::Number(_) => Ok(()),
            Js::Object(place) => {
                for (name, value) in self.heap.entries(*place)? {
                    self.heap.set(into, &name, value)?;
                }
                Ok(())
            }
            _ => bail("the members of a text"),
        }
    }

    pub(super) fn method(&mut self, receiver: Js, method: Method, arguments: Arguments) -> EvalResult<Js> {
        match &receiver {
            Js::Text(text) => self.text_method(text, method, &arguments),
            Js::Number(n) => self.number_method(*n, method, &arguments),
            Js::Bool(_) if matches!(method, Method::ToString) => coerce::text(&mut self.heap, &receiver).map(Js::Text),
            Js::Object(place) => {
                if self.heap.is_array(*place) {
                    return self.array_method(*place, method, &arguments);
                }
                match self.heap.seen(*place) {
                    Some(HeapObject::Date(ms)) => {
                        let ms = *ms;
                        self.date_method(ms, method)
                    }
                    Some(HeapObject::Regex(regex)) => {
                        let regex = *regex;
                        self.regex_method(regex, method, &arguments)
                    }
                    _ => self.object_method(*place, method, &arguments),
                }
            }
            _ => bail("a method of a value without methods"),
        }
    }

    fn number_method(&mut self, n: f64, method: Method, arguments: &Arguments) -> EvalResult<Js> {
        let argument = arguments.get(0);
        match method {
            Method::ToFixed => {
                let digits = number::to_integer(coerce::number(&mut self.heap, argument)?);
                if !(0.0..=100.0).contains(&digits) {
                    return bail("toFixed of too many digits");
                }
                match number::to_fixed(n, digits as usize) {
                    Some(text) => self.heap.add_text(text),
                    None => Ok(Js::Text(number::text(n))),
                }
            }
            Method::ToExponential | Method::ToPrecision => {
                let digits = match argument {
                    Js::Undefined => None,
                    other => Some(number::to_integer(coerce::number(&mut self.heap, other)?)),
                };
                let (least, extra) = if method == Method::ToExponential {
                    (0.0, 1)
                } else {
                    (1.0, 0)
                };
                match digits {
                    _ if !n.is_finite() => Ok(Js::Text(number::text(n))),
                    Some(digits) if !(least..=100.0).contains(&digits) => bail("a number of too many digits"),
                    Some(digits) => {
                        let digits = number::Digits::rounded(n, digits as usize + extra);
                        self.heap.add_text(match method {
                            Method::ToExponential => digits.exponential(),
                            _ => digits.precise(),
                        })
                    }
                    None if method == Method::ToPrecision => Ok(Js::Text(number::text(n))),
                    None => self.heap.add_text(number::Digits::shortest(n).exponential()),
                }
            }
            Method::ToString => match argument {
                Js::Undefined => Ok(Js::Text(number::text(n))),
                Js::Number(radix) if *radix == 10.0 => Ok(Js::Text(number::text(n))),
                Js::Number(radix) => match number::in_radix_text(n, *radix) {
                    Some(text) => self.heap.add_text(text),
                    None => bail("a fraction in another radix"),
                },
                _ => bail("an unusual radix"),
            },
            Method::ValueOf => Ok(Js::Number(n)),
            _ => bail("a method that numbers do not have"),
        }
    }

    fn object_method(&mut self, place: ObjectRef, method: Method, arguments: &Arguments) -> EvalResult<Js> {
        // A member of that name would be called instead.
        match method {
            Method::HasOwnProperty if !self.heap.has_own(place, "hasOwnProperty")? => {
                let name = property_name(&mut self.heap, arguments.get(0))?;
                self.heap.has_own(place, &name).map(Js::Bool)
            }
            _ => bail("a method of an object"),
        }
    }

    fn date_method(&mut self, ms: f64, method: Method) -> EvalResult<Js> {
        let part = |part: i64| Ok(Js::Number(part as f64));
        match method {
            Method::GetTime | Method::ValueOf => Ok(Js::Number(ms)),
            Method::ToIsoString => date::iso(ms).map(Js::from),
            Method::GetUtcFullYear => part(date::civil(ms)?.date.year),
            Method::GetUtcMonth => part(i64::from(date::civil(ms)?.date.month) - 1),
            Method::GetUtcDate => part(date::civil(ms)?.date.day.into()),
            Method::GetUtcDay => part(date::civil(ms)?.date.weekday().into()),
            Method::GetUtcHours => part(date::civil(ms)?.hour.into()),
            Method::GetUtcMinutes => part(date::civil(ms)?.minute.into()),
            Method::GetUtcSeconds => part(date::civil(ms)?.second.into()),
            Method::GetUtcMilliseconds => part(i64::from(date::civil(ms)?.nanos) / 1_000_000),
            _ => bail("a method of a date in the time zone of this machine"),
        }
    }

    fn regex_method(&mut self, regex: usize, method: Method, arguments: &Arguments) -> EvalResult<Js> {
        let code = self.code;
        match (method, code.regexes.get(regex)) {
            (Method::Test, Some(regex)) if !regex.is_global => {
                let text = coerce::text(&mut self.heap, arguments.get(0))?;
                regex.is_match(&text).map(Js::Bool)
            }
            _ => bail("a regular expression that keeps its position"),
        }
    }

    /// `new Date(…)`.
    pub(super) fn date(&mut self, argument: Option<&Js>) -> EvalResult<Js> {
        let ms = match argument {
            None => {
                self.heap.depends = true;
                date::now()
            }
            Some(Js::Number(ms)) => date::clipped(*ms),
            Some(Js::Text(text)) => date::parse(text)?,
            Some(Js::Object(place)) => match self.heap.object(*place)? {
                HeapObject::Date(ms) => *ms,
                _ => return bail("a date from an object"),
            },
            Some(other) => date::clipped(coerce::number(&mut self.heap, &other.clone())?),
        };
        self.heap.add(HeapObject::Date(ms))
    }
}
