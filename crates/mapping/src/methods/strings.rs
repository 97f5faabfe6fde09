//! Methods on strings: case, parts, replacement, regular expressions, formatting. UTF-8 bytes count as strings.

use regex::Regex;
use thalweg_kit::re2;
use thalweg_record::{Text, Value};

use super::{
    Method, MethodSpec, argument_text, at_element, built, custom, elements, format, given, plain, text_argument,
    variadic, with,
};
use crate::context::EvalContext;
use crate::error::{EvalResult, SyntaxError};
use crate::expr::Expr;
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Arguments, Param, ParamKind};
use crate::prepared_argument::PreparedArgument;
use crate::view::need_text;

const PATTERN: Param = Param::needed("pattern", ParamKind::Text);

pub(super) static METHODS: &[MethodSpec] = &[
    plain("capitalize", |value, context| {
        let text = capitalize(&need_text(&value)?);
        context.spend_bytes(text.len())?;
        built(text)
    }),
    variadic("format", |value, arguments, context| {
        let arguments: Vec<&Value> = arguments.iter().flatten().collect();
        let text = format::format(&need_text(&value)?, &arguments)?;
        context.spend_bytes(text.len())?;
        built(text)
    }),
    with(
        "has_prefix",
        &[Param::needed("value", ParamKind::Text)],
        |value, arguments, _| {
            let found = need_text(&value)?.starts_with(&*text_argument(arguments, 0, "value")?);
            Ok(ExprValue::Value(Value::Bool(found)))
        },
    ),
    with(
        "has_suffix",
        &[Param::needed("value", ParamKind::Text)],
        |value, arguments, _| {
            let found = need_text(&value)?.ends_with(&*text_argument(arguments, 0, "value")?);
            Ok(ExprValue::Value(Value::Bool(found)))
        },
    ),
    with("join", &[Param::optional("delimiter", ParamKind::Text)], join),
    plain("lowercase", |value, context| {
        let text = need_text(&value)?.to_lowercase();
        context.spend_bytes(text.len())?;
        built(text)
    }),
    plain("quote", |value, context| {
        let text = need_text(&value)?;
        // A character becomes at most ten.
        context.spend(text.len().saturating_mul(10))?;
        let quoted = quote(&text);
        context.spend_bytes(quoted.len())?;
        built(quoted)
    }),
    custom("re_find_all", &[PATTERN], |arguments| {
        Ok(Method::Pattern(PatternMethod::FindAll(pattern(arguments)?)))
    }),
    custom("re_match", &[PATTERN], |arguments| {
        Ok(Method::Pattern(PatternMethod::Match(pattern(arguments)?)))
    }),
    custom(
        "re_replace",
        &[PATTERN, Param::needed("value", ParamKind::Text)],
        re_replace,
    ),
    custom(
        "re_replace_all",
        &[PATTERN, Param::needed("value", ParamKind::Text)],
        re_replace,
    ),
    with(
        "replace_all",
        &[
            Param::needed("old", ParamKind::Text),
            Param::needed("new", ParamKind::Text),
        ],
        replace_all,
    ),
    with("split", &[Param::needed("delimiter", ParamKind::Text)], split),
    with("trim", &[Param::optional("cutset", ParamKind::Text)], trim),
    plain("uppercase", |value, context| {
        let text = need_text(&value)?.to_uppercase();
        context.spend_bytes(text.len())?;
        built(text)
    }),
];

/// The first letter of each word in title case. What is no letter, digit or `_` separates ASCII words; beyond ASCII, white
/// space does.
fn capitalize(text: &str) -> String {
    let separates = |character: char| match character.is_ascii() {
        true => !character.is_ascii_alphanumeric() && character != '_',
        false => character.is_whitespace(),
    };
    let (mut capitalized, mut starts) = (String::with_capacity(text.len()), true);
    for character in text.chars() {
        match starts {
            true => capitalized.extend(character.to_uppercase()),
            false => capitalized.push(character),
        }
        starts = separates(character);
    }
    capitalized
}

/// The text between quotes, with escapes for what cannot be printed.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            ' ' => quoted.push(' '),
            other if other.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(other))),
            // Only what can be printed is its own debug form; spaces other than ' ' cannot.
            other if !other.is_whitespace() && other.escape_debug().len() == 1 => quoted.push(other),
            other if u32::from(other) <= 0xffff => quoted.push_str(&format!("\\u{:04x}", u32::from(other))),
            other => quoted.push_str(&format!("\\U{:08x}", u32::from(other))),
        }
    }
    quoted.push('"');
    quoted
}

