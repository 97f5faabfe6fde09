//! Compiles source text for [`super::eval`], for scripts within the subset.
//!
//! The subset is what can be done exactly as QuickJS does it. Functions of the script are known by name and are never
//! values: they are called, or passed to a method that calls them while it runs. So no variable outlives the block that
//! declares it, and every one has a fixed slot in a frame.

mod calls;
mod statements;

use oxc_allocator::Allocator;
use oxc_ast::ast;
use oxc_parser::{ParseOptions, Parser};
use oxc_span::{GetSpan, SourceType, Span};
use oxc_syntax::operator::{AssignmentOperator, BinaryOperator, LogicalOperator, UnaryOperator, UpdateOperator};
use thalweg_kit::threads;
use thalweg_record::{Text, key};

use super::heap::{self, Js};
use super::ir::{
    Binary, BindingElement, Element, Expr, Key, Logical, Pattern, Property, ScriptFunction, Target, VariableSlot,
};
use super::regex::ScriptRegex;
use super::split::{MSG, Split, split};

/// Why a script is not run natively: the construct, and its position. Line and column count from 1 within the script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{construct} (line {line}, column {column})")]
pub struct OffendingConstruct {
    pub construct: String,
    pub line: usize,
    pub column: usize,
}

/// A compiled script. Function 0 is the script itself.
#[derive(Debug)]
pub(super) struct Code {
    pub functions: Vec<ScriptFunction>,
    pub regexes: Vec<ScriptRegex>,
    /// Why its result is specific to one message, as far as the source shows; `None` if it reads only metadata of the
    /// tag.
    pub varies: Option<OffendingConstruct>,
    /// It reads the clock.
    pub is_timed: bool,
    /// Set if it splits into two halves.
    pub split: Option<Split>,
}

/// Compiles a script with its wrapping (see [`Wrapping`](crate::quickjs)).
pub(super) fn compile(before: &str, code: &str, after: &str) -> Result<Code, OffendingConstruct> {
    let refused = |construct: &str| OffendingConstruct {
        construct: construct.to_owned(),
        line: 1,
        column: 1,
    };
    if code.len() > SOURCE_MAX {
        return Err(refused("a script of more than 64 KiB"));
    }
    let compiled = with_parser_stack(|| parse_and_compile(before, code, after));
    compiled.unwrap_or_else(|| Err(refused("syntax that only QuickJS can parse")))
}

/// Parses on a separate thread with a large stack. `None` if that failed.
pub(crate) fn with_parser_stack<T: Send>(parse: impl FnOnce() -> T + Send) -> Option<T> {
    threads::run_with_stack(PARSER_STACK, parse)
}

fn parse_and_compile(before: &str, code: &str, after: &str) -> Result<Code, OffendingConstruct> {
    let source = format!("{before}{code}{after}");
    let allocator = Allocator::default();
    let options = ParseOptions {
        preserve_parens: false,
        parse_regular_expression: true,
        ..ParseOptions::default()
    };
    let parsed = Parser::new(&allocator, &source, SourceType::script())
        .with_options(options)
        .parse();
    let mut compiler = Compiler {
        source: &source,
        before: before.len(),
        functions: Vec::new(),
        regexes: Vec::new(),
        scopes: Vec::new(),
        frames: Vec::new(),
        varies: None,
        is_timed: false,
        depth: 0,
    };
    let outer = match parsed.program.body.first() {
        Some(ast::Statement::ExpressionStatement(statement))
            if parsed.diagnostics.is_empty() && parsed.program.body.len() == 1 =>
        {
            &statement.expression
        }
        _ => return Err(compiler.outside("syntax that only QuickJS can parse", Span::default())),
    };
    match outer {
        ast::Expression::FunctionExpression(function) => compiler.script(function)?,
        other => return Err(compiler.outside("syntax that only QuickJS can parse", other.span())),
    }
    Ok(Code {
        split: split(&compiler.functions),
        functions: compiler.functions,
        regexes: compiler.regexes,
        varies: compiler.varies,
        is_timed: compiler.is_timed,
    })
}

