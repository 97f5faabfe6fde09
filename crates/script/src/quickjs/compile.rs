//! Compiles a script's text to something callable.
//!
//! QuickJS compiles programs. A body, and usually a condition, becomes one by a function around it. This wrapping is
//! never visible: positions in errors are those of the script's own text, and a script cannot close it.

use std::ffi::CString;
use std::sync::Arc;

use super::exception;
use super::runtime::{CompiledCode, QuickJsRuntime};
use super::value::PendingException;
use crate::scan::{self, Realm};
use crate::{CompileError, Script, ScriptForm};

/// A script with the properties determined when it was first compiled.
pub(super) struct PreparedScript {
    pub script: Script,
    pub file: CString,
    pub realm: Realm,
    pub wrapping: Wrapping,
    /// Its result depends only on what a call reads of its message, as far as that can be detected.
    pub is_repeatable: bool,
}

/// How a script becomes callable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrapping {
    /// A function of `msg`.
    Body,
    /// A function of `msg` around another one, so that the body may declare its own `msg`.
    InnerBody,
    /// A function of `msg` that returns the expression.
    Expression,
    /// A program with statements, evaluated with `msg` as a global.
    Statements,
    /// A function that returns the value of an expression as a payload; it begins with this text, which declares the
    /// variables.
    Value(Arc<str>),
}

impl Wrapping {
    /// For an expression of variables. No variable would have the name of its parameter.
    fn value(variables: &[String]) -> Wrapping {
        let variables = match variables {
            [] => String::new(),
            names => format!("let {{{}}} = $message$.payload; ", names.join(", ")),
        };
        Wrapping::Value(format!("(function ($message$) {{ {variables}return {{payload: (").into())
    }

    fn wrap(&self, code: &str) -> String {
        let (before, after) = self.parts();
        format!("{before}{code}{after}")
    }

    /// The text before the script on its first line, and after it.
    pub(super) fn parts(&self) -> (&str, &'static str) {
        match self {
            Wrapping::Body => ("(function (msg) {", "\n})"),
            Wrapping::InnerBody => ("(function (msg) { return (function () {", "\n})() })"),
            Wrapping::Expression => ("(function (msg) { return (", "\n) })"),
            // A block keeps its own `let` and `const`, so that the program can be evaluated again.
            Wrapping::Statements => ("{", "\n}"),
            Wrapping::Value(before) => (before, "\n)}; })"),
        }
    }
}

/// Determines how a script is compiled and run.
pub(super) fn prepare(parser: &QuickJsRuntime, index: usize, script: &Script) -> Result<PreparedScript, CompileError> {
    let mut prepared = PreparedScript {
        script: script.clone(),
        file: CString::new(script.stage.replace('\0', "")).unwrap_or_default(),
        realm: scan::realm(&script.code, script.form == ScriptForm::Condition),
        wrapping: Wrapping::Body,
        is_repeatable: scan::is_repeatable(&script.code),
    };
    let wrapping = choose_wrapping(parser, &prepared).and_then(|wrapping| match scan::import_call(&script.code) {
        // It would compile, and then give a promise that nothing fulfils.
        Some(offset) => {
            let (line, column) = place_of(&script.code, offset);
            let text = "SyntaxError: import() is not available: scripts have no modules";
            Err((text.to_owned(), line, column))
        }
        None => Ok(wrapping),
    });
    prepared.wrapping = wrapping.map_err(|(text, line, column)| CompileError {
        script: index,
        text,
        line,
        column,
    })?;
    if prepared.wrapping == Wrapping::Statements {
        prepared.realm = prepared.realm.max(Realm::Tidy);
    }
    prepared.is_repeatable &= prepared.realm == Realm::Sealed;
    Ok(prepared)
}

pub(super) fn compile(machine: &QuickJsRuntime, prepared: &PreparedScript) -> Result<CompiledCode, PendingException> {
    let code = prepared.wrapping.wrap(&prepared.script.code);
    let compiled = match &prepared.wrapping {
        Wrapping::Statements => machine.program(&code, &prepared.file)?,
        wrapping => machine.function(&code, &prepared.file, strict(wrapping))?,
    };
    debug_assert!(compiled.is_function() || prepared.wrapping == Wrapping::Statements);
    Ok(compiled)
}