fn join(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let delimiter = match given(arguments, 0) {
        Some(delimiter) => argument_text(delimiter, "delimiter")?,
        None => "".into(),
    };
    let mut joined = String::new();
    for (index, element) in elements(&value)?.iter().enumerate() {
        let element = need_text(element).map_err(|fault| at_element(index, fault))?;
        let part = if index == 0 { "" } else { &delimiter };
        context.spend_bytes(part.len() + element.len())?;
        crate::limits::check_bytes(joined.len() + part.len() + element.len())?;
        joined.push_str(part);
        joined.push_str(&element);
    }
    built(joined)
}

fn replace_all(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let text = need_text(&value)?;
    let (old, new) = (text_argument(arguments, 0, "old")?, text_argument(arguments, 1, "new")?);
    let found = if new.len() > old.len() {
        text.matches(&*old).count()
    } else {
        0
    };
    let growth = found.saturating_mul(new.len().saturating_sub(old.len()));
    context.spend_bytes(text.len().saturating_add(growth))?;
    built(text.replace(&*old, &new))
}

/// An empty delimiter splits into characters.
fn split(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let text = need_text(&value)?;
    let delimiter = text_argument(arguments, 0, "delimiter")?;
    let parts: Vec<Value> = if delimiter.is_empty() {
        context.spend_elements(text.chars().count())?;
        text.chars().map(|character| Value::Text(character.into())).collect()
    } else {
        context.spend_elements(text.matches(&*delimiter).count() + 1)?;
        text.split(&*delimiter).map(Value::from).collect()
    };
    context.spend_bytes(text.len())?;
    Ok(ExprValue::Value(parts.into()))
}

fn trim(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let text = need_text(&value)?;
    let trimmed = match given(arguments, 0) {
        None => text.trim(),
        Some(cutset) => {
            let cutset = argument_text(cutset, "cutset")?;
            text.trim_matches(|character| cutset.contains(character))
        }
    };
    context.spend_bytes(trimmed.len())?;
    built(Text::new(trimmed))
}

/// Methods on a regular expression.
pub(crate) enum PatternMethod {
    FindAll(PreparedArgument<Regex>),
    Match(PreparedArgument<Regex>),
    Replace(PreparedArgument<Regex>, Expr),
}

fn pattern(arguments: &mut Arguments) -> Result<PreparedArgument<Regex>, SyntaxError> {
    let at = arguments.at(0);
    PreparedArgument::new("pattern", arguments.value(0)?, at, |text| {
        Regex::new(&re2::without_quotes(text)).map_err(|error| format!("bad regular expression: {error}"))
    })
}

fn re_replace(arguments: &mut Arguments) -> Result<Method, SyntaxError> {
    let pattern = pattern(arguments)?;
    Ok(Method::Pattern(PatternMethod::Replace(pattern, arguments.value(1)?)))
}

impl PatternMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        let text = need_text(&target)?;
        context.spend(text.len())?;
        match self {
            PatternMethod::FindAll(pattern) => pattern.with(context, |pattern, context| {
                let mut found = Vec::new();
                for part in pattern.find_iter(&text) {
                    context.spend_elements(1)?;
                    crate::limits::check_elements(found.len())?;
                    found.push(Value::from(part.as_str()));
                }
                context.spend_bytes(text.len())?;
                Ok(ExprValue::Value(found.into()))
            }),
            PatternMethod::Match(pattern) => pattern.with(context, |pattern, _| {
                Ok(ExprValue::Value(Value::Bool(pattern.is_match(&text))))
            }),
            PatternMethod::Replace(pattern, replacement) => {
                let replacement = replacement.value("string", context)?;
                let replacement = argument_text(&replacement, "value")?;
                pattern.with(context, |pattern, context| {
                    replace_matches(pattern, &text, &replacement, context)
                })
            }
        }
    }
}

/// Replaces all matches, with `$1` and `${name}` in the replacement, and checks the size while the text grows.
fn replace_matches(
    pattern: &Regex,
    text: &str,
    replacement: &str,
    context: &mut EvalContext<'_>,
) -> EvalResult<ExprValue> {
    let mut replaced = String::with_capacity(text.len());
    let mut copied = 0;
    for captures in pattern.captures_iter(text) {
        let Some(whole) = captures.get(0) else { continue };
        replaced.push_str(text.get(copied..whole.start()).unwrap_or_default());
        let before = replaced.len();
        captures.expand(replacement, &mut replaced);
        copied = whole.end();
        context.spend(replaced.len() - before)?;
        crate::limits::check_bytes(replaced.len())?;
    }
    replaced.push_str(text.get(copied..).unwrap_or_default());
    context.spend_bytes(replaced.len())?;
    built(replaced)
}
