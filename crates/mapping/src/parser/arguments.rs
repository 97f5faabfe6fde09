//! Arguments of functions and methods: binds what the call has written to parameters.

use thalweg_record::Value;

use crate::error::{SyntaxError, unknown};
use crate::expr::{Expr, Lambda};
use crate::view;

/// The type of a parameter. Literals are checked when the mapping is compiled, computed arguments when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParamKind {
    Any,
    Text,
    Integer,
    Bool,
    /// Evaluated for values that the method supplies: `name -> ...`, or an expression in which `this` is the value.
    Query,
}

pub(crate) struct Param {
    pub name: &'static str,
    pub kind: ParamKind,
    pub is_needed: bool,
}

impl Param {
    pub const fn needed(name: &'static str, kind: ParamKind) -> Param {
        Param {
            name,
            kind,
            is_needed: true,
        }
    }

    pub const fn optional(name: &'static str, kind: ParamKind) -> Param {
        Param {
            name,
            kind,
            is_needed: false,
        }
    }
}

/// An argument as it was written.
pub(crate) struct CallArgument {
    pub name: Option<String>,
    pub value: Lambda,
    pub at: usize,
}

/// What is wrong with the arguments of one call.
pub(crate) struct CallMistakes(pub Vec<SyntaxError>);

impl From<SyntaxError> for CallMistakes {
    fn from(mistake: SyntaxError) -> CallMistakes {
        CallMistakes(vec![mistake])
    }
}

/// The arguments of one call, in the order of the parameters.
pub(crate) struct Arguments {
    slots: Vec<Option<CallArgument>>,
    /// Arguments beyond the parameters of a variadic call.
    pub rest: Vec<Expr>,
    /// The position of the call.
    call_at: usize,
}

impl Arguments {
    /// `call` is the callee for error messages, as in "method `split`".
    pub fn bind(
        call: &str,
        call_at: usize,
        params: &[Param],
        variadic: bool,
        written: Vec<CallArgument>,
    ) -> Result<Arguments, CallMistakes> {
        let mut bound = Arguments {
            slots: params.iter().map(|_| None).collect(),
            rest: Vec::new(),
            call_at,
        };
        let mut mistakes = Vec::new();
        for (position, argument) in written.into_iter().enumerate() {
            let added = bound.add(call, params, variadic, position, argument);
            mistakes.extend(added.err());
        }
        // The name of a needed argument may be what is wrong with another one.
        if mistakes.is_empty() {
            let params = params.iter().zip(&bound.slots);
            let missing = params.filter(|(param, slot)| param.is_needed && slot.is_none());
            mistakes.extend(missing.map(|(param, _)| {
                let message = format!("{call} needs the argument `{}`", param.name);
                SyntaxError::new(call_at, message)
            }));
        }
        match mistakes.is_empty() {
            true => Ok(bound),
            false => Err(CallMistakes(mistakes)),
        }
    }

    /// Puts an argument where its name or position says.
    fn add(
        &mut self,
        call: &str,
        params: &[Param],
        variadic: bool,
        position: usize,
        argument: CallArgument,
    ) -> Result<(), SyntaxError> {
        let at = argument.at;
        let found = match &argument.name {
            None => Some(position),
            Some(name) => params.iter().position(|param| param.name == name),
        };
        let Some((slot, param)) = found.and_then(|found| Some((self.slots.get_mut(found)?, params.get(found)?))) else {
            if let Some(name) = &argument.name {
                let names = params.iter().map(|param| param.name);
                return Err(SyntaxError::new(
                    at,
                    unknown(&format!("argument of {call}"), name, names),
                ));
            }
            if variadic {
                self.rest.push(plain(argument.value, at, call)?);
                return Ok(());
            }
            let message = match params.len() {
                0 => format!("{call} takes no arguments"),
                count => format!("{call} takes at most {count} argument(s): {}", names(params)),
            };
            return Err(SyntaxError::new(at, message));
        };
        let fits = check_kind(call, param, &argument);
        if slot.replace(argument).is_some() {
            let message = format!("argument `{}` of {call} is given twice", param.name);
            return Err(SyntaxError::new(at, message));
        }
        fits
    }

    /// Returns the position of an argument, or of the call if it is not given.
    pub fn at(&self, index: usize) -> usize {
        self.slots
            .get(index)
            .and_then(Option::as_ref)
            .map_or(self.call_at, |argument| argument.at)
    }

    pub fn optional_query(&mut self, index: usize) -> Result<Option<Lambda>, SyntaxError> {
        Ok(self
            .slots
            .get_mut(index)
            .and_then(Option::take)
            .map(|argument| argument.value))
    }

    pub fn query(&mut self, index: usize) -> Result<Lambda, SyntaxError> {
        let call_at = self.call_at;
        let query = self.optional_query(index)?;
        query.ok_or_else(|| SyntaxError::new(call_at, format!("argument {} is missing", index + 1)))
    }

    pub fn value(&mut self, index: usize) -> Result<Expr, SyntaxError> {
        self.query(index).map(|query| query.body)
    }

    pub fn optional(&mut self, index: usize) -> Result<Option<Expr>, SyntaxError> {
        Ok(self.optional_query(index)?.map(|query| query.body))
    }

    /// Returns an integer that must be known at compile time.
    pub fn constant(&mut self, index: usize, default: i64) -> Result<i64, SyntaxError> {
        let at = self.at(index);
        let value = match self.optional(index)? {
            None => Some(default),
            Some(Expr::Literal(value)) => view::integer(&value),
            Some(_) => None,
        };
        value.ok_or_else(|| SyntaxError::new(at, "this argument must be a literal integer"))
    }
}

fn names(params: &[Param]) -> String {
    let names: Vec<&str> = params.iter().map(|param| param.name).collect();
    names.join(", ")
}

/// Returns the expression of an argument that must be a value.
fn plain(value: Lambda, at: usize, call: &str) -> Result<Expr, SyntaxError> {
    if value.named {
        return Err(SyntaxError::new(
            at,
            format!("{call} takes values here, not a query (`name -> ...`)"),
        ));
    }
    Ok(value.body)
}

fn check_kind(call: &str, param: &Param, argument: &CallArgument) -> Result<(), SyntaxError> {
    if param.kind == ParamKind::Query {
        return Ok(());
    }
    if argument.value.named {
        let message = format!(
            "argument `{}` of {call} is a value, not a query (`name -> ...`)",
            param.name
        );
        return Err(SyntaxError::new(argument.at, message));
    }
    let Expr::Literal(literal) = &argument.value.body else {
        return Ok(());
    };
    let (fits, wanted) = match param.kind {
        ParamKind::Text => (view::text(literal).is_some(), "a string"),
        ParamKind::Integer => (view::integer(literal).is_some(), "an integer"),
        ParamKind::Bool => (matches!(literal, Value::Bool(_)), "true or false"),
        ParamKind::Any | ParamKind::Query => (true, ""),
    };
    if fits {
        return Ok(());
    }
    let (name, kind) = (param.name, view::kind(literal));
    Err(SyntaxError::new(
        argument.at,
        format!("argument `{name}` of {call} must be {wanted}, not {kind}"),
    ))
}
