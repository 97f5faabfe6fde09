//! Splits scripts into two halves: one that computes metadata from metadata, and one that computes a payload from the
//! payload.
//!
//! Most scripts that change the value set the location of the tag and scale the value by constants. Neither half reads
//! what the other writes, so the first runs once per tag, and only the second for each further message. A script that
//! only sets the payload has an empty first half.

use super::arithmetic::Arithmetic;
use super::heap::{META, PAYLOAD};
use super::ir::{
    Argument, Block, Element, Expr, Global, Pattern, Property, ScriptFunction, Stmt, Target, VariableSlot,
};

/// Statements of the script by their numbers.
#[derive(Debug)]
pub(super) struct Split {
    /// Statements that read and change only metadata.
    pub metadata: Vec<usize>,
    /// Statements that read only the payload, and set it.
    pub payload: Vec<usize>,
    /// What these do to a number, if it is only arithmetic.
    pub arithmetic: Option<Arithmetic>,
}

/// `msg`: the first parameter of the script.
pub(super) const MSG: VariableSlot = VariableSlot { level: 0, index: 0 };

/// The two halves of a script that ends in `return msg`, if it can be split.
pub(super) fn split(functions: &[ScriptFunction]) -> Option<Split> {
    let (last, others) = functions.first()?.body.split_last()?;
    if !matches!(last, Stmt::Return(Some(Expr::Local(MSG)))) {
        return None;
    }
    let mut split = Split {
        metadata: Vec::new(),
        payload: Vec::new(),
        arithmetic: None,
    };
    let mut assignments = Vec::new();
    for (number, statement) in others.iter().enumerate() {
        if let Some((assignment, value)) = payload_assignment(statement) {
            let mut uses = UsageAnalysis::new(functions);
            uses.expr(value);
            if uses.meta || uses.variables || uses.functions || uses.more {
                return None;
            }
            split.payload.push(number);
            assignments.push(assignment);
        } else {
            let mut uses = UsageAnalysis::new(functions);
            uses.statement(statement);
            if uses.payload || uses.more {
                return None;
            }
            split.metadata.push(number);
        }
    }
    split.arithmetic = Arithmetic::of_assignments(assignments);
    (!split.payload.is_empty()).then_some(split)
}

/// `msg.payload = value` and `msg.payload *= value`, with their value.
fn payload_assignment(statement: &Stmt) -> Option<(&Expr, &Expr)> {
    let Stmt::Expr(assignment) = statement else {
        return None;
    };
    let (Expr::Assign(target, value) | Expr::AssignBinary(target, _, value)) = assignment else {
        return None;
    };
    let is_payload = matches!(&**target, Target::Member(Expr::Local(MSG), name) if name == PAYLOAD);
    is_payload.then_some((assignment, value))
}

/// What a part of a script uses.
struct UsageAnalysis<'c> {
    all: &'c [ScriptFunction],
    /// Functions that were analysed.
    seen: Vec<usize>,
    payload: bool,
    meta: bool,
    variables: bool,
    functions: bool,
    /// `msg` as a whole, the clock, the console, the cache, or an early return.
    more: bool,
}