/// An error of a script, with line and column.
type Mistake = (String, usize, usize);

/// Finds the wrapping with which the script compiles, or the error.
fn choose_wrapping(machine: &QuickJsRuntime, prepared: &PreparedScript) -> Result<Wrapping, Mistake> {
    let code = &prepared.script.code;
    let stage = &prepared.script.stage;
    let try_as = |wrapping: Wrapping| match machine.parses(&wrapping.wrap(code), &prepared.file, strict(&wrapping)) {
        Ok(()) => Ok(wrapping),
        Err(PendingException) => Err(mistake(code, exception::describe(machine.ctx(), stage, &wrapping))),
    };
    match &prepared.script.form {
        ScriptForm::Body => {
            // A body that closes the function around it and opens another would compile; a method cannot be closed in
            // the same way.
            let method = format!("({{ m(msg) {{{code}\n}} }})");
            if let Err(PendingException) = machine.parses(&method, &prepared.file, true) {
                let place = exception::describe_after(machine.ctx(), stage, "({ m(msg) {".len());
                let error = mistake(code, place);
                // Unless the only problem is that the script declares its own `msg`.
                return match scan::unmatched_closer(code) {
                    None => try_as(Wrapping::InnerBody).map_err(|_| error),
                    Some(_) => Err(error),
                };
            }
            try_as(Wrapping::Body)
        }
        ScriptForm::Condition => {
            // It must also be complete as a program: `a) || (b` is an expression only inside the wrapping.
            if let Err(PendingException) = machine.parses(code, &prepared.file, false) {
                return Err(mistake(code, exception::describe_after(machine.ctx(), stage, 0)));
            }
            if is_expression_start(code) && try_as(Wrapping::Expression).is_ok() {
                return Ok(Wrapping::Expression);
            }
            try_as(Wrapping::Statements)
        }
        ScriptForm::Expression(variables) => {
            if let Some(offset) = scan::first_return(code) {
                let (line, column) = place_of(code, offset);
                let text = "SyntaxError: an expression has no return; write only the value";
                return Err((text.to_owned(), line, column));
            }
            let wrapping = try_as(Wrapping::value(variables))?;
            // An expression that closes the bracket around it and opens another cannot do so with another kind of
            // bracket.
            match machine.parses(&format!("[{code}\n]"), &prepared.file, true) {
                Ok(()) => Ok(wrapping),
                Err(PendingException) => Err(mistake(
                    code,
                    exception::describe_after(machine.ctx(), stage, "[".len()),
                )),
            }
        }
    }
}

/// The position of an error within the script. An error that QuickJS finds in the wrapping after the script is caused
/// by an extra bracket, or by a script that ends too early.
fn mistake(code: &str, place: exception::ScriptException) -> Mistake {
    let (line, column) = (place.line.unwrap_or(1), place.column.unwrap_or(1));
    let last_line = code.split('\n').nth(line.saturating_sub(1));
    if last_line.is_some_and(|text| column <= text.chars().count()) {
        return (place.text, line, column);
    }
    match scan::unmatched_closer(code) {
        Some((offset, bracket)) => {
            let (line, column) = place_of(code, offset);
            (format!("SyntaxError: '{bracket}' closes nothing"), line, column)
        }
        None => {
            let (line, column) = place_of(code, code.trim_end().len());
            ("SyntaxError: unexpected end of the script".to_owned(), line, column)
        }
    }
}

/// Line and column of a byte offset, which count from 1.
fn place_of(code: &str, offset: usize) -> (usize, usize) {
    let before = code.get(..offset).unwrap_or(code);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

fn strict(wrapping: &Wrapping) -> bool {
    !matches!(wrapping, Wrapping::Expression | Wrapping::Statements)
}

/// Whether code that parses as an expression is also one as a program: a block, a declaration or a directive is not.
fn is_expression_start(code: &str) -> bool {
    let code = code.trim_start();
    let word = code
        .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$')
        .next()
        .unwrap_or_default();
    !code.starts_with('{') && !matches!(word, "function" | "class" | "async" | "let") && !code.is_empty()
}
