//! Go's format verbs for `format`: `"%s is %.2f".format(this.name, this.value)`.
//!
//! Faults that Go would print inside the text (`%!d(string=x)`, a missing or an extra argument) are errors here. Whole
//! numbers and floats replace each other if that loses nothing, because JSON does not distinguish 5 from 5.0.

use thalweg_record::{Value, g_form, json};

use crate::error::{EvalResult, Fault};
use crate::limits;
use crate::view::{self, Number, whole};

/// Maximum width or precision.
const WIDTH_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, Default)]
struct FormatSpec {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
}

pub(super) fn format(text: &str, arguments: &[&Value]) -> EvalResult<String> {
    let mut formatter = GoFormatter {
        rest: text,
        arguments,
        next: 0,
        reordered: false,
        out: String::with_capacity(text.len() + 16),
    };
    while let Some((before, after)) = formatter.rest.split_once('%') {
        formatter.out.push_str(before);
        formatter.rest = after;
        formatter.directive()?;
        limits::check_bytes(formatter.out.len())?;
    }
    formatter.out.push_str(formatter.rest);
    if formatter.next < arguments.len() && !formatter.reordered {
        let (used, given) = (formatter.next, arguments.len());
        return Err(Fault::text(format!(
            "format: {given} arguments are given, but the text uses {used}"
        )));
    }
    Ok(formatter.out)
}

struct GoFormatter<'a> {
    rest: &'a str,
    arguments: &'a [&'a Value],
    next: usize,
    /// Whether an argument was chosen by its number; then unused arguments are allowed.
    reordered: bool,
    out: String,
}

impl<'a> GoFormatter<'a> {
    fn directive(&mut self) -> EvalResult<()> {
        let mut spec = FormatSpec::default();
        self.flags(&mut spec);
        self.choose_argument()?;
        spec.width = self.size(&mut spec.minus)?;
        if self.take('.') {
            self.choose_argument()?;
            let mut negative = false;
            let precision = self.size(&mut negative)?.unwrap_or(0);
            spec.precision = (!negative).then_some(precision);
        }
        self.choose_argument()?;
        let Some(verb) = self.rest.chars().next() else {
            return Err(Fault::text(
                "format: the text ends after %; a percent sign is written %%",
            ));
        };
        self.rest = self.rest.get(verb.len_utf8()..).unwrap_or_default();
        if verb == '%' {
            self.out.push('%');
            return Ok(());
        }
        let value = self.argument()?;
        let text = render(verb, &spec, value)?;
        self.pad(&spec, &text, verb);
        Ok(())
    }

    fn flags(&mut self, spec: &mut FormatSpec) {
        while let Some(flag) = self.rest.chars().next() {
            match flag {
                '+' => spec.plus = true,
                '-' => spec.minus = true,
                '#' => spec.sharp = true,
                ' ' => spec.space = true,
                '0' => spec.zero = true,
                _ => return,
            }
            self.rest = self.rest.get(1..).unwrap_or_default();
        }
    }

    /// `[n]` chooses the next argument, counted from 1.
    fn choose_argument(&mut self) -> EvalResult<()> {
        let Some(after) = self.rest.strip_prefix('[') else {
            return Ok(());
        };
        let number = after
            .split_once(']')
            .and_then(|(number, after)| Some((number.parse::<usize>().ok()?, after)));
        match number {
            Some((number @ 1.., after)) => {
                (self.next, self.rest, self.reordered) = (number - 1, after, true);
                Ok(())
            }
            _ => Err(Fault::text(
                "format: expected the number of an argument, from 1, as in %[1]v",
            )),
        }
    }