type CompileResult<T> = Result<T, OffendingConstruct>;

/// What a name refers to.
#[derive(Clone, Copy, Debug)]
enum Binding {
    Variable {
        slot: VariableSlot,
        is_constant: bool,
    },
    /// A function. If it is declared by `const`, the slot says whether the declaration was reached.
    Function {
        number: usize,
        reached: Option<VariableSlot>,
    },
}

#[derive(Default)]
struct Scope {
    names: Vec<(String, Binding)>,
}

/// The function that is being compiled.
struct Frame {
    level: u8,
    slots: u16,
}

struct Compiler<'s> {
    source: &'s str,
    before: usize,
    functions: Vec<ScriptFunction>,
    regexes: Vec<ScriptRegex>,
    scopes: Vec<Scope>,
    frames: Vec<Frame>,
    varies: Option<OffendingConstruct>,
    is_timed: bool,
    depth: usize,
}

/// Maximum nesting of functions.
const LEVELS_MAX: usize = super::eval::LEVELS;
const SLOTS_MAX: u16 = 1 << 12;
/// Maximum nesting of expressions and statements: running them takes stack, for each call of a function of the script.
const NESTED_MAX: usize = 100;
/// Longer scripts are not parsed here.
pub(crate) const SOURCE_MAX: usize = 64 << 10;
/// The parser recurses as deep as the source nests, at most once per byte.
const PARSER_STACK: usize = 256 << 20;

