//! Methods of arrays.

use super::texts::relative;
use super::{Arguments, Callback, Evaluator};
use crate::native::coerce;
use crate::native::heap::{EvalResult, Js, ObjectRef, bail};
use crate::native::ir::Method;

/// Maximum nesting of arrays.
const NESTED_MAX: usize = 32;

impl Evaluator<'_, '_> {
    pub(super) fn array_method(&mut self, place: ObjectRef, method: Method, arguments: &Arguments) -> EvalResult<Js> {
        match arguments.callback {
            Some((0, callback)) => return self.walk(place, method, callback, arguments),
            Some(_) => return bail("a function in the place of a value"),
            None => {}
        }
        let (first, second) = (arguments.get(0), arguments.get(1));
        let length = self.heap.elements(place)?.map_or(0, |elements| elements.len());
        self.heap.work(length * size_of::<Js>())?;
        match method {
            Method::Push | Method::Unshift => {
                self.heap.spend(arguments.values.len() * size_of::<Js>())?;
                let Some(elements) = self.heap.elements(place)? else {
                    return bail("a list that is not an array");
                };
                let at = if method == Method::Push { elements.len() } else { 0 };
                elements.splice(at..at, arguments.values.iter().cloned());
                Ok(Js::Number(elements.len() as f64))
            }
            Method::Pop => {
                let last = self.heap.elements(place)?.and_then(Vec::pop);
                Ok(last.unwrap_or(Js::Undefined))
            }
            Method::Shift => {
                let elements = self.heap.elements(place)?.filter(|elements| !elements.is_empty());
                Ok(elements.map_or(Js::Undefined, |elements| elements.remove(0)))
            }
            Method::Reverse => {
                if let Some(elements) = self.heap.elements(place)? {
                    elements.reverse();
                }
                Ok(Js::Object(place))
            }
            Method::Fill => {
                let value = first.clone();
                let from = relative(self.integer(second, 0.0)?, length);
                let to = relative(self.integer(arguments.get(2), f64::INFINITY)?, length);
                let part = self
                    .heap
                    .elements(place)?
                    .and_then(|elements| elements.get_mut(from..to));
                if let Some(part) = part {
                    part.fill(value);
                }
                Ok(Js::Object(place))
            }
            Method::Splice => self.splice(place, length, arguments),
            Method::Flat => {
                let depth = self.integer(first, 1.0)?;
                let mut flat = Vec::new();
                self.flatten(place, depth, 0, &mut flat)?;
                self.heap.add_array(flat)
            }
            Method::Sort if matches!(first, Js::Undefined) => self.sort(place),
            Method::Slice => {
                let from = relative(self.integer(first, 0.0)?, length);
                let to = relative(self.integer(second, f64::INFINITY)?, length);
                let elements = self.copy(place)?;
                let part = elements.get(from..to.max(from)).unwrap_or_default();
                self.heap.add_array(part.to_vec())
            }
            Method::Concat => {
                let mut elements = self.copy(place)?;
                for argument in &arguments.values {
                    match argument {
                        Js::Object(other) if self.heap.is_array(*other) => elements.extend(self.copy(*other)?),
                        other => elements.push(other.clone()),
                    }
                }
                self.heap.add_array(elements)
            }
            Method::Join => {
                let separator = match first {
                    Js::Undefined => ",".into(),
                    other => coerce::text(&mut self.heap, other)?,
                };
                let elements = self.copy(place)?;
                coerce::joined(&mut self.heap, &elements, &separator, 0).map(Js::Text)
            }
            Method::ToString => coerce::text(&mut self.heap, &Js::Object(place)).map(Js::Text),
            Method::At => {
                let at = self.integer(first, 0.0)?;
                let at = if at < 0.0 { at + length as f64 } else { at };
                let elements = self.copy(place)?;
                let found = (at >= 0.0).then(|| elements.get(at as usize).cloned());
                Ok(found.flatten().unwrap_or(Js::Undefined))
            }
            Method::Includes => {
                let from = relative(self.integer(second, 0.0)?, length);
                for element in self.copy(place)?.iter().skip(from) {
                    let both_nan =
                        matches!((element, first), (Js::Number(a), Js::Number(b)) if a.is_nan() && b.is_nan());
                    if both_nan || coerce::strictly_equal(element, first)? {
                        return Ok(Js::Bool(true));
                    }
                }
                Ok(Js::Bool(false))
            }
            Method::IndexOf => {
                let from = relative(self.integer(second, 0.0)?, length);
                for (i, element) in self.copy(place)?.iter().enumerate().skip(from) {
                    if coerce::strictly_equal(element, first)? {
                        return Ok(Js::Number(i as f64));
                    }
                }
                Ok(Js::Number(-1.0))
            }
            Method::LastIndexOf if arguments.values.len() < 2 => {
                for (i, element) in self.copy(place)?.iter().enumerate().rev() {
                    if coerce::strictly_equal(element, first)? {
                        return Ok(Js::Number(i as f64));
                    }
                }
                Ok(Js::Number(-1.0))
            }
            Method::HasOwnProperty => {
                let name = crate::native::heap::property_name(&mut self.heap, first)?;
                self.heap.has_own(place, &name).map(Js::Bool)
            }
            _ => bail("a method that arrays do not have, or without its function"),
        }
    }

