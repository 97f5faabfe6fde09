//! Runs a compiled script on one message.
//!
//! A call works on its own [`Heap`] and collects its effects (console lines, cache changes) until its end. So wherever
//! it meets something that it cannot do exactly as QuickJS does, it stops, and QuickJS runs the whole call.

mod arrays;
mod globals;
mod objects;
mod patterns;
mod texts;

use smallvec::SmallVec;
use thalweg_record::{Text, Value};

use super::arithmetic;
use super::coerce;
use super::compile::Code;
use super::heap::{EvalResult, Heap, HeapObject, Js, ObjectRef, Stop, bail};
use super::ir::{
    Argument, Binary, Block, CacheCall, Element, Expr, Global, Logical, Property, ScriptFunction, Stmt, Target,
    VariableSlot,
};
use super::number;
use super::result::value_of;
use super::split::Split;
use crate::{CacheFull, ConsoleLevel, Environment};

/// Maximum nesting of functions.
pub(super) const LEVELS: usize = 4;
/// Maximum call depth.
const DEPTH_MAX: usize = 32;
/// Maximum cache changes in one call, because finding one is a scan.
const CACHE_CALLS_MAX: usize = 256;
/// Loop iterations and function calls before QuickJS takes over, which checks the time.
const STEPS_MAX: usize = 50_000;

/// How a statement ended.
pub(super) enum Completion {
    Next,
    Break,
    Continue,
    Return(Js),
}

/// The effects of a call, applied at its end.
#[derive(Default)]
pub(super) struct Effects {
    pub lines: Vec<(ConsoleLevel, String)>,
    /// Cache changes in order; `None` deletes.
    pub cache: Vec<(Text, Option<Value>)>,
}

impl Effects {
    pub fn is_none(&self) -> bool {
        self.lines.is_empty() && self.cache.is_empty()
    }

    /// Applies all effects, or none if the cache has no room.
    pub fn show(self, environment: &Environment) -> Result<(), CacheFull> {
        environment.cache.apply(self.cache, environment.limits.memory)?;
        for (level, line) in self.lines {
            environment.console.line(level, &line);
        }
        Ok(())
    }
}

pub(super) struct Evaluator<'c, 'm> {
    code: &'c Code,
    environment: &'c Environment,
    pub heap: Heap<'m>,
    slots: Vec<Js>,
    /// Where the frames of the enclosing functions begin, by level.
    bases: [usize; LEVELS],
    depth: usize,
    steps: usize,
    pub effects: Effects,
}

/// A function that a method calls.
#[derive(Clone, Copy)]
pub(super) enum Callback {
    Function(usize),
    Convert(Global),
}

/// Arguments of a method: values, and a function with its argument index.
pub(super) struct Arguments {
    pub values: SmallVec<[Js; 3]>,
    pub callback: Option<(usize, Callback)>,
}

impl Arguments {
    pub fn get(&self, i: usize) -> &Js {
        self.values.get(i).unwrap_or(&Js::Undefined)
    }

    pub fn callback_at(&self, place: usize) -> Option<Callback> {
        self.callback
            .filter(|(at, _)| *at == place)
            .map(|(_, callback)| callback)
    }
}

impl<'c, 'm> Evaluator<'c, 'm> {
    pub fn new(code: &'c Code, environment: &'c Environment, heap: Heap<'m>, slots: Vec<Js>) -> Evaluator<'c, 'm> {
        Evaluator {
            code,
            environment,
            heap,
            slots,
            bases: [0; LEVELS],
            depth: 0,
            steps: 0,
            effects: Effects::default(),
        }
    }

    /// Runs the script. The return value belongs to the heap.
    pub fn run(&mut self) -> EvalResult<Js> {
        self.call_function(0, &[Js::Object(ObjectRef::MSG)])
    }

    /// Runs the halves of a splittable script; the first only if its result is not memoized. Returns whether that half
    /// depends on more than the shared map.
    pub fn run_halves(&mut self, split: &Split, is_first_known: bool) -> EvalResult<bool> {
        let code = self.code;
        let Some(function) = code.functions.first() else {
            return bail("a function is missing");
        };
        self.slots.resize(usize::from(function.slots), Js::Empty);
        for parameter in &function.parameters {
            self.bind(parameter, Js::Object(ObjectRef::MSG))?;
        }
        for index in &function.hoisted {
            if let Some(place) = self.slots.get_mut(usize::from(*index)) {
                *place = Js::Undefined;
            }
        }
        if !is_first_known {
            self.half(function, &split.metadata)?;
        }
        let depends = self.heap.depends;
        self.half(function, &split.payload)?;
        Ok(depends)
    }