    /// Reads digits, or `*` for the next argument; a negative argument sets `negative`.
    fn size(&mut self, negative: &mut bool) -> EvalResult<Option<usize>> {
        let size = if self.take('*') {
            let value = self.argument()?;
            let size = view::integer(value).ok_or_else(|| view::mismatch("integer", value));
            let size = size.map_err(|fault| fault.from(|| "the argument for `*` of format".to_owned()))?;
            *negative |= size < 0;
            Some(usize::try_from(size.unsigned_abs()).unwrap_or(usize::MAX))
        } else {
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = self.rest.split_at_checked(digits).unwrap_or((self.rest, ""));
            let size = (digits > 0).then(|| number.parse().unwrap_or(usize::MAX));
            self.rest = after;
            size
        };
        if size.is_some_and(|size| size > WIDTH_MAX) {
            return Err(Fault::text(format!(
                "format: a width or precision is above the limit of {WIDTH_MAX}"
            )));
        }
        Ok(size)
    }

    fn take(&mut self, sign: char) -> bool {
        let after = self.rest.strip_prefix(sign);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    fn argument(&mut self) -> EvalResult<&'a Value> {
        let (index, given) = (self.next, self.arguments.len());
        self.next += 1;
        let argument = self.arguments.get(index).copied();
        argument.ok_or_else(|| Fault::text(format!("format: argument {} is missing, {given} given", index + 1)))
    }

    fn pad(&mut self, spec: &FormatSpec, text: &str, verb: char) {
        let length = text.chars().count();
        let missing = spec.width.unwrap_or(0).saturating_sub(length);
        let fill = |out: &mut String, character| out.extend(std::iter::repeat_n(character, missing));
        let is_number = matches!(
            verb,
            'd' | 'b' | 'o' | 'O' | 'x' | 'X' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 'v'
        );
        if spec.minus {
            self.out.push_str(text);
            fill(&mut self.out, ' ');
        } else if spec.zero && is_number && text.ends_with(|c: char| c.is_ascii_hexdigit()) {
            // Zeros go between the sign and the digits.
            let digits = text.trim_start_matches(['+', '-', ' ']);
            self.out
                .push_str(text.get(..text.len() - digits.len()).unwrap_or_default());
            fill(&mut self.out, '0');
            self.out.push_str(digits);
        } else {
            fill(&mut self.out, ' ');
            self.out.push_str(text);
        }
    }
}

fn render(verb: char, spec: &FormatSpec, value: &Value) -> EvalResult<String> {
    let refuse = |wanted: &str| {
        let kind = view::kind(value);
        Err(Fault::text(format!(
            "format: %{verb} takes {wanted}, not {kind}; %v takes anything"
        )))
    };
    match verb {
        'v' => general(spec, value),
        's' => match (value, view::text(value)) {
            (_, Some(text)) => Ok(cut(spec, &text)),
            (Value::Array(_) | Value::Object(_), None) => general(spec, value),
            // As `string()` shows it: numbers with all their digits.
            _ => Ok(cut(spec, &view::to_text(value)?)),
        },
        'q' => match (view::text(value), view::integer(value)) {
            (Some(text), _) => Ok(json::to_string(&Value::text(cut(spec, &text)))),
            (None, Some(code)) => Ok(format!("{:?}", character(code))),
            (None, None) => refuse("a string"),
        },
        't' => match value {
            Value::Bool(truth) => Ok(truth.to_string()),
            _ => refuse("a bool"),
        },
        'c' => match view::integer(value) {
            Some(code) => Ok(character(code).to_string()),
            None => refuse("an integer"),
        },
        'U' => match view::integer(value) {
            Some(code) => Ok(format!("U+{code:04X}")),
            None => refuse("an integer"),
        },
        'x' | 'X' if view::bytes(value).is_some() => {
            let bytes = view::bytes(value).unwrap_or_default();
            let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(if verb == 'X' { lower.to_uppercase() } else { lower })
        }
        'd' | 'b' | 'o' | 'O' | 'x' | 'X' => match whole_number(value) {
            Some(number) => Ok(integer(verb, spec, number)),
            None => refuse("a whole number"),
        },
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match Number::of(value) {
            Some(number) => Ok(float(verb, spec, number.float())),
            None => refuse("a number"),
        },
        _ => Err(Fault::text(format!(
            "format: unknown verb %{verb}; there are: %v %s %q %d %f %e %g %t %x %b %o %c %U"
        ))),
    }
}