impl Compiler<'_> {
    fn outside(&self, construct: impl Into<String>, span: Span) -> OffendingConstruct {
        let at = (span.start as usize).max(self.before);
        let text = self.source.get(self.before..at).unwrap_or_default();
        let line = text.matches('\n').count() + 1;
        let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        OffendingConstruct {
            construct: construct.into(),
            line,
            column,
        }
    }

    fn refuse<T>(&self, construct: impl Into<String>, span: Span) -> CompileResult<T> {
        Err(self.outside(construct, span))
    }

    /// Records why a result is specific to one message.
    fn varies(&mut self, because: &str, span: Span) {
        if self.varies.is_none() {
            self.varies = Some(self.outside(because, span));
        }
    }

    fn new_slot(&mut self, span: Span) -> CompileResult<VariableSlot> {
        match self.frames.last_mut() {
            Some(frame) if frame.slots < SLOTS_MAX => {
                frame.slots += 1;
                Ok(VariableSlot {
                    level: frame.level,
                    index: frame.slots - 1,
                })
            }
            _ => self.refuse("thousands of variables", span),
        }
    }

    fn declare(&mut self, name: &str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.names.push((name.to_owned(), binding));
        }
    }

    fn lookup(&self, name: &str) -> Option<Binding> {
        let mut scopes = self.scopes.iter().rev();
        scopes.find_map(|scope| {
            scope
                .names
                .iter()
                .rev()
                .find(|(n, _)| n == name)
                .map(|(_, binding)| *binding)
        })
    }

    /// Whether the name refers to the built-in and is not declared by the script.
    fn is_global(&self, name: &str) -> bool {
        self.lookup(name).is_none()
    }

    fn exprs<'e, 'a: 'e>(
        &mut self,
        expressions: impl IntoIterator<Item = &'e ast::Expression<'a>>,
    ) -> CompileResult<Vec<Expr>> {
        expressions
            .into_iter()
            .map(|expression| self.expr(expression))
            .collect()
    }

    fn boxed(&mut self, expression: &ast::Expression<'_>) -> CompileResult<Box<Expr>> {
        self.expr(expression).map(Box::new)
    }

    /// Enters one more nesting level; `self.depth -= 1` leaves it.
    fn deeper(&mut self, span: Span) -> CompileResult<()> {
        if self.depth >= NESTED_MAX {
            return self.refuse("a deeply nested or very long expression", span);
        }
        self.depth += 1;
        Ok(())
    }

    fn expr(&mut self, expression: &ast::Expression<'_>) -> CompileResult<Expr> {
        self.deeper(expression.span())?;
        let compiled = self.one_expr(expression);
        self.depth -= 1;
        compiled
    }

    fn one_expr(&mut self, expression: &ast::Expression<'_>) -> CompileResult<Expr> {
        use ast::Expression as E;
        let span = expression.span();
        Ok(match expression {
            E::BooleanLiteral(literal) => Expr::Constant(Js::Bool(literal.value)),
            E::NullLiteral(_) => Expr::Constant(Js::Null),
            E::NumericLiteral(literal) => Expr::Constant(Js::Number(literal.value)),
            E::StringLiteral(literal) if literal.lone_surrogates => return self.refuse("half a surrogate pair", span),
            E::StringLiteral(literal) => Expr::Constant(literal.value.as_str().into()),
            E::TemplateLiteral(template) => self.template(template)?,
            E::RegExpLiteral(literal) => {
                let regex = ScriptRegex::new(&literal.regex).map_err(|why| self.outside(why, span))?;
                self.regexes.push(regex);
                Expr::Regex(self.regexes.len() - 1)
            }
            E::Identifier(identifier) => self.name(identifier.name.as_str(), span)?,
            E::ArrayExpression(array) => Expr::Array(self.elements(&array.elements)?),
            E::ObjectExpression(object) => Expr::Object(self.properties(object)?),
            E::UnaryExpression(unary) => self.unary(unary)?,
            E::BinaryExpression(binary) => {
                let Some(operator) = binary_operator(binary.operator) else {
                    return self.refuse("instanceof", span);
                };
                Expr::Binary(operator, self.boxed(&binary.left)?, self.boxed(&binary.right)?)
            }
            E::LogicalExpression(logical) => {
                let (left, right) = (self.boxed(&logical.left)?, self.boxed(&logical.right)?);
                match logical.operator {
                    LogicalOperator::And => Expr::And(left, right),
                    LogicalOperator::Or => Expr::Or(left, right),
                    LogicalOperator::Coalesce => Expr::Coalesce(left, right),
                }
            }
            E::ConditionalExpression(conditional) => Expr::Conditional(
                self.boxed(&conditional.test)?,
                self.boxed(&conditional.consequent)?,
                self.boxed(&conditional.alternate)?,
            ),
            E::AssignmentExpression(assignment) => self.assignment(assignment)?,
            E::UpdateExpression(update) => Expr::Update {
                target: Box::new(self.simple_target(&update.argument)?),
                by: match update.operator {
                    UpdateOperator::Increment => 1.0,
                    UpdateOperator::Decrement => -1.0,
                },
                prefix: update.prefix,
            },
            E::SequenceExpression(sequence) => Expr::Sequence(self.exprs(&sequence.expressions)?),
            E::CallExpression(call) => self.call(call)?,
            E::ChainExpression(chain) => Expr::Chain(Box::new(match &chain.expression {
                ast::ChainElement::CallExpression(call) => self.call(call)?,
                element => match element.as_member_expression() {
                    Some(member) => self.member(member)?,
                    None => return self.refuse("a type", span),
                },
            })),
            E::NewExpression(new) => self.construction(new)?,
            E::ArrowFunctionExpression(_) | E::FunctionExpression(_) => {
                return self.refuse("a function as a value", span);
            }
            E::ThisExpression(_) => return self.refuse("this", span),
            E::ClassExpression(_) => return self.refuse("a class", span),
            E::BigIntLiteral(_) => return self.refuse("a BigInt", span),
            E::TaggedTemplateExpression(_) => return self.refuse("a tagged template", span),
            E::AwaitExpression(_) => return self.refuse("await", span),
            E::YieldExpression(_) => return self.refuse("yield", span),
            other => match other.as_member_expression() {
                Some(member) => self.member(member)?,
                None => return self.refuse("an unusual expression", span),
            },
        })
    }

    /// A name that is read as a value.
    fn name(&mut self, name: &str, span: Span) -> CompileResult<Expr> {
        match self.lookup(name) {
            Some(Binding::Variable { slot, .. }) => {
                if slot == MSG {
                    self.varies("uses msg as a whole", span);
                }
                return Ok(Expr::Local(slot));
            }
            Some(Binding::Function { .. }) => return self.refuse("a function as a value", span),
            None => {}
        }
        Ok(Expr::Constant(match name {
            "undefined" => Js::Undefined,
            "NaN" => Js::Number(f64::NAN),
            "Infinity" => Js::Number(f64::INFINITY),
            name => return self.refuse(format!("{name} as a value"), span),
        }))
    }

    fn template(&mut self, template: &ast::TemplateLiteral<'_>) -> CompileResult<Expr> {
        let mut texts = Vec::with_capacity(template.quasis.len());
        for quasi in &template.quasis {
            match &quasi.value.cooked {
                Some(text) if !quasi.lone_surrogates => texts.push(Text::new(text.as_str())),
                _ => return self.refuse("half a surrogate pair", template.span),
            }
        }
        Ok(Expr::Template(texts, self.exprs(&template.expressions)?))
    }

    fn elements(&mut self, elements: &[ast::ArrayExpressionElement<'_>]) -> CompileResult<Vec<Element>> {
        let mut compiled = Vec::with_capacity(elements.len());
        for element in elements {
            compiled.push(match element {
                ast::ArrayExpressionElement::SpreadElement(spread) => Element::Spread(self.expr(&spread.argument)?),
                ast::ArrayExpressionElement::Elision(hole) => return self.refuse("an array with holes", hole.span),
                other => Element::One(self.expr(other.to_expression())?),
            });
        }
        Ok(compiled)
    }

    fn properties(&mut self, object: &ast::ObjectExpression<'_>) -> CompileResult<Vec<Property>> {
        let mut compiled = Vec::with_capacity(object.properties.len());
        for property in &object.properties {
            compiled.push(match property {
                ast::ObjectPropertyKind::SpreadProperty(spread) => Property::Spread(self.whole(&spread.argument)?),
                ast::ObjectPropertyKind::ObjectProperty(property) => {
                    if property.kind != ast::PropertyKind::Init || property.method {
                        return self.refuse("a method or accessor in an object", property.span);
                    }
                    match self.key(&property.key, property.computed)? {
                        Key::Named(name) if name == "__proto__" => return self.refuse("__proto__", property.span),
                        Key::Named(name) => Property::Named(name, self.expr(&property.value)?),
                        Key::Computed(key) => Property::Computed(key, self.expr(&property.value)?),
                    }
                }
            });
        }
        Ok(compiled)
    }

    /// A value whose members are all read.
    fn whole(&mut self, expression: &ast::Expression<'_>) -> CompileResult<Expr> {
        let compiled = self.expr(expression)?;
        if is_meta(&compiled) {
            self.varies("uses msg.meta as a whole", expression.span());
        }
        Ok(compiled)
    }

    fn key(&mut self, key: &ast::PropertyKey<'_>, computed: bool) -> CompileResult<Key> {
        if let ast::PropertyKey::StaticIdentifier(name) = key {
            return Ok(Key::Named(Text::new(name.name.as_str())));
        }
        let Some(expression) = key.as_expression() else {
            return self.refuse("a private name", key.span());
        };
        Ok(match self.expr(expression)? {
            Expr::Constant(Js::Text(name)) => Key::Named(name),
            Expr::Constant(Js::Number(number)) => Key::Named(super::number::text(number)),
            other if computed => Key::Computed(other),
            _ => return self.refuse("an unusual key", key.span()),
        })
    }

    fn unary(&mut self, unary: &ast::UnaryExpression<'_>) -> CompileResult<Expr> {
        let argument = &unary.argument;
        Ok(match unary.operator {
            UnaryOperator::Delete => match argument.as_member_expression() {
                Some(member) => Expr::Delete(Box::new(self.member_target(member)?)),
                None => return self.refuse("delete of something other than a member", unary.span),
            },
            UnaryOperator::UnaryNegation => match self.expr(argument)? {
                Expr::Constant(Js::Number(number)) => Expr::Constant(Js::Number(-number)),
                other => Expr::Negate(Box::new(other)),
            },
            UnaryOperator::Typeof => {
                if let ast::Expression::Identifier(identifier) = argument
                    && self.is_global(identifier.name.as_str())
                    && !matches!(identifier.name.as_str(), "undefined" | "NaN" | "Infinity")
                {
                    return self.refuse(format!("typeof {}", identifier.name), unary.span);
                }
                Expr::TypeOf(self.boxed(argument)?)
            }
            UnaryOperator::UnaryPlus => Expr::ToNumber(self.boxed(argument)?),
            UnaryOperator::LogicalNot => Expr::Not(self.boxed(argument)?),
            UnaryOperator::BitwiseNot => Expr::BitNot(self.boxed(argument)?),
            UnaryOperator::Void => Expr::Void(self.boxed(argument)?),
        })
    }

    /// The object of a member access. Reading a member of `msg` does not read all of it.
    fn holder(&mut self, object: &ast::Expression<'_>) -> CompileResult<Expr> {
        if let ast::Expression::Identifier(identifier) = object
            && let Some(Binding::Variable { slot: MSG, .. }) = self.lookup(identifier.name.as_str())
        {
            return Ok(Expr::Local(MSG));
        }
        self.expr(object)
    }

    fn member(&mut self, member: &ast::MemberExpression<'_>) -> CompileResult<Expr> {
        let span = member.span();
        let (object, optional) = (member.object(), member.optional());
        if let ast::MemberExpression::StaticMemberExpression(access) = member
            && let Some(constant) = self.constant_member(access)
        {
            return Ok(Expr::Constant(Js::Number(constant)));
        }
        let holder = Box::new(self.holder(object)?);
        Ok(match self.member_key(member)? {
            Key::Named(name) => {
                self.note_read(&holder, &name, span);
                match optional {
                    true => Expr::OptionalMember(holder, name),
                    false => Expr::Member(holder, name),
                }
            }
            Key::Computed(key) => {
                if matches!(*holder, Expr::Local(MSG)) {
                    self.varies("uses msg as a whole", span);
                }
                match optional {
                    true => Expr::OptionalIndex(holder, Box::new(key)),
                    false => Expr::Index(holder, Box::new(key)),
                }
            }
        })
    }

    fn note_read(&mut self, holder: &Expr, name: &str, span: Span) {
        if matches!(holder, Expr::Local(MSG)) && name == heap::PAYLOAD {
            self.varies("reads msg.payload", span);
        }
        if is_meta(holder) && key::STAMPS.contains(&name) {
            self.varies(&format!("reads msg.meta.{name}"), span);
        }
    }

    fn member_key(&mut self, member: &ast::MemberExpression<'_>) -> CompileResult<Key> {
        match member {
            ast::MemberExpression::StaticMemberExpression(access) => {
                Ok(Key::Named(Text::new(access.property.name.as_str())))
            }
            ast::MemberExpression::ComputedMemberExpression(access) => match self.expr(&access.expression)? {
                Expr::Constant(Js::Text(name)) => Ok(Key::Named(name)),
                other => Ok(Key::Computed(other)),
            },
            ast::MemberExpression::PrivateFieldExpression(access) => self.refuse("a private name", access.span),
        }
    }

    /// `Math.PI` and the like.
    fn constant_member(&self, access: &ast::StaticMemberExpression<'_>) -> Option<f64> {
        use std::f64::consts;
        let ast::Expression::Identifier(object) = &access.object else {
            return None;
        };
        if !self.is_global(object.name.as_str()) {
            return None;
        }
        Some(match (object.name.as_str(), access.property.name.as_str()) {
            ("Math", "PI") => consts::PI,
            ("Math", "E") => consts::E,
            ("Math", "LN2") => consts::LN_2,
            ("Math", "LN10") => consts::LN_10,
            ("Math", "LOG2E") => consts::LOG2_E,
            ("Math", "LOG10E") => consts::LOG10_E,
            ("Math", "SQRT2") => consts::SQRT_2,
            ("Math", "SQRT1_2") => consts::FRAC_1_SQRT_2,
            ("Number", "MAX_SAFE_INTEGER") => 9_007_199_254_740_991.0,
            ("Number", "MIN_SAFE_INTEGER") => -9_007_199_254_740_991.0,
            ("Number", "MAX_VALUE") => f64::MAX,
            ("Number", "MIN_VALUE") => 5e-324,
            ("Number", "EPSILON") => f64::EPSILON,
            ("Number", "NaN") => f64::NAN,
            ("Number", "POSITIVE_INFINITY") => f64::INFINITY,
            ("Number", "NEGATIVE_INFINITY") => f64::NEG_INFINITY,
            _ => return None,
        })
    }

    fn assignment(&mut self, assignment: &ast::AssignmentExpression<'_>) -> CompileResult<Expr> {
        let Some(target) = assignment.left.as_simple_assignment_target() else {
            return self.refuse("destructuring without a declaration", assignment.span);
        };
        let target = Box::new(self.simple_target(target)?);
        if matches!(&*target, Target::Member(Expr::Local(MSG), name) if name == heap::PAYLOAD) {
            self.varies("sets msg.payload", assignment.span);
        }
        let value = self.boxed(&assignment.right)?;
        use AssignmentOperator as A;
        let operator = match assignment.operator {
            A::Assign => return Ok(Expr::Assign(target, value)),
            A::LogicalAnd => return Ok(Expr::AssignLogical(target, Logical::And, value)),
            A::LogicalOr => return Ok(Expr::AssignLogical(target, Logical::Or, value)),
            A::LogicalNullish => return Ok(Expr::AssignLogical(target, Logical::Coalesce, value)),
            A::Addition => Binary::Add,
            A::Subtraction => Binary::Subtract,
            A::Multiplication => Binary::Multiply,
            A::Division => Binary::Divide,
            A::Remainder => Binary::Remainder,
            A::Exponential => Binary::Power,
            A::ShiftLeft => Binary::ShiftLeft,
            A::ShiftRight => Binary::ShiftRight,
            A::ShiftRightZeroFill => Binary::ShiftRightZero,
            A::BitwiseOR => Binary::BitOr,
            A::BitwiseXOR => Binary::BitXor,
            A::BitwiseAnd => Binary::BitAnd,
        };
        Ok(Expr::AssignBinary(target, operator, value))
    }

    fn simple_target(&mut self, target: &ast::SimpleAssignmentTarget<'_>) -> CompileResult<Target> {
        if let ast::SimpleAssignmentTarget::AssignmentTargetIdentifier(identifier) = target {
            return match self.lookup(identifier.name.as_str()) {
                Some(Binding::Variable { slot: MSG, .. }) => self.refuse("assignment to msg", identifier.span),
                Some(Binding::Variable {
                    slot,
                    is_constant: false,
                }) => Ok(Target::Local(slot)),
                Some(_) => self.refuse("assignment to a constant", identifier.span),
                None => self.refuse(format!("assignment to the global {}", identifier.name), identifier.span),
            };
        }
        match target.as_member_expression() {
            Some(member) => self.member_target(member),
            None => self.refuse("an unusual target of an assignment", target.span()),
        }
    }

    fn member_target(&mut self, member: &ast::MemberExpression<'_>) -> CompileResult<Target> {
        if member.optional() {
            return self.refuse("?. in the target of a change", member.span());
        }
        let holder = self.holder(member.object())?;
        Ok(match self.member_key(member)? {
            Key::Named(name) => Target::Member(holder, name),
            Key::Computed(key) => Target::Index(holder, key),
        })
    }

    /// The pattern of a declaration or parameter; its names are declared already.
    fn pattern(&mut self, pattern: &ast::BindingPattern<'_>) -> CompileResult<Pattern> {
        Ok(match pattern {
            ast::BindingPattern::BindingIdentifier(identifier) => match self.lookup(identifier.name.as_str()) {
                Some(Binding::Variable { slot, .. }) => Pattern::Slot(slot),
                _ => return self.refuse("a function under the name of a variable", identifier.span),
            },
            ast::BindingPattern::ObjectPattern(object) => {
                if let Some(rest) = &object.rest {
                    return self.refuse("the rest of an object", rest.span);
                }
                let mut members = Vec::with_capacity(object.properties.len());
                for property in &object.properties {
                    let key = self.key(&property.key, property.computed)?;
                    members.push((key, self.bound(&property.value)?));
                }
                Pattern::Object(members)
            }
            ast::BindingPattern::ArrayPattern(array) => {
                let elements = array.elements.iter().map(|element| match element {
                    Some(element) => self.bound(element).map(Some),
                    None => Ok(None),
                });
                let elements = elements.collect::<CompileResult<Vec<_>>>()?;
                let rest = match &array.rest {
                    Some(rest) => Some(Box::new(self.pattern(&rest.argument)?)),
                    None => None,
                };
                Pattern::Array(elements, rest)
            }
            ast::BindingPattern::AssignmentPattern(with_default) => {
                return self.refuse("a default in an unusual place", with_default.span);
            }
        })
    }

    fn bound(&mut self, pattern: &ast::BindingPattern<'_>) -> CompileResult<BindingElement> {
        match pattern {
            ast::BindingPattern::AssignmentPattern(with_default) => Ok(BindingElement {
                pattern: self.pattern(&with_default.left)?,
                default: Some(self.expr(&with_default.right)?),
            }),
            other => Ok(BindingElement {
                pattern: self.pattern(other)?,
                default: None,
            }),
        }
    }
}

