//! Calls of methods, built-in functions, and the script's own functions.

use oxc_ast::ast;
use oxc_span::{GetSpan, Span};

use super::{Binding, CompileResult, Compiler, is_meta};
use crate::ConsoleLevel;
use crate::native::heap::Js;
use crate::native::ir::{Argument, CacheCall, Element, Expr, Global, Method};

/// Methods that call a function of the script while they run, and not later.
fn takes_function(method: Method) -> bool {
    use Method::{
        Every, Filter, Find, FindIndex, FlatMap, ForEach, Map, Reduce, ReduceRight, Replace, ReplaceAll, Some,
    };
    matches!(
        method,
        Every
            | Filter
            | Find
            | FindIndex
            | FlatMap
            | ForEach
            | Map
            | Reduce
            | ReduceRight
            | Replace
            | ReplaceAll
            | Some
    )
}

impl Compiler<'_> {
    pub(super) fn call(&mut self, call: &ast::CallExpression<'_>) -> CompileResult<Expr> {
        if call.optional {
            return self.refuse("an optional call", call.span);
        }
        match &call.callee {
            ast::Expression::Identifier(identifier) => self.named_call(identifier.name.as_str(), call),
            callee => match callee.as_member_expression() {
                Some(member) => self.member_call(member, call),
                None => self.refuse("a call of something other than a function by its name", call.span),
            },
        }
    }

    fn named_call(&mut self, name: &str, call: &ast::CallExpression<'_>) -> CompileResult<Expr> {
        match self.lookup(name) {
            Some(Binding::Function { number, reached }) => {
                let arguments = self.plain_arguments(call)?;
                let function = Expr::Function(number, arguments);
                Ok(match reached {
                    // The function cannot be called before its declaration.
                    Some(slot) => Expr::Sequence(vec![Expr::Local(slot), function]),
                    None => function,
                })
            }
            Some(Binding::Variable { .. }) => self.refuse(format!("a call of the variable {name}"), call.span),
            None => match Global::named(name) {
                Some(global) => Ok(Expr::Global(global, self.argument_elements(call)?)),
                None => self.refuse(format!("{name}()"), call.span),
            },
        }
    }

    fn member_call(
        &mut self,
        member: &ast::MemberExpression<'_>,
        call: &ast::CallExpression<'_>,
    ) -> CompileResult<Expr> {
        let ast::MemberExpression::StaticMemberExpression(access) = member else {
            return self.refuse("a method by a computed name", call.span);
        };
        let name = access.property.name.as_str();
        if let ast::Expression::Identifier(object) = &access.object
            && self.is_global(object.name.as_str())
        {
            return self.global_call(object.name.as_str(), name, call);
        }
        if name == "call" && self.is_has_own_property(&access.object) {
            return Ok(Expr::Global(Global::ObjectHasOwn, self.argument_elements(call)?));
        }
        let Some(method) = Method::named(name) else {
            return self.refuse(format!(".{name}()"), access.property.span);
        };
        let receiver = Box::new(self.holder(&access.object)?);
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            arguments.push(self.argument(argument, takes_function(method))?);
        }
        let functions = arguments.iter();
        let functions = functions.filter(|argument| matches!(argument, Argument::Function(_) | Argument::Convert(_)));
        if functions.count() > 1 {
            return self.refuse("two functions for one method", call.span);
        }
        Ok(Expr::Call {
            receiver,
            method,
            arguments,
            optional: access.optional,
        })
    }

    /// `Object.prototype.hasOwnProperty`.
    fn is_has_own_property(&self, object: &ast::Expression<'_>) -> bool {
        let ast::Expression::StaticMemberExpression(own) = object else {
            return false;
        };
        let ast::Expression::StaticMemberExpression(prototype) = &own.object else {
            return false;
        };
        own.property.name == "hasOwnProperty"
            && prototype.property.name == "prototype"
            && matches!(&prototype.object, ast::Expression::Identifier(object) if object.name == "Object")
            && self.is_global("Object")
    }

    fn global_call(&mut self, object: &str, name: &str, call: &ast::CallExpression<'_>) -> CompileResult<Expr> {
        let console = match (object, name) {
            ("console", "debug") => Some(ConsoleLevel::Debug),
            ("console", "log" | "info") => Some(ConsoleLevel::Info),
            ("console", "warn") => Some(ConsoleLevel::Warn),
            ("console", "error") => Some(ConsoleLevel::Error),
            _ => None,
        };
        if let Some(level) = console {
            self.varies("writes to the console", call.span);
            return Ok(Expr::Console(level, self.plain_arguments(call)?));
        }
        let cache = match (object, name) {
            ("cache", "set") => Some(CacheCall::Set),
            ("cache", "get") => Some(CacheCall::Get),
            ("cache", "exists") => Some(CacheCall::Exists),
            ("cache", "delete") => Some(CacheCall::Delete),
            _ => None,
        };
        if let Some(cache) = cache {
            self.varies("uses the cache", call.span);
            return Ok(Expr::Cache(cache, self.plain_arguments(call)?));
        }
        let full = format!("{object}.{name}");
        let Some(global) = Global::named(&full) else {
            return self.refuse(format!("{full}()"), call.span);
        };
        if global == Global::DateNow {
            self.is_timed = true;
            self.varies("reads the clock", call.span);
        }
        let arguments = self.argument_elements(call)?;
        // `JSON.stringify(value, replacer)`: only without a replacer.
        if global == Global::JsonStringify
            && (!matches!(
                arguments.get(1),
                None | Some(Element::One(Expr::Constant(Js::Null | Js::Undefined)))
            ) || matches!(arguments.first(), Some(Element::Spread(_))))
        {
            return self.refuse("JSON.stringify with a replacer", call.span);
        }
        let is_spread = arguments.iter().any(|argument| matches!(argument, Element::Spread(_)));
        if global == Global::JsonParse && (arguments.len() > 1 || is_spread) {
            return self.refuse("JSON.parse with a reviver", call.span);
        }
        Ok(Expr::Global(global, arguments))
    }

    /// Arguments that are values, without spread.
    fn plain_arguments(&mut self, call: &ast::CallExpression<'_>) -> CompileResult<Vec<Expr>> {
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            match argument.as_expression() {
                Some(expression) => arguments.push(self.whole(expression)?),
                None => return self.refuse("spread arguments of this function", argument.span()),
            }
        }
        Ok(arguments)
    }

    fn argument_elements(&mut self, call: &ast::CallExpression<'_>) -> CompileResult<Vec<Element>> {
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for argument in &call.arguments {
            arguments.push(match argument {
                ast::Argument::SpreadElement(spread) => Element::Spread(self.whole(&spread.argument)?),
                other => Element::One(self.whole(other.to_expression())?),
            });
        }
        Ok(arguments)
    }

    fn argument(&mut self, argument: &ast::Argument<'_>, may_be_function: bool) -> CompileResult<Argument> {
        let expression = match argument {
            ast::Argument::SpreadElement(spread) => return Ok(Argument::Spread(self.expr(&spread.argument)?)),
            other => other.to_expression(),
        };
        let span = expression.span();
        match expression {
            ast::Expression::ArrowFunctionExpression(arrow) if may_be_function => {
                self.arrow(arrow).map(Argument::Function)
            }
            ast::Expression::FunctionExpression(function) if may_be_function => {
                self.function_expression(function, span).map(Argument::Function)
            }
            ast::Expression::Identifier(identifier) if may_be_function => {
                self.function_by_name(identifier.name.as_str(), span)
            }
            other => {
                let value = self.expr(other)?;
                if is_meta(&value) {
                    self.varies("uses msg.meta as a whole", span);
                }
                Ok(Argument::One(value))
            }
        }
    }

    fn function_by_name(&mut self, name: &str, span: Span) -> CompileResult<Argument> {
        match (self.lookup(name), Global::named(name)) {
            (Some(Binding::Function { number, reached: None }), _) => Ok(Argument::Function(number)),
            (Some(Binding::Function { .. }), _) => self.refuse("a function in a constant, given to a method", span),
            (None, Some(global @ (Global::String | Global::Number | Global::Boolean))) => Ok(Argument::Convert(global)),
            _ => self.name(name, span).map(Argument::One),
        }
    }

    /// `new Date(…)`, the only supported constructor.
    pub(super) fn construction(&mut self, new: &ast::NewExpression<'_>) -> CompileResult<Expr> {
        match &new.callee {
            ast::Expression::Identifier(callee) if callee.name == "Date" && self.is_global("Date") => {
                if new.arguments.is_empty() {
                    self.is_timed = true;
                    self.varies("reads the clock", new.span);
                }
                if new.arguments.len() > 1 {
                    return self.refuse("a date in the time zone of this machine", new.span);
                }
                let mut arguments = Vec::new();
                for argument in &new.arguments {
                    match argument.as_expression() {
                        Some(expression) => arguments.push(self.expr(expression)?),
                        None => return self.refuse("spread arguments of this function", argument.span()),
                    }
                }
                Ok(Expr::Date(arguments))
            }
            ast::Expression::Identifier(callee) => self.refuse(format!("new {}", callee.name), new.span),
            _ => self.refuse("new", new.span),
        }
    }
}
