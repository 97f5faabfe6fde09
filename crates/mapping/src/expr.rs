//! The expression tree and its evaluation.
//!
//! Long chains (operators of one level, methods on a value) are lists, not nested nodes, so the depth of the tree is
//! the nesting visible in the source, which the parser bounds. Evaluation recurses no deeper than that.

use thalweg_record::{Metadata, Object, Text, Value};

use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::functions::Function;
use crate::methods::{self, Method};
use crate::operators::{self, Op, OperationError};
use crate::path::Path;
use crate::root::Root;
use crate::view;

pub(crate) enum Expr {
    Literal(Value),
    /// `this.a.b`
    This(Path),
    /// `root.a.b`: the new document in its current state.
    Root(Path),
    /// `json("a.b")`: the input document, whatever `this` is bound to.
    Input(Path),
    /// `meta("key")`: the metadata of the input; in a mutation, the metadata in its current state.
    Meta(Text),
    AllMeta,
    /// `@key`: the new metadata in its current state.
    NewMeta(Text),
    AllNewMeta,
    Variable(usize, Text),
    /// The value of the `name ->` query at this depth.
    Named(usize, Text),
    Array(Box<[Expr]>),
    Object(Box<[(Expr, Expr)]>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Chain(Box<OperatorChain>),
    All(Box<[Expr]>),
    Any(Box<[Expr]>),
    If(Box<IfExpr>),
    Match(Box<MatchExpr>),
    Call(&'static str, Box<Function>),
    Steps(Box<PostfixChain>),
}

/// Operators of one precedence level, from left to right.
pub(crate) struct OperatorChain {
    pub first: Expr,
    pub rest: Box<[(Op, Expr)]>,
}

pub(crate) struct IfExpr {
    pub branches: Box<[(Expr, Expr)]>,
    pub otherwise: Option<Expr>,
}

pub(crate) struct MatchExpr {
    pub subject: Option<Expr>,
    pub arms: Box<[(MatchPattern, Expr)]>,
}

pub(crate) enum MatchPattern {
    Any,
    Equal(Value),
    When(Expr),
}

/// A value followed by steps: fields, methods, `.(query)`.
pub(crate) struct PostfixChain {
    pub base: Expr,
    pub steps: Vec<PostfixStep>,
}

pub(crate) enum PostfixStep {
    Field(Path),
    Method(&'static str, Method),
    Map(Lambda),
}

/// A query that receives its value when called, bound to `name` or to `this`.
pub(crate) struct Lambda {
    pub named: bool,
    pub body: Expr,
}

impl Expr {
    pub fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        Ok(ExprValue::Value(match self {
            Expr::Literal(value) => value.clone(),
            Expr::This(path) => context.this(path)?,
            Expr::Input(path) => context.input(path)?,
            Expr::Root(path) => match &context.root {
                Root::Value(root) => path.read(root),
                Root::Nothing | Root::Deleted => Value::Null,
            },
            Expr::Meta(key) => meta_value(context.meta(), key),
            Expr::AllMeta => all_meta(context.meta()),
            Expr::NewMeta(key) => meta_value(context.new_meta(), key),
            Expr::AllNewMeta => all_meta(context.new_meta()),
            Expr::Variable(slot, name) => match context.variables.get(*slot) {
                Some(Some(value)) => value.clone(),
                _ => return Err(Fault::text(format!("variable `{name}` is not set"))),
            },
            Expr::Named(depth, _) => context.named.get(*depth).cloned().unwrap_or(Value::Null),
            Expr::Array(elements) => eval_array(elements, context)?,
            Expr::Object(members) => eval_object(members, context)?,
            Expr::Not(inner) => Value::Bool(!inner.truth(context)?),
            Expr::Negate(inner) => {
                let value = inner.value("number", context)?;
                operators::negate(&value).map_err(|fault| fault.from(|| inner.describe()))?
            }
            Expr::Chain(chain) => return chain.eval(context),
            Expr::All(terms) => {
                for term in terms {
                    if !term.truth(context)? {
                        return Ok(ExprValue::Value(Value::Bool(false)));
                    }
                }
                Value::Bool(true)
            }
            Expr::Any(terms) => {
                for term in terms {
                    if term.truth(context)? {
                        return Ok(ExprValue::Value(Value::Bool(true)));
                    }
                }
                Value::Bool(false)
            }
            Expr::If(branches) => return branches.eval(context),
            Expr::Match(cases) => return cases.eval(context),
            Expr::Call(_, function) => return function.eval(context),
            Expr::Steps(steps) => return steps.eval(context),
        }))
    }

    /// Evaluates where only a value is allowed.
    pub fn value(&self, wanted: &'static str, context: &mut EvalContext<'_>) -> EvalResult<Value> {
        let value = self.eval(context)?.value(wanted);
        value.map_err(|fault| fault.from(|| self.describe()))
    }

    pub fn truth(&self, context: &mut EvalContext<'_>) -> EvalResult<bool> {
        match self.value("bool", context)? {
            Value::Bool(truth) => Ok(truth),
            other => Err(view::mismatch("bool", &other).from(|| self.describe())),
        }
    }

    /// Names the source of the value for error messages.
    pub fn describe(&self) -> String {
        match self {
            Expr::Literal(value) => format!("{} literal", view::kind(value)),
            Expr::This(path) => format!("field `{}`", path.show("this")),
            Expr::Root(path) => format!("field `{}`", path.show("root")),
            Expr::Input(_) => "function `json`".to_owned(),
            Expr::Meta(key) | Expr::NewMeta(key) => format!("metadata `{key}`"),
            Expr::AllMeta | Expr::AllNewMeta => "the metadata".to_owned(),
            Expr::Variable(_, name) => format!("variable `{name}`"),
            Expr::Named(_, name) => format!("`{name}`"),
            Expr::Array(_) => "array literal".to_owned(),
            Expr::Object(_) => "object literal".to_owned(),
            Expr::If(_) => "if expression".to_owned(),
            Expr::Match(_) => "match expression".to_owned(),
            Expr::Call(name, _) => format!("function `{name}`"),
            Expr::Steps(steps) => steps.describe(steps.steps.len()),
            Expr::Not(_) | Expr::Negate(_) | Expr::Chain(_) | Expr::All(_) | Expr::Any(_) => "expression".to_owned(),
        }
    }

    /// Whether the value is one of the metadata, perhaps with an alternative: `@key`, `meta("key") | 0`, `@key.or(0)`.
    fn is_metadata(&self) -> bool {
        match self {
            Expr::Meta(_) | Expr::NewMeta(_) => true,
            Expr::Call(_, function) => matches!(**function, Function::Meta(_)),
            Expr::Chain(chain) => {
                let is_fallback = chain.rest.iter().all(|(op, _)| *op == Op::Coalesce);
                is_fallback && chain.operands().any(Expr::is_metadata)
            }
            Expr::Steps(steps) => {
                let keeps =
                    |step: &PostfixStep| matches!(step, PostfixStep::Method(_, Method::Or(_) | Method::Catch(_)));
                steps.base.is_metadata() && steps.steps.iter().all(keeps)
            }
            _ => false,
        }
    }

    /// Whether the value is part of the input or of the source text, so that it cannot exceed what already exists.
    pub fn is_given(&self, in_place: bool) -> bool {
        match self {
            Expr::Literal(_) | Expr::Input(_) => true,
            Expr::This(_) | Expr::Meta(_) | Expr::AllMeta => !in_place,
            _ => false,
        }
    }
}

pub(crate) fn meta_value(meta: &Metadata, key: &str) -> Value {
    meta.get(key).map_or(Value::Null, |text| Value::text(Text::from(text)))
}

/// All metadata as an object.
fn all_meta(meta: &Metadata) -> Value {
    let members = meta
        .iter()
        .map(|(key, value)| (Text::new(key), Value::text(Text::from(value))));
    members.collect::<Object>().into()
}

fn eval_array(elements: &[Expr], context: &mut EvalContext<'_>) -> EvalResult<Value> {
    context.spend_elements(elements.len())?;
    let mut values = Vec::with_capacity(elements.len());
    for element in elements {
        // deleted() and nothing() add no element.
        if let ExprValue::Value(value) = element.eval(context)? {
            values.push(value);
        }
    }
    Ok(values.into())
}

fn eval_object(members: &[(Expr, Expr)], context: &mut EvalContext<'_>) -> EvalResult<Value> {
    context.spend_elements(members.len())?;
    let mut object = Vec::with_capacity(members.len());
    for (name, value) in members {
        let name = match name {
            Expr::Literal(Value::Text(name)) => name.clone(),
            computed => {
                let name = computed.value("string", context)?;
                let text = view::need_text(&name).map_err(|fault| fault.from(|| computed.describe()));
                Text::from(text?)
            }
        };
        if let ExprValue::Value(value) = value.eval(context)? {
            object.push((name, value));
        }
    }
    Ok(object.into_iter().collect::<Object>().into())
}

impl OperatorChain {
    fn operands(&self) -> impl Iterator<Item = &Expr> {
        std::iter::once(&self.first).chain(self.rest.iter().map(|(_, operand)| operand))
    }

    fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        let mut left = self.first.eval(context);
        for (at, (op, right)) in self.rest.iter().enumerate() {
            left = match (op, left) {
                (Op::Coalesce, Ok(value)) if !value.is_absent() => Ok(value),
                (Op::Coalesce, _) => right.eval(context),
                (_, Err(fault)) => Err(fault),
                (op, Ok(left)) => self.operate(at, *op, left, right, context),
            };
        }
        left
    }

    fn operate(
        &self,
        at: usize,
        op: Op,
        left: ExprValue,
        right: &Expr,
        context: &mut EvalContext<'_>,
    ) -> EvalResult<ExprValue> {
        let right_value = right.eval(context)?;
        let first = (at == 0).then_some(&self.first);
        let (left, right_value) = numbers_of_metadata((left, first), (right_value, right));
        if let (Op::Equal | Op::Unequal, ExprValue::Value(left @ (Value::Array(_) | Value::Object(_)))) = (op, &left) {
            // Shared parts are compared each time they appear, so the comparison is charged as if the value were
            // printed.
            context.check(left)?;
        }
        let refusal = match (&left, &right_value) {
            (ExprValue::Value(left), ExprValue::Value(right)) => match operators::operate(op, left, right) {
                Ok(value) => {
                    context.spend(built_bytes(&value))?;
                    return Ok(ExprValue::Value(value));
                }
                Err(refusal) => refusal,
            },
            _ => OperationError::Types,
        };
        match refusal {
            OperationError::Fault(fault) => Err(fault),
            OperationError::Types => {
                let source = if at == 0 {
                    self.first.describe()
                } else {
                    "expression".to_owned()
                };
                Err(operators::unfit(
                    op,
                    (left.kind(), source),
                    (right_value.kind(), right.describe()),
                ))
            }
        }
    }
}

/// Metadata is text. Where the other operand is a number, the text of a number is one.
fn numbers_of_metadata(
    (left, left_source): (ExprValue, Option<&Expr>),
    (right, right_source): (ExprValue, &Expr),
) -> (ExprValue, ExprValue) {
    let is_number = |value: &ExprValue| matches!(value, ExprValue::Value(value) if view::Number::of(value).is_some());
    let number = |value: ExprValue, source: &Expr| match value {
        ExprValue::Value(text @ Value::Text(_)) if source.is_metadata() => {
            ExprValue::Value(methods::number_of_text(&text).unwrap_or(text))
        }
        other => other,
    };
    match (left_source, is_number(&left), is_number(&right)) {
        (_, true, false) => (left, number(right, right_source)),
        (Some(source), false, true) => (number(left, source), right),
        _ => (left, right),
    }
}

/// The size of a value that an operator built.
fn built_bytes(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

impl IfExpr {
    fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        for (condition, branch) in &self.branches {
            if condition.truth(context)? {
                return branch.eval(context);
            }
        }
        match &self.otherwise {
            Some(branch) => branch.eval(context),
            None => Ok(ExprValue::Nothing),
        }
    }
}

impl MatchExpr {
    fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        match &self.subject {
            Some(subject) => {
                let value = subject.value("matched", context)?;
                let number = match subject.is_metadata() {
                    true => methods::number_of_text(&value),
                    false => None,
                };
                let subject = (&value, number.as_ref());
                context.bind(value.clone(), |context| self.first_match(Some(subject), context))
            }
            None => self.first_match(None, context),
        }
    }