    fn half(&mut self, function: &'c ScriptFunction, numbers: &[usize]) -> EvalResult<()> {
        for number in numbers {
            let Some(statement) = function.body.get(*number) else {
                return bail("a statement is missing");
            };
            let Completion::Next = self.statement(statement)? else {
                return bail("an end before the end");
            };
        }
        Ok(())
    }

    /// The heap, the effects, and the buffer of the variables.
    pub fn end(mut self) -> (Heap<'m>, Effects, Vec<Js>) {
        self.slots.clear();
        (self.heap, self.effects, self.slots)
    }

    fn step(&mut self) -> EvalResult<()> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return bail("it runs for long");
        }
        Ok(())
    }

    fn call_function(&mut self, number: usize, arguments: &[Js]) -> EvalResult<Js> {
        let code = self.code;
        let Some(function) = code.functions.get(number) else {
            return bail("a function is missing");
        };
        self.step()?;
        if self.depth >= DEPTH_MAX {
            return bail("it calls itself deeply");
        }
        let level = usize::from(function.level);
        let base = self.slots.len();
        self.slots.resize(base + usize::from(function.slots), Js::Empty);
        let outer = self.bases;
        if let Some(place) = self.bases.get_mut(level) {
            *place = base;
        }
        self.depth += 1;
        let result = self.function_body(function, base, arguments);
        self.depth -= 1;
        self.bases = outer;
        self.slots.truncate(base);
        match result? {
            Completion::Return(value) => Ok(value),
            _ => Ok(Js::Undefined),
        }
    }

    fn function_body(&mut self, function: &'c ScriptFunction, base: usize, arguments: &[Js]) -> EvalResult<Completion> {
        for (i, parameter) in function.parameters.iter().enumerate() {
            let argument = arguments.get(i).cloned().unwrap_or(Js::Undefined);
            self.bind(parameter, argument)?;
        }
        for index in &function.hoisted {
            if let Some(place) = self.slots.get_mut(base + usize::from(*index)) {
                *place = Js::Undefined;
            }
        }
        self.statements(&function.body)
    }

    pub(super) fn call_back(&mut self, callback: Callback, arguments: &[Js]) -> EvalResult<Js> {
        match callback {
            Callback::Function(number) => self.call_function(number, arguments),
            Callback::Convert(global) => self.global_call(global, arguments.get(..1).unwrap_or_default()),
        }
    }

    fn statements(&mut self, statements: &'c [Stmt]) -> EvalResult<Completion> {
        for statement in statements {
            match self.statement(statement)? {
                Completion::Next => {}
                ended => return Ok(ended),
            }
        }
        Ok(Completion::Next)
    }

    fn block(&mut self, block: &'c Block) -> EvalResult<Completion> {
        self.begin(block);
        self.statements(&block.body)
    }

    /// Marks the variables of a block as undeclared again.
    fn begin(&mut self, block: &Block) {
        if let Some((first, end)) = block.fresh {
            let base = self.present_base();
            if let Some(fresh) = self.slots.get_mut(base + usize::from(first)..base + usize::from(end)) {
                fresh.fill(Js::Empty);
            }
        }
    }

    /// Where the frame of the current function begins: it is the last one.
    fn present_base(&self) -> usize {
        self.bases.iter().copied().max().unwrap_or(0)
    }

    fn statement(&mut self, statement: &'c Stmt) -> EvalResult<Completion> {
        match statement {
            Stmt::Expr(expr) => {
                self.expr(expr)?;
            }
            Stmt::Declare(pattern, init) => {
                let value = self.expr(init)?;
                self.put(pattern, value)?;
            }
            Stmt::Reach(slot) => self.set_local(*slot, Js::Bool(true)),
            Stmt::If(test, then, otherwise) => {
                if self.expr(test)?.truth() {
                    return self.statement(then);
                }
                if let Some(otherwise) = otherwise {
                    return self.statement(otherwise);
                }
            }
            Stmt::Block(block) => return self.block(block),
            Stmt::For {
                init,
                test,
                update,
                body,
            } => {
                if let Some(init) = init {
                    self.statement(init)?;
                }
                loop {
                    self.step()?;
                    if let Some(test) = test
                        && !self.expr(test)?.truth()
                    {
                        break;
                    }
                    match self.block(body)? {
                        Completion::Break => break,
                        Completion::Return(value) => return Ok(Completion::Return(value)),
                        Completion::Next | Completion::Continue => {}
                    }
                    if let Some(update) = update {
                        self.expr(update)?;
                    }
                }
            }
            Stmt::ForOf(pattern, list, body) => return self.for_of(pattern, list, body),
            Stmt::ForIn(pattern, object, body) => return self.for_in(pattern, object, body),
            Stmt::While(test, body) => loop {
                self.step()?;
                if !self.expr(test)?.truth() {
                    break;
                }
                match self.block(body)? {
                    Completion::Break => break,
                    Completion::Return(value) => return Ok(Completion::Return(value)),
                    Completion::Next | Completion::Continue => {}
                }
            },
            Stmt::DoWhile(body, test) => loop {
                self.step()?;
                match self.block(body)? {
                    Completion::Break => break,
                    Completion::Return(value) => return Ok(Completion::Return(value)),
                    Completion::Next | Completion::Continue => {}
                }
                if !self.expr(test)?.truth() {
                    break;
                }
            },
            Stmt::Switch { value, cases, body } => return self.switch(value, cases, body),
            Stmt::Break => return Ok(Completion::Break),
            Stmt::Continue => return Ok(Completion::Continue),
            Stmt::Return(value) => {
                let value = match value {
                    Some(value) => self.expr(value)?,
                    None => Js::Undefined,
                };
                return Ok(Completion::Return(value));
            }
            Stmt::Bail(why) => return bail(why),
            Stmt::Try(block, last) => {
                let ended = self.block(block)?;
                return match last.as_ref().map(|last| self.block(last)).transpose()? {
                    None | Some(Completion::Next) => Ok(ended),
                    Some(other) => Ok(other),
                };
            }
        }
        Ok(Completion::Next)
    }

    fn switch(
        &mut self,
        value: &'c Expr,
        cases: &'c [(Option<Expr>, usize)],
        body: &'c Block,
    ) -> EvalResult<Completion> {
        let value = self.expr(value)?;
        self.begin(body);
        let mut from = None;
        for (test, start) in cases {
            if let Some(test) = test {
                let test = self.expr(test)?;
                if coerce::strictly_equal(&value, &test)? {
                    from = Some(*start);
                    break;
                }
            }
        }
        let default = cases.iter().find(|(test, _)| test.is_none()).map(|(_, start)| *start);
        let Some(from) = from.or(default) else {
            return Ok(Completion::Next);
        };
        match self.statements(body.body.get(from..).unwrap_or_default())? {
            Completion::Break => Ok(Completion::Next),
            other => Ok(other),
        }
    }

    fn local(&self, slot: VariableSlot) -> EvalResult<Js> {
        let base = self.bases.get(usize::from(slot.level)).copied().unwrap_or(0);
        match self.slots.get(base + usize::from(slot.index)) {
            Some(Js::Empty) | None => bail("a variable before its declaration"),
            Some(value) => Ok(value.clone()),
        }
    }

    fn set_local(&mut self, slot: VariableSlot, value: Js) {
        let base = self.bases.get(usize::from(slot.level)).copied().unwrap_or(0);
        if let Some(place) = self.slots.get_mut(base + usize::from(slot.index)) {
            *place = value;
        }
    }

    pub(super) fn expr(&mut self, expr: &'c Expr) -> EvalResult<Js> {
        Ok(match expr {
            Expr::Constant(value) => value.clone(),
            Expr::Local(slot) => self.local(*slot)?,
            Expr::Member(holder, name) => {
                let holder = self.expr(holder)?;
                self.member(&holder, name)?
            }
            Expr::Index(holder, key) => {
                let holder = self.expr(holder)?;
                let key = self.expr(key)?;
                self.index(&holder, &key)?
            }
            Expr::OptionalMember(holder, name) => {
                let holder = self.present(holder)?;
                self.member(&holder, name)?
            }
            Expr::OptionalIndex(holder, key) => {
                let holder = self.present(holder)?;
                let key = self.expr(key)?;
                self.index(&holder, &key)?
            }
            Expr::Chain(inner) => match self.expr(inner) {
                Err(Stop::Short) => Js::Undefined,
                other => other?,
            },
            Expr::Template(texts, values) => self.template(texts, values)?,
            Expr::Array(elements) => {
                let elements = self.elements(elements)?;
                self.heap.add_array(elements.into_vec())?
            }
            Expr::Object(properties) => self.object(properties)?,
            Expr::Regex(regex) => self.heap.add(HeapObject::Regex(*regex))?,
            Expr::Not(inner) => Js::Bool(!self.expr(inner)?.truth()),
            Expr::Negate(inner) => Js::Number(-self.number(inner)?),
            Expr::ToNumber(inner) => Js::Number(self.number(inner)?),
            Expr::BitNot(inner) => Js::Number(f64::from(!number::to_i32(self.number(inner)?))),
            Expr::TypeOf(inner) => {
                let value = self.expr(inner)?;
                Js::Text(Text::new_static(coerce::type_name(&value)?))
            }
            Expr::Void(inner) => {
                self.expr(inner)?;
                Js::Undefined
            }
            Expr::Delete(target) => self.delete(target)?,
            Expr::Binary(operator, left, right) => {
                let left = self.expr(left)?;
                let right = self.expr(right)?;
                self.binary(*operator, &left, &right)?
            }
            Expr::And(left, right) => {
                let left = self.expr(left)?;
                if !left.truth() {
                    return Ok(left);
                }
                self.expr(right)?
            }
            Expr::Or(left, right) => {
                let left = self.expr(left)?;
                if left.truth() {
                    return Ok(left);
                }
                self.expr(right)?
            }
            Expr::Coalesce(left, right) => {
                let left = self.expr(left)?;
                if !left.is_nullish() {
                    return Ok(left);
                }
                self.expr(right)?
            }
            Expr::Conditional(test, then, otherwise) => match self.expr(test)?.truth() {
                true => self.expr(then)?,
                false => self.expr(otherwise)?,
            },
            Expr::Assign(target, value) => self.assign(target, value)?,
            Expr::AssignBinary(target, operator, value) => {
                let place = self.place(target)?;
                let old = self.read(&place)?;
                let value = self.expr(value)?;
                let new = self.binary(*operator, &old, &value)?;
                self.write(place, new.clone())?;
                new
            }
            Expr::AssignLogical(target, operator, value) => {
                let place = self.place(target)?;
                let old = self.read(&place)?;
                let is_done = match operator {
                    Logical::And => !old.truth(),
                    Logical::Or => old.truth(),
                    Logical::Coalesce => !old.is_nullish(),
                };
                if is_done {
                    return Ok(old);
                }
                let new = self.expr(value)?;
                self.write(place, new.clone())?;
                new
            }
            Expr::Update { target, by, prefix } => {
                let place = self.place(target)?;
                let old = self.read(&place)?;
                let old = coerce::number(&mut self.heap, &old)?;
                self.write(place, Js::Number(old + by))?;
                Js::Number(if *prefix { old + by } else { old })
            }
            Expr::Sequence(parts) => {
                let mut last = Js::Undefined;
                for part in parts {
                    last = self.expr(part)?;
                }
                last
            }
            Expr::Call {
                receiver,
                method,
                arguments,
                optional,
            } => {
                let receiver = match optional {
                    true => self.present(receiver)?,
                    false => self.expr(receiver)?,
                };
                let arguments = self.arguments(arguments)?;
                self.method(receiver, *method, arguments)?
            }
            Expr::Global(global, arguments) => {
                let arguments = self.elements(arguments)?;
                self.global_call(*global, &arguments)?
            }
            Expr::Function(number, arguments) => {
                let arguments = self.values(arguments)?;
                self.call_function(*number, &arguments)?
            }
            Expr::Console(level, arguments) => {
                let arguments = self.values(arguments)?;
                self.heap.depends = true;
                if self.environment.console.enabled(*level) {
                    let text = coerce::console_text(&mut self.heap, &arguments)?;
                    self.heap.spend(text.len())?;
                    self.effects.lines.push((*level, text));
                }
                Js::Undefined
            }
            Expr::Cache(call, arguments) => {
                let arguments = self.values(arguments)?;
                self.cache(*call, &arguments)?
            }
            Expr::Date(arguments) => {
                let arguments = self.values(arguments)?;
                self.date(arguments.first())?
            }
        })
    }

    /// The holder of `?.`; null and undefined end the chain.
    fn present(&mut self, holder: &'c Expr) -> EvalResult<Js> {
        let holder = self.expr(holder)?;
        match holder.is_nullish() {
            true => Err(Stop::Short),
            false => Ok(holder),
        }
    }

    fn number(&mut self, expr: &'c Expr) -> EvalResult<f64> {
        let value = self.expr(expr)?;
        coerce::number(&mut self.heap, &value)
    }

    fn values(&mut self, exprs: &'c [Expr]) -> EvalResult<SmallVec<[Js; 3]>> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn elements(&mut self, elements: &'c [Element]) -> EvalResult<SmallVec<[Js; 3]>> {
        let mut values = SmallVec::new();
        for element in elements {
            match element {
                Element::One(expr) => values.push(self.expr(expr)?),
                Element::Spread(expr) => {
                    let list = self.expr(expr)?;
                    values.extend(self.list(&list)?);
                }
            }
        }
        Ok(values)
    }

    fn arguments(&mut self, arguments: &'c [Argument]) -> EvalResult<Arguments> {
        let mut given = Arguments {
            values: SmallVec::new(),
            callback: None,
        };
        for argument in arguments {
            match argument {
                Argument::One(expr) => given.values.push(self.expr(expr)?),
                Argument::Spread(expr) => {
                    let list = self.expr(expr)?;
                    given.values.extend(self.list(&list)?);
                }
                Argument::Function(number) => {
                    given.callback = Some((given.values.len(), Callback::Function(*number)));
                    given.values.push(Js::Undefined);
                }
                Argument::Convert(global) => {
                    given.callback = Some((given.values.len(), Callback::Convert(*global)));
                    given.values.push(Js::Undefined);
                }
            }
        }
        Ok(given)
    }

    fn template(&mut self, texts: &'c [Text], values: &'c [Expr]) -> EvalResult<Js> {
        // QuickJS converts the values to texts after it has evaluated all of them.
        let values: SmallVec<[Js; 3]> = self.values(values)?;
        let mut out = smol_str::SmolStrBuilder::new();
        let mut bytes = 0;
        for (i, text) in texts.iter().enumerate() {
            out.push_str(text);
            bytes += text.len();
            if let Some(value) = values.get(i) {
                match value {
                    Js::Text(text) => {
                        out.push_str(text);
                        bytes += text.len();
                    }
                    other => {
                        let text = coerce::text(&mut self.heap, other)?;
                        out.push_str(&text);
                        bytes += text.len();
                    }
                }
            }
        }
        self.heap.spend(bytes)?;
        Ok(Js::Text(out.finish()))
    }

    fn object(&mut self, properties: &'c [Property]) -> EvalResult<Js> {
        let members = self.heap.members();
        let object = self.heap.add(HeapObject::Plain(members))?;
        let Js::Object(place) = object else {
            return bail("an object is missing");
        };
        for property in properties {
            match property {
                Property::Named(name, value) => {
                    let value = self.expr(value)?;
                    self.heap.set(place, name, value)?;
                }
                Property::Computed(key, value) => {
                    let key = self.expr(key)?;
                    let name = super::heap::property_name(&mut self.heap, &key)?;
                    let value = self.expr(value)?;
                    self.heap.set(place, &name, value)?;
                }
                Property::Spread(source) => {
                    let source = self.expr(source)?;
                    self.copy_members(place, &source)?;
                }
            }
        }
        Ok(object)
    }

    fn binary(&mut self, operator: Binary, a: &Js, b: &Js) -> EvalResult<Js> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let heap = &mut self.heap;
        Ok(match operator {
            Binary::Add => return coerce::add(heap, a, b),
            Binary::Equal => coerce::loosely_equal(heap, a, b)?.into(),
            Binary::NotEqual => (!coerce::loosely_equal(heap, a, b)?).into(),
            Binary::StrictEqual => coerce::strictly_equal(a, b)?.into(),
            Binary::StrictNotEqual => (!coerce::strictly_equal(a, b)?).into(),
            Binary::Less => (coerce::compared(heap, a, b)? == Some(Less)).into(),
            Binary::LessEqual => matches!(coerce::compared(heap, a, b)?, Some(Less | Equal)).into(),
            Binary::Greater => (coerce::compared(heap, a, b)? == Some(Greater)).into(),
            Binary::GreaterEqual => matches!(coerce::compared(heap, a, b)?, Some(Greater | Equal)).into(),
            Binary::In => self.has(a, b)?.into(),
            of_numbers => {
                let (a, b) = (coerce::number(heap, a)?, coerce::number(heap, b)?);
                match arithmetic::operator(of_numbers) {
                    Some(operator) => operator(a, b).into(),
                    None => return bail("an unusual operator"),
                }
            }
        })
    }

    fn assign(&mut self, target: &'c Target, value: &'c Expr) -> EvalResult<Js> {
        // Fast path for the common case, a member by name.
        if let Target::Member(holder, name) = target {
            let holder = self.expr(holder)?;
            let value = self.expr(value)?;
            let Js::Object(place) = holder else {
                return bail("a member of a value that is not an object");
            };
            self.heap.set(place, name, value.clone())?;
            return Ok(value);
        }
        let place = self.place(target)?;
        let value = self.expr(value)?;
        self.write(place, value.clone())?;
        Ok(value)
    }

    fn place(&mut self, target: &'c Target) -> EvalResult<ResolvedTarget> {
        let (holder, name) = match target {
            Target::Local(slot) => return Ok(ResolvedTarget::Local(*slot)),
            Target::Member(holder, name) => (self.expr(holder)?, name.clone()),
            Target::Index(holder, key) => {
                let holder = self.expr(holder)?;
                let key = self.expr(key)?;
                (holder, super::heap::property_name(&mut self.heap, &key)?)
            }
        };
        match holder {
            Js::Object(object) => Ok(ResolvedTarget::Member(object, name)),
            _ => bail("a member of a value that is not an object"),
        }
    }

    fn read(&mut self, place: &ResolvedTarget) -> EvalResult<Js> {
        match place {
            ResolvedTarget::Local(slot) => self.local(*slot),
            ResolvedTarget::Member(object, name) => self.heap.get(*object, name),
        }
    }

    fn write(&mut self, place: ResolvedTarget, value: Js) -> EvalResult<()> {
        match place {
            ResolvedTarget::Local(slot) => {
                // Bails out if the declaration was not reached, where JavaScript throws.
                self.local(slot)?;
                self.set_local(slot, value);
                Ok(())
            }
            ResolvedTarget::Member(object, name) => self.heap.set(object, &name, value),
        }
    }

    fn delete(&mut self, target: &'c Target) -> EvalResult<Js> {
        match self.place(target)? {
            ResolvedTarget::Member(object, name) => {
                self.heap.delete(object, &name)?;
                Ok(Js::Bool(true))
            }
            ResolvedTarget::Local(_) => bail("delete of a variable"),
        }
    }

    fn cache(&mut self, call: CacheCall, arguments: &[Js]) -> EvalResult<Js> {
        self.heap.depends = true;
        let key = arguments.first().unwrap_or(&Js::Undefined);
        let key = coerce::text(&mut self.heap, key)?;
        if self.effects.cache.len() >= CACHE_CALLS_MAX {
            return bail("it changes the cache often");
        }
        let pending = self.effects.cache.iter().rev().find(|(name, _)| *name == key);
        let pending = pending.map(|(_, value)| value.clone());
        Ok(match call {
            CacheCall::Set if key.is_empty() => bail("an empty key for the cache")?,
            CacheCall::Set => {
                let value = arguments.get(1).unwrap_or(&Js::Undefined);
                let value = value_of(&mut self.heap, value, None)?.0;
                self.effects.cache.push((key, Some(value)));
                Js::Undefined
            }
            CacheCall::Get => {
                let found = match pending {
                    Some(value) => value,
                    None => self.environment.cache.get(&key),
                };
                match found {
                    Some(value) => self.heap.add_value(&value)?,
                    // QuickJS logs the missing key.
                    None => bail("a key that is not in the cache")?,
                }
            }
            CacheCall::Exists => match pending {
                Some(value) => value.is_some().into(),
                None => self.environment.cache.exists(&key).into(),
            },
            CacheCall::Delete => {
                self.effects.cache.push((key, None));
                Js::Undefined
            }
        })
    }
}

/// The resolved target of an assignment.
enum ResolvedTarget {
    Local(VariableSlot),
    Member(ObjectRef, Text),
}
