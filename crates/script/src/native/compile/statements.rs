//! Statements, declarations and functions.

use oxc_ast::ast;
use oxc_span::{GetSpan, Span};
use smallvec::SmallVec;

use super::{Binding, CompileResult, Compiler, Frame, LEVELS_MAX, Scope};
use crate::native::heap::Js;
use crate::native::ir::{BindingElement, Block, Expr, Pattern, ScriptFunction, Stmt};

impl<'s> Compiler<'s> {
    /// The function around the whole script.
    pub(super) fn script(&mut self, function: &ast::Function<'_>) -> CompileResult<()> {
        let Some(body) = &function.body else {
            return self.refuse("syntax that only QuickJS can parse", function.span);
        };
        self.functions.push(ScriptFunction::default());
        self.function(0, &function.params, body, function.span)
    }

    pub(super) fn arrow(&mut self, arrow: &ast::ArrowFunctionExpression<'_>) -> CompileResult<usize> {
        if arrow.r#async {
            return self.refuse("an async function", arrow.span);
        }
        let number = self.reserve();
        self.function(number, &arrow.params, &arrow.body, arrow.span)?;
        // Without braces the body is the value.
        if arrow.expression
            && let Some(function) = self.functions.get_mut(number)
            && let Some(Stmt::Expr(value)) = function.body.pop()
        {
            function.body.push(Stmt::Return(Some(value)));
        }
        Ok(number)
    }

    pub(super) fn function_expression(&mut self, function: &ast::Function<'_>, span: Span) -> CompileResult<usize> {
        if function.id.is_some() {
            return self.refuse("a function expression with a name of its own", span);
        }
        let number = self.reserve();
        self.declared_function(number, function)?;
        Ok(number)
    }

    fn reserve(&mut self) -> usize {
        self.functions.push(ScriptFunction::default());
        self.functions.len() - 1
    }

    fn declared_function(&mut self, number: usize, function: &ast::Function<'_>) -> CompileResult<()> {
        match &function.body {
            Some(body) if !function.generator && !function.r#async => {
                self.function(number, &function.params, body, function.span)
            }
            _ => self.refuse("a generator or async function", function.span),
        }
    }

    fn function(
        &mut self,
        number: usize,
        parameters: &ast::FormalParameters<'_>,
        body: &ast::FunctionBody<'_>,
        span: Span,
    ) -> CompileResult<()> {
        if self.frames.len() >= LEVELS_MAX {
            return self.refuse("functions nested deeply", span);
        }
        let level = self.frames.len() as u8;
        self.frames.push(Frame { level, slots: 0 });
        self.scopes.push(Scope::default());
        let compiled = self.function_parts(parameters, body);
        self.scopes.pop();
        let frame = self.frames.pop();
        let (bounds, hoisted, body) = compiled?;
        if let (Some(place), Some(frame)) = (self.functions.get_mut(number), frame) {
            *place = ScriptFunction {
                level,
                parameters: bounds,
                slots: frame.slots,
                hoisted,
                body,
            };
        }
        Ok(())
    }

    #[expect(clippy::type_complexity, reason = "the three parts of a function")]
    fn function_parts(
        &mut self,
        parameters: &ast::FormalParameters<'_>,
        body: &ast::FunctionBody<'_>,
    ) -> CompileResult<(Vec<BindingElement>, SmallVec<[u16; 4]>, Vec<Stmt>)> {
        if let Some(rest) = &parameters.rest {
            return self.refuse("rest parameters", rest.span);
        }
        if let Some(directive) = body.directives.first() {
            return self.refuse("a directive", directive.span);
        }
        for parameter in &parameters.items {
            self.declare_pattern(&parameter.pattern, false)?;
        }
        let mut bounds = Vec::with_capacity(parameters.items.len());
        for parameter in &parameters.items {
            let default = match &parameter.initializer {
                Some(default) => Some(self.expr(default)?),
                None => None,
            };
            let pattern = self.pattern(&parameter.pattern)?;
            bounds.push(BindingElement { pattern, default });
        }
        let mut hoisted = SmallVec::new();
        let mut names = Vec::new();
        for statement in &body.statements {
            self.var_names(statement, &mut names)?;
        }
        for (name, span) in names {
            // A parameter or an earlier `var` of the name is the same variable.
            let known = self
                .scopes
                .last()
                .is_some_and(|scope| scope.names.iter().any(|(n, _)| *n == name));
            if !known {
                let slot = self.new_slot(span)?;
                hoisted.push(slot.index);
                self.declare(
                    &name,
                    Binding::Variable {
                        slot,
                        is_constant: false,
                    },
                );
            }
        }
        let body = self.block_body(&body.statements, true)?;
        Ok((bounds, hoisted, body))
    }

    /// Names that `var` declares anywhere in a function.
    fn var_names(&self, statement: &ast::Statement<'_>, names: &mut Vec<(String, Span)>) -> CompileResult<()> {
        use ast::Statement as S;
        let mut of_declaration = |declaration: &ast::VariableDeclaration<'_>| {
            if declaration.kind != ast::VariableDeclarationKind::Var {
                return Ok(());
            }
            for declarator in &declaration.declarations {
                match &declarator.id {
                    ast::BindingPattern::BindingIdentifier(name) => names.push((name.name.to_string(), name.span)),
                    other => return self.refuse("destructuring by var", other.span()),
                }
            }
            Ok(())
        };
        match statement {
            S::VariableDeclaration(declaration) => of_declaration(declaration),
            S::ForStatement(each) => {
                if let Some(ast::ForStatementInit::VariableDeclaration(declaration)) = &each.init {
                    of_declaration(declaration)?;
                }
                self.var_names(&each.body, names)
            }
            S::ForOfStatement(each) => {
                if let ast::ForStatementLeft::VariableDeclaration(declaration) = &each.left {
                    of_declaration(declaration)?;
                }
                self.var_names(&each.body, names)
            }
            S::ForInStatement(each) => {
                if let ast::ForStatementLeft::VariableDeclaration(declaration) = &each.left {
                    of_declaration(declaration)?;
                }
                self.var_names(&each.body, names)
            }
            S::BlockStatement(block) => block.body.iter().try_for_each(|inner| self.var_names(inner, names)),
            S::IfStatement(branch) => {
                self.var_names(&branch.consequent, names)?;
                branch
                    .alternate
                    .iter()
                    .try_for_each(|inner| self.var_names(inner, names))
            }
            S::WhileStatement(each) => self.var_names(&each.body, names),
            S::DoWhileStatement(each) => self.var_names(&each.body, names),
            S::SwitchStatement(switch) => {
                let mut bodies = switch.cases.iter().flat_map(|case| &case.consequent);
                bodies.try_for_each(|inner| self.var_names(inner, names))
            }
            S::TryStatement(attempt) => {
                attempt
                    .block
                    .body
                    .iter()
                    .try_for_each(|inner| self.var_names(inner, names))?;
                if let Some(handler) = &attempt.handler {
                    handler
                        .body
                        .body
                        .iter()
                        .try_for_each(|inner| self.var_names(inner, names))?;
                }
                let last = attempt.finalizer.iter().flat_map(|block| &block.body);
                last.into_iter().try_for_each(|inner| self.var_names(inner, names))
            }
            _ => Ok(()),
        }
    }

    fn declare_pattern(&mut self, pattern: &ast::BindingPattern<'_>, is_constant: bool) -> CompileResult<()> {
        match pattern {
            ast::BindingPattern::BindingIdentifier(identifier) => {
                let slot = self.new_slot(identifier.span)?;
                self.declare(identifier.name.as_str(), Binding::Variable { slot, is_constant });
                Ok(())
            }
            ast::BindingPattern::ObjectPattern(object) => {
                let mut values = object.properties.iter().map(|property| &property.value);
                values.try_for_each(|value| self.declare_pattern(value, is_constant))
            }
            ast::BindingPattern::ArrayPattern(array) => {
                let mut elements = array.elements.iter().flatten();
                elements.try_for_each(|element| self.declare_pattern(element, is_constant))?;
                match &array.rest {
                    Some(rest) => self.declare_pattern(&rest.argument, is_constant),
                    None => Ok(()),
                }
            }
            ast::BindingPattern::AssignmentPattern(with_default) => {
                self.declare_pattern(&with_default.left, is_constant)
            }
        }
    }

    /// Declares the names of `let`, `const` and `function` in a list of statements, then compiles the statements.
    fn block_body(&mut self, statements: &[ast::Statement<'_>], is_function: bool) -> CompileResult<Vec<Stmt>> {
        let mut functions = Vec::new();
        for statement in statements {
            match statement {
                ast::Statement::VariableDeclaration(declaration) => self.declare_all(declaration)?,
                ast::Statement::FunctionDeclaration(function) => {
                    let Some(name) = &function.id else { continue };
                    if !is_function {
                        return self.refuse("a function declared in a block", function.span);
                    }
                    let number = self.reserve();
                    self.declare(name.name.as_str(), Binding::Function { number, reached: None });
                    functions.push((number, function));
                }
                _ => {}
            }
        }
        for (number, function) in functions {
            self.declared_function(number, function)?;
        }
        let mut body = Vec::with_capacity(statements.len());
        for statement in statements {
            self.statement(statement, &mut body)?;
        }
        Ok(body)
    }

    fn declare_all(&mut self, declaration: &ast::VariableDeclaration<'_>) -> CompileResult<()> {
        let is_constant = match declaration.kind {
            ast::VariableDeclarationKind::Var => return Ok(()),
            ast::VariableDeclarationKind::Let => false,
            ast::VariableDeclarationKind::Const => true,
            _ => return self.refuse("using", declaration.span),
        };
        for declarator in &declaration.declarations {
            match (&declarator.id, &declarator.init) {
                (ast::BindingPattern::BindingIdentifier(name), Some(init)) if is_constant && init.is_function() => {
                    let slot = self.new_slot(name.span)?;
                    let number = self.reserve();
                    let reached = Some(slot);
                    self.declare(name.name.as_str(), Binding::Function { number, reached });
                }
                _ => self.declare_pattern(&declarator.id, is_constant)?,
            }
        }
        Ok(())
    }

    fn variable_declaration(
        &mut self,
        declaration: &ast::VariableDeclaration<'_>,
        out: &mut Vec<Stmt>,
    ) -> CompileResult<()> {
        for declarator in &declaration.declarations {
            if let (ast::BindingPattern::BindingIdentifier(name), Some(init)) = (&declarator.id, &declarator.init)
                && let Some(Binding::Function {
                    number,
                    reached: Some(slot),
                }) = self.lookup(name.name.as_str())
            {
                self.constant_function(number, init)?;
                out.push(Stmt::Reach(slot));
                continue;
            }
            let init = match &declarator.init {
                Some(init) => self.expr(init)?,
                None if declaration.kind == ast::VariableDeclarationKind::Var => continue,
                None => Expr::Constant(Js::Undefined),
            };
            let pattern = self.pattern(&declarator.id)?;
            out.push(Stmt::Declare(pattern, init));
        }
        Ok(())
    }

    /// `const name = (…) => …`.
    fn constant_function(&mut self, number: usize, init: &ast::Expression<'_>) -> CompileResult<()> {
        match init {
            ast::Expression::ArrowFunctionExpression(arrow) => {
                let made = self.arrow(arrow)?;
                self.functions.swap(number, made);
                Ok(())
            }
            ast::Expression::FunctionExpression(function) if function.id.is_none() => {
                self.declared_function(number, function)
            }
            other => self.refuse("a function expression with a name of its own", other.span()),
        }
    }

    /// Compiles a block with its own scope.
    fn scoped<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> CompileResult<T>,
    ) -> CompileResult<(T, Option<(u16, u16)>)> {
        let first = self.frames.last().map_or(0, |frame| frame.slots);
        self.scopes.push(Scope::default());
        let compiled = inner(self);
        self.scopes.pop();
        let end = self.frames.last().map_or(0, |frame| frame.slots);
        Ok((compiled?, (end > first).then_some((first, end))))
    }

    fn block(&mut self, statements: &[ast::Statement<'_>]) -> CompileResult<Block> {
        let (body, fresh) = self.scoped(|inner| inner.block_body(statements, false))?;
        Ok(Block { fresh, body })
    }

    /// The body of a loop or branch, with its own scope.
    fn body(&mut self, statement: &ast::Statement<'_>) -> CompileResult<Block> {
        match statement {
            ast::Statement::BlockStatement(block) => self.block(&block.body),
            other => {
                let mut body = Vec::new();
                self.statement(other, &mut body)?;
                Ok(Block { fresh: None, body })
            }
        }
    }

    fn boxed_body(&mut self, statement: &ast::Statement<'_>) -> CompileResult<Box<Stmt>> {
        self.body(statement).map(|block| Box::new(Stmt::Block(block)))
    }

    fn statement(&mut self, statement: &ast::Statement<'_>, out: &mut Vec<Stmt>) -> CompileResult<()> {
        self.deeper(statement.span())?;
        let compiled = self.one_statement(statement, out);
        self.depth -= 1;
        compiled
    }

    fn one_statement(&mut self, statement: &ast::Statement<'_>, out: &mut Vec<Stmt>) -> CompileResult<()> {
        use ast::Statement as S;
        let span = statement.span();
        out.push(match statement {
            S::EmptyStatement(_) | S::FunctionDeclaration(_) => return Ok(()),
            S::ExpressionStatement(statement) => Stmt::Expr(self.expr(&statement.expression)?),
            S::VariableDeclaration(declaration) => return self.variable_declaration(declaration, out),
            S::BlockStatement(block) => Stmt::Block(self.block(&block.body)?),
            S::IfStatement(branch) => {
                let test = self.expr(&branch.test)?;
                let then = self.boxed_body(&branch.consequent)?;
                let otherwise = match &branch.alternate {
                    Some(alternate) => Some(self.boxed_body(alternate)?),
                    None => None,
                };
                Stmt::If(test, then, otherwise)
            }
            S::ReturnStatement(ret) => Stmt::Return(match &ret.argument {
                Some(argument) => Some(self.returned(argument)?),
                None => None,
            }),
            S::ForStatement(each) => {
                let (parts, fresh) = self.scoped(|inner| inner.for_parts(each))?;
                return {
                    out.push(Stmt::Block(Block {
                        fresh,
                        body: vec![parts],
                    }));
                    Ok(())
                };
            }
            S::ForOfStatement(each) if each.r#await => return self.refuse("for await", span),
            S::ForOfStatement(each) => {
                let (parts, fresh) = self.scoped(|inner| inner.each_parts(&each.left, &each.right, &each.body))?;
                let (pattern, list, mut body) = parts;
                body.fresh = fresh;
                Stmt::ForOf(pattern, list, body)
            }
            S::ForInStatement(each) => {
                let (parts, fresh) = self.scoped(|inner| inner.each_parts(&each.left, &each.right, &each.body))?;
                let (pattern, object, mut body) = parts;
                body.fresh = fresh;
                Stmt::ForIn(pattern, object, body)
            }
            S::WhileStatement(each) => Stmt::While(self.expr(&each.test)?, self.body(&each.body)?),
            S::DoWhileStatement(each) => {
                let body = self.body(&each.body)?;
                Stmt::DoWhile(body, self.expr(&each.test)?)
            }
            S::SwitchStatement(switch) => self.switch(switch)?,
            S::BreakStatement(leave) if leave.label.is_none() => Stmt::Break,
            S::ContinueStatement(next) if next.label.is_none() => Stmt::Continue,
            S::ThrowStatement(_) => Stmt::Bail("it throws"),
            S::TryStatement(attempt) => {
                // Anything that would be caught bails out to QuickJS, so the handler never runs here.
                let block = self.block(&attempt.block.body)?;
                let last = match &attempt.finalizer {
                    Some(finalizer) => Some(self.block(&finalizer.body)?),
                    None => None,
                };
                Stmt::Try(block, last)
            }
            S::BreakStatement(_) | S::ContinueStatement(_) | S::LabeledStatement(_) => {
                return self.refuse("a label", span);
            }
            S::ClassDeclaration(_) => return self.refuse("a class", span),
            S::DebuggerStatement(_) => return self.refuse("debugger", span),
            _ => return self.refuse("an unusual statement", span),
        });
        Ok(())
    }

    /// The return value of a function. Returning `msg` does not read it.
    fn returned(&mut self, argument: &ast::Expression<'_>) -> CompileResult<Expr> {
        match self.frames.len() {
            1 => self.holder(argument),
            _ => self.expr(argument),
        }
    }

    fn for_parts(&mut self, each: &ast::ForStatement<'_>) -> CompileResult<Stmt> {
        let init = match &each.init {
            None => None,
            Some(ast::ForStatementInit::VariableDeclaration(declaration)) => {
                self.declare_all(declaration)?;
                let mut body = Vec::new();
                self.variable_declaration(declaration, &mut body)?;
                Some(Box::new(Stmt::Block(Block { fresh: None, body })))
            }
            Some(other) => match other.as_expression() {
                Some(expression) => Some(Box::new(Stmt::Expr(self.expr(expression)?))),
                None => return self.refuse("an unusual loop", each.span),
            },
        };
        let optional = |inner: &mut Self, expression: &Option<ast::Expression<'_>>| match expression {
            Some(expression) => inner.expr(expression).map(Some),
            None => Ok(None),
        };
        Ok(Stmt::For {
            init,
            test: optional(self, &each.test)?,
            update: optional(self, &each.update)?,
            body: self.body(&each.body)?,
        })
    }

    fn each_parts(
        &mut self,
        left: &ast::ForStatementLeft<'_>,
        right: &ast::Expression<'_>,
        body: &ast::Statement<'_>,
    ) -> CompileResult<(Pattern, Expr, Block)> {
        let ast::ForStatementLeft::VariableDeclaration(declaration) = left else {
            return self.refuse("a loop over a variable that it does not declare", left.span());
        };
        self.declare_all(declaration)?;
        let Some(declarator) = declaration.declarations.first() else {
            return self.refuse("an unusual loop", declaration.span);
        };
        // The list is evaluated with the variable in scope but not yet declared.
        let list = self.whole(right)?;
        let pattern = self.pattern(&declarator.id)?;
        let inner = self.body(body)?;
        // One scope: declarations of the body are reset together with the variable of the loop.
        Ok((pattern, list, inner))
    }

    fn switch(&mut self, switch: &ast::SwitchStatement<'_>) -> CompileResult<Stmt> {
        let value = self.expr(&switch.discriminant)?;
        let (parts, fresh) = self.scoped(|inner| {
            for case in &switch.cases {
                for statement in &case.consequent {
                    match statement {
                        ast::Statement::VariableDeclaration(declaration) => inner.declare_all(declaration)?,
                        ast::Statement::FunctionDeclaration(function) => {
                            return inner.refuse("a function declared in a block", function.span);
                        }
                        _ => {}
                    }
                }
            }
            let mut cases = Vec::with_capacity(switch.cases.len());
            let mut body = Vec::new();
            for case in &switch.cases {
                let test = match &case.test {
                    Some(test) => Some(inner.expr(test)?),
                    None => None,
                };
                cases.push((test, body.len()));
                for statement in &case.consequent {
                    inner.statement(statement, &mut body)?;
                }
            }
            Ok((cases, body))
        })?;
        let (cases, body) = parts;
        Ok(Stmt::Switch {
            value,
            cases,
            body: Block { fresh, body },
        })
    }
}