/// `%v`: formats the value as Go does.
fn general(spec: &FormatSpec, value: &Value) -> EvalResult<String> {
    limits::check(value)?;
    Ok(print(spec, value))
}

fn print(spec: &FormatSpec, value: &Value) -> String {
    let inner = FormatSpec::default();
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Decimal(text) => text.to_string(),
        Value::Bytes(bytes) => {
            let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
            format!("[{}]", bytes.join(" "))
        }
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| print(&inner, value)).collect();
            format!("[{}]", values.join(" "))
        }
        other => match (view::object(other), Number::of(other), view::text(other)) {
            (Some(object), _, _) => {
                let mut members: Vec<_> = object.iter().collect();
                members.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
                let members: Vec<String> = members
                    .iter()
                    .map(|(name, value)| format!("{name}:{}", print(&inner, value)))
                    .collect();
                format!("map[{}]", members.join(" "))
            }
            (None, Some(Number::Integer(number)), _) => integer('d', spec, number),
            (None, Some(Number::Float(number)), _) => float('g', spec, number),
            (None, None, text) => cut(spec, &text.unwrap_or_default()),
        },
    }
}

/// Cuts a text to its precision, in characters.
fn cut(spec: &FormatSpec, text: &str) -> String {
    text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect()
}

fn character(code: i64) -> char {
    u32::try_from(code)
        .ok()
        .and_then(char::from_u32)
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn whole_number(value: &Value) -> Option<i128> {
    match Number::of(value)? {
        Number::Integer(number) => Some(number),
        Number::Float(number) => whole(number).map(i128::from),
    }
}

fn integer(verb: char, spec: &FormatSpec, number: i128) -> String {
    let size = number.unsigned_abs();
    let (prefix, mut digits) = match verb {
        'b' => (if spec.sharp { "0b" } else { "" }, format!("{size:b}")),
        'o' => (if spec.sharp { "0" } else { "" }, format!("{size:o}")),
        'O' => ("0o", format!("{size:o}")),
        'x' => (if spec.sharp { "0x" } else { "" }, format!("{size:x}")),
        'X' => (if spec.sharp { "0X" } else { "" }, format!("{size:X}")),
        _ => ("", size.to_string()),
    };
    if let Some(precision) = spec.precision {
        digits.insert_str(0, &"0".repeat(precision.saturating_sub(digits.len())));
    }
    format!("{}{prefix}{digits}", sign(spec, number < 0))
}

fn sign(spec: &FormatSpec, is_negative: bool) -> &'static str {
    match (is_negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        (false, false, false) => "",
    }
}

fn float(verb: char, spec: &FormatSpec, number: f64) -> String {
    let is_negative = number.is_sign_negative() && !number.is_nan();
    let size = if is_negative { -number } else { number };
    let digits = match verb {
        _ if !size.is_finite() => g_form(size).trim_start_matches('+').to_owned(),
        'f' | 'F' => format!("{size:.*}", spec.precision.unwrap_or(6)),
        'e' | 'E' => go_exponent(&format!("{size:.*e}", spec.precision.unwrap_or(6))),
        _ => match spec.precision {
            None => g_form(size),
            Some(precision) => general_float(size, precision.max(1)),
        },
    };
    let digits = if verb.is_ascii_uppercase() {
        digits.to_uppercase()
    } else {
        digits
    };
    format!("{}{digits}", sign(spec, is_negative))
}

/// `%.ng`: n significant digits without trailing zeros, with an exponent when it is below -4 or at least n.
fn general_float(size: f64, digits: usize) -> String {
    let scientific = format!("{size:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let significant = i64::try_from(digits).unwrap_or(i64::MAX);
    if exponent < -4 || exponent >= significant {
        return go_exponent(&format!("{}e{exponent}", trim(mantissa)));
    }
    let decimals = usize::try_from(significant - 1 - exponent).unwrap_or(0);
    trim(&format!("{size:.decimals$}"))
}

/// Rewrites an exponent as Go writes it: `1.5e7` becomes `1.5e+07`.
fn go_exponent(text: &str) -> String {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