/// Whether this is `msg.meta`, as far as the source shows.
fn is_meta(expr: &Expr) -> bool {
    matches!(expr, Expr::Member(holder, name) if name == heap::META && matches!(**holder, Expr::Local(MSG)))
}

fn binary_operator(operator: BinaryOperator) -> Option<Binary> {
    use BinaryOperator as B;
    Some(match operator {
        B::Equality => Binary::Equal,
        B::Inequality => Binary::NotEqual,
        B::StrictEquality => Binary::StrictEqual,
        B::StrictInequality => Binary::StrictNotEqual,
        B::LessThan => Binary::Less,
        B::LessEqualThan => Binary::LessEqual,
        B::GreaterThan => Binary::Greater,
        B::GreaterEqualThan => Binary::GreaterEqual,
        B::Addition => Binary::Add,
        B::Subtraction => Binary::Subtract,
        B::Multiplication => Binary::Multiply,
        B::Division => Binary::Divide,
        B::Remainder => Binary::Remainder,
        B::Exponential => Binary::Power,
        B::ShiftLeft => Binary::ShiftLeft,
        B::ShiftRight => Binary::ShiftRight,
        B::ShiftRightZeroFill => Binary::ShiftRightZero,
        B::BitwiseOR => Binary::BitOr,
        B::BitwiseXOR => Binary::BitXor,
        B::BitwiseAnd => Binary::BitAnd,
        B::In => Binary::In,
        B::Instanceof => return None,
    })
}