    fn copy(&mut self, place: ObjectRef) -> EvalResult<Vec<Js>> {
        let elements = self.heap.elements(place)?.cloned().unwrap_or_default();
        self.heap.spend(elements.len() * size_of::<Js>())?;
        Ok(elements)
    }

    fn splice(&mut self, place: ObjectRef, length: usize, arguments: &Arguments) -> EvalResult<Js> {
        let from = relative(self.integer(arguments.get(0), 0.0)?, length);
        let rest = length - from;
        // Without a count all of the rest is removed; with an undefined count nothing is.
        let count = match arguments.values.len() {
            0 => 0,
            1 => rest,
            _ => relative(self.integer(arguments.get(1), 0.0)?.max(0.0), rest),
        };
        let added = arguments.values.get(2..).unwrap_or_default();
        self.heap.spend(size_of_val(added))?;
        let Some(elements) = self.heap.elements(place)? else {
            return bail("a list that is not an array");
        };
        let removed = elements.splice(from..from + count, added.iter().cloned()).collect();
        self.heap.add_array(removed)
    }

    /// Appends the elements, flattening arrays down to a depth. An array that contains itself bails out.
    fn flatten(&mut self, place: ObjectRef, depth: f64, level: usize, flat: &mut Vec<Js>) -> EvalResult<()> {
        if level > NESTED_MAX {
            return bail("deeply nested arrays");
        }
        for element in self.copy(place)? {
            self.heap.work(size_of::<Js>())?;
            match element {
                Js::Object(inner) if depth >= 1.0 && self.heap.is_array(inner) => {
                    self.flatten(inner, depth - 1.0, level + 1, flat)?;
                }
                element => flat.push(element),
            }
        }
        Ok(())
    }

    /// Sorts by the elements' texts; undefined comes last.
    fn sort(&mut self, place: ObjectRef) -> EvalResult<Js> {
        let elements = self.copy(place)?;
        let mut keyed = Vec::with_capacity(elements.len());
        let mut undefined = 0;
        for element in elements {
            match element {
                Js::Undefined => undefined += 1,
                element => keyed.push((coerce::text(&mut self.heap, &element)?, element)),
            }
        }
        keyed.sort_by(|a, b| coerce::by_units(&a.0, &b.0));
        let sorted = keyed.into_iter().map(|(_, element)| element);
        let sorted: Vec<Js> = sorted.chain((0..undefined).map(|_| Js::Undefined)).collect();
        if let Some(elements) = self.heap.elements(place)? {
            *elements = sorted;
        }
        Ok(Js::Object(place))
    }

    /// Methods that call a function with each element. The length is fixed at the start; each element is read at its
    /// turn.
    fn walk(&mut self, place: ObjectRef, method: Method, callback: Callback, arguments: &Arguments) -> EvalResult<Js> {
        let length = self.heap.elements(place)?.map_or(0, |elements| elements.len());
        if matches!(method, Method::Reduce | Method::ReduceRight) {
            return self.reduce(place, length, method == Method::ReduceRight, (callback, arguments));
        }
        let mut kept = Vec::new();
        for i in 0..length {
            let element = self.element(place, i)?;
            let index = Js::Number(i as f64);
            let result = self.call_back(callback, &[element.clone(), index, Js::Object(place)])?;
            match method {
                Method::Map => kept.push(result),
                Method::FlatMap => match result {
                    Js::Object(inner) if self.heap.is_array(inner) => kept.extend(self.copy(inner)?),
                    result => kept.push(result),
                },
                Method::Filter if result.truth() => kept.push(element),
                Method::Some if result.truth() => return Ok(Js::Bool(true)),
                Method::Every if !result.truth() => return Ok(Js::Bool(false)),
                Method::Find if result.truth() => return Ok(element),
                Method::FindIndex if result.truth() => return Ok(Js::Number(i as f64)),
                Method::Filter | Method::Some | Method::Every | Method::Find | Method::FindIndex | Method::ForEach => {}
                _ => return bail("a method that takes no function"),
            }
        }
        match method {
            Method::Map | Method::Filter | Method::FlatMap => self.heap.add_array(kept),
            Method::Some => Ok(Js::Bool(false)),
            Method::Every => Ok(Js::Bool(true)),
            Method::FindIndex => Ok(Js::Number(-1.0)),
            Method::Find | Method::ForEach => Ok(Js::Undefined),
            _ => bail("a method that takes no function"),
        }
    }

    fn reduce(
        &mut self,
        place: ObjectRef,
        length: usize,
        from_the_end: bool,
        (callback, arguments): (Callback, &Arguments),
    ) -> EvalResult<Js> {
        let at = |turn: usize| if from_the_end { length - 1 - turn } else { turn };
        let mut turns = 0..length;
        let mut sum = match (arguments.values.get(1), turns.len()) {
            (Some(initial), _) => initial.clone(),
            (None, 0) => return bail("reduce of an empty array"),
            (None, _) => {
                turns = 1..length;
                self.element(place, at(0))?
            }
        };
        for turn in turns {
            let element = self.element(place, at(turn))?;
            let index = Js::Number(at(turn) as f64);
            sum = self.call_back(callback, &[sum, element, index, Js::Object(place)])?;
        }
        Ok(sum)
    }

    fn element(&mut self, place: ObjectRef, i: usize) -> EvalResult<Js> {
        match self.heap.elements(place)?.and_then(|elements| elements.get(i)) {
            Some(element) => Ok(element.clone()),
            None => bail("an array that shrinks while it is iterated"),
        }
    }
}