impl<'c> UsageAnalysis<'c> {
    fn new(all: &'c [ScriptFunction]) -> UsageAnalysis<'c> {
        UsageAnalysis {
            all,
            seen: Vec::new(),
            payload: false,
            meta: false,
            variables: false,
            functions: false,
            more: false,
        }
    }

    fn member_of_msg(&mut self, name: &str) {
        match name {
            PAYLOAD => self.payload = true,
            META => self.meta = true,
            _ => self.more = true,
        }
    }

    fn exprs<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>) {
        exprs.into_iter().for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Constant(_) | Expr::Regex(_) => {}
            Expr::Local(MSG) => self.more = true,
            Expr::Local(_) => self.variables = true,
            Expr::Member(holder, name) | Expr::OptionalMember(holder, name) => match &**holder {
                Expr::Local(MSG) => self.member_of_msg(name),
                holder => self.expr(holder),
            },
            Expr::Index(a, b)
            | Expr::OptionalIndex(a, b)
            | Expr::Binary(_, a, b)
            | Expr::And(a, b)
            | Expr::Or(a, b)
            | Expr::Coalesce(a, b) => self.exprs([&**a, b]),
            Expr::Conditional(a, b, c) => self.exprs([&**a, b, c]),
            Expr::Chain(a)
            | Expr::Not(a)
            | Expr::Negate(a)
            | Expr::ToNumber(a)
            | Expr::BitNot(a)
            | Expr::TypeOf(a)
            | Expr::Void(a) => self.expr(a),
            Expr::Template(_, values) | Expr::Sequence(values) => self.exprs(values),
            Expr::Array(elements) => self.elements(elements),
            Expr::Object(properties) => {
                for property in properties {
                    match property {
                        Property::Named(_, value) | Property::Spread(value) => self.expr(value),
                        Property::Computed(key, value) => self.exprs([key, value]),
                    }
                }
            }
            Expr::Delete(target) => self.target(target),
            Expr::Assign(target, value)
            | Expr::AssignBinary(target, _, value)
            | Expr::AssignLogical(target, _, value) => {
                self.target(target);
                self.expr(value);
            }
            Expr::Update { target, .. } => self.target(target),
            Expr::Call {
                receiver, arguments, ..
            } => {
                self.expr(receiver);
                for argument in arguments {
                    match argument {
                        Argument::One(value) | Argument::Spread(value) => self.expr(value),
                        Argument::Function(number) => self.function(*number),
                        Argument::Convert(_) => {}
                    }
                }
            }
            Expr::Global(global, arguments) => {
                self.more |= *global == Global::DateNow;
                self.elements(arguments);
            }
            Expr::Function(number, arguments) => {
                self.function(*number);
                self.exprs(arguments);
            }
            Expr::Date(arguments) => {
                self.more |= arguments.is_empty();
                self.exprs(arguments);
            }
            Expr::Console(..) | Expr::Cache(..) => self.more = true,
        }
    }

    fn elements(&mut self, elements: &[Element]) {
        self.exprs(elements.iter().map(|element| match element {
            Element::One(value) | Element::Spread(value) => value,
        }));
    }

    fn target(&mut self, target: &Target) {
        match target {
            Target::Local(_) => self.variables = true,
            // The message gets another payload, other metadata, or an additional member.
            Target::Member(Expr::Local(MSG), _) => self.more = true,
            Target::Member(holder, _) => self.expr(holder),
            Target::Index(holder, key) => self.exprs([holder, key]),
        }
    }

    fn function(&mut self, number: usize) {
        self.functions = true;
        if self.seen.contains(&number) {
            return;
        }
        self.seen.push(number);
        let Some(function) = self.all.get(number) else {
            return;
        };
        for parameter in &function.parameters {
            self.pattern(&parameter.pattern);
            self.exprs(&parameter.default);
        }
        for statement in &function.body {
            match statement {
                // In a function, this is not the end of the script.
                Stmt::Return(value) => self.exprs(value),
                // A deeper return is treated as an early return of the script: no split is better than a wrong one.
                other => self.statement(other),
            }
        }
    }

    fn pattern(&mut self, pattern: &Pattern) {
        self.variables = true;
        match pattern {
            Pattern::Slot(_) => {}
            Pattern::Object(members) => {
                for (key, bound) in members {
                    if let super::ir::Key::Computed(key) = key {
                        self.expr(key);
                    }
                    self.pattern(&bound.pattern);
                    self.exprs(&bound.default);
                }
            }
            Pattern::Array(elements, rest) => {
                for bound in elements.iter().flatten() {
                    self.pattern(&bound.pattern);
                    self.exprs(&bound.default);
                }
                rest.iter().for_each(|rest| self.pattern(rest));
            }
        }
    }

    fn block(&mut self, block: &Block) {
        block.body.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Expr(expr) => self.expr(expr),
            Stmt::Declare(pattern, value) => {
                self.pattern(pattern);
                self.expr(value);
            }
            Stmt::Reach(_) => self.variables = true,
            Stmt::If(test, then, otherwise) => {
                self.expr(test);
                self.statement(then);
                otherwise.iter().for_each(|otherwise| self.statement(otherwise));
            }
            Stmt::Block(block) => self.block(block),
            Stmt::For {
                init,
                test,
                update,
                body,
            } => {
                init.iter().for_each(|init| self.statement(init));
                self.exprs(test.iter().chain(update));
                self.block(body);
            }
            Stmt::ForOf(pattern, list, body) | Stmt::ForIn(pattern, list, body) => {
                self.pattern(pattern);
                self.expr(list);
                self.block(body);
            }
            Stmt::While(test, body) | Stmt::DoWhile(body, test) => {
                self.expr(test);
                self.block(body);
            }
            Stmt::Switch { value, cases, body } => {
                self.expr(value);
                self.exprs(cases.iter().filter_map(|(test, _)| test.as_ref()));
                self.block(body);
            }
            Stmt::Break | Stmt::Continue => {}
            Stmt::Return(_) | Stmt::Bail(_) => self.more = true,
            Stmt::Try(block, last) => {
                self.block(block);
                last.iter().for_each(|last| self.block(last));
            }
        }
    }
}