    /// A subject that is metadata comes with the number that its text is.
    fn first_match(
        &self,
        subject: Option<(&Value, Option<&Value>)>,
        context: &mut EvalContext<'_>,
    ) -> EvalResult<ExprValue> {
        for (pattern, branch) in &self.arms {
            let matches = match pattern {
                MatchPattern::Any => true,
                MatchPattern::Equal(literal) => match subject {
                    Some((subject, number)) => {
                        operators::equal(subject, literal) || number.is_some_and(|n| operators::equal(n, literal))
                    }
                    None => operators::equal(&context.this(&Path::default())?, literal),
                },
                MatchPattern::When(condition) => condition.truth(context)?,
            };
            if matches {
                return branch.eval(context);
            }
        }
        Ok(ExprValue::Nothing)
    }
}

impl PostfixChain {
    fn eval(&self, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        let mut value = self.base.eval(context);
        for (at, step) in self.steps.iter().enumerate() {
            value = match step {
                PostfixStep::Field(path) => value.map(|value| match value {
                    ExprValue::Value(value) => ExprValue::Value(path.read(&value)),
                    absent => absent,
                }),
                PostfixStep::Method(_, method) => method.eval(value, context),
                PostfixStep::Map(query) => match value {
                    Ok(ExprValue::Value(value)) => context.call(query, value),
                    other => other,
                },
            }
            .map_err(|fault| fault.from(|| self.describe(at)));
        }
        value
    }

    /// Names the source of the value before step `at`.
    fn describe(&self, at: usize) -> String {
        match at.checked_sub(1).and_then(|before| self.steps.get(before)) {
            None => self.base.describe(),
            Some(PostfixStep::Field(path)) => {
                let start = match &self.base {
                    Expr::Variable(_, name) if at == 1 => format!("${name}"),
                    Expr::Named(_, name) if at == 1 => name.to_string(),
                    _ => String::new(),
                };
                format!("field `{}`", path.show(&start).trim_start_matches('.'))
            }
            Some(PostfixStep::Method(name, _)) => format!("method `{name}`"),
            Some(PostfixStep::Map(_)) => "bracketed query".to_owned(),
        }
    }
}
