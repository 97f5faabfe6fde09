//! Methods of texts. Positions count UTF-16 units; splitting a text with surrogate pairs is left to QuickJS.

use thalweg_record::Text;

use super::patterns::char_text;
use super::{Arguments, Callback, Evaluator};
use crate::native::heap::{EvalResult, HeapObject, Js, bail};
use crate::native::ir::Method;
use crate::native::number::{to_integer, trim, trim_end, trim_start};
use crate::native::regex::ScriptRegex;
use crate::native::{coerce, number};

/// UTF-16 units.
pub(super) fn length(text: &str) -> usize {
    match text.is_ascii() {
        true => text.len(),
        false => text.chars().map(char::len_utf16).sum(),
    }
}

/// The unit at a position as a text, or undefined.
pub(super) fn unit_at(text: &str, index: usize) -> EvalResult<Js> {
    Ok(match char_at(text, index)? {
        Some(c) => Js::Text(char_text(c)),
        None => Js::Undefined,
    })
}

fn char_at(text: &str, index: usize) -> EvalResult<Option<char>> {
    if text.is_ascii() {
        return Ok(text.as_bytes().get(index).map(|b| char::from(*b)));
    }
    has_no_pairs(text)?;
    Ok(text.chars().nth(index))
}

/// The code point whose first half, or all of it, is the unit at a position; a lone second half is returned as a number
/// too.
fn code_point_at(text: &str, index: usize) -> Option<u32> {
    if text.is_ascii() {
        return text.as_bytes().get(index).map(|b| u32::from(*b));
    }
    let mut place = 0;
    for c in text.chars() {
        if place == index {
            return Some(c.into());
        }
        let mut units = [0; 2];
        if c.encode_utf16(&mut units).len() == 2 && place + 1 == index {
            return Some(units[1].into());
        }
        place += c.len_utf16();
    }
    None
}

fn has_no_pairs(text: &str) -> EvalResult<()> {
    match text.bytes().any(|b| b >= 0xf0) {
        true => bail("a text with surrogate pairs, split"),
        false => Ok(()),
    }
}

/// The part between two positions, which are in order and within the text.
fn part(text: &Text, from: usize, to: usize) -> EvalResult<Text> {
    if from == 0 && to >= text.len() {
        return Ok(text.clone());
    }
    if text.is_ascii() {
        return Ok(Text::new(text.get(from..to).unwrap_or_default()));
    }
    has_no_pairs(text)?;
    let chars = text.chars().skip(from).take(to.saturating_sub(from));
    Ok(chars.collect::<String>().into())
}

/// The byte offset of a position in the text.
fn byte_of(text: &str, place: usize) -> EvalResult<usize> {
    if text.is_ascii() {
        return Ok(place.min(text.len()));
    }
    has_no_pairs(text)?;
    Ok(text.char_indices().nth(place).map_or(text.len(), |(at, _)| at))
}

/// The position of a byte offset.
fn place_of(text: &str, byte: usize) -> EvalResult<usize> {
    if text.is_ascii() {
        return Ok(byte);
    }
    has_no_pairs(text)?;
    Ok(text.get(..byte).unwrap_or_default().chars().count())
}

/// A position counted from the front, or from the end if negative.
pub(super) fn relative(at: f64, length: usize) -> usize {
    let length = length as f64;
    let at = to_integer(at);
    match at < 0.0 {
        true => (length + at).max(0.0) as usize,
        false => at.min(length) as usize,
    }
}

const REPEATED_MAX: f64 = 65_536.0;
/// Maximum bytes of a text with replaced parts.
const EXPANDED_MAX: usize = 8 << 20;

impl Evaluator<'_, '_> {
    /// An argument as a whole number; `default` if it is missing.
    pub(super) fn integer(&mut self, argument: &Js, default: f64) -> EvalResult<f64> {
        match argument {
            Js::Undefined => Ok(default),
            other => coerce::number(&mut self.heap, other).map(to_integer),
        }
    }

    /// An argument that must not be a regular expression.
    fn plain_text(&mut self, argument: &Js) -> EvalResult<Text> {
        if self.regex(argument).is_some() {
            return bail("a regular expression in the place of a text");
        }
        coerce::text(&mut self.heap, argument)
    }

    fn regex(&self, argument: &Js) -> Option<usize> {
        match argument {
            Js::Object(place) => match self.heap.seen(*place) {
                Some(HeapObject::Regex(regex)) => Some(*regex),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn text_method(&mut self, text: &Text, method: Method, arguments: &Arguments) -> EvalResult<Js> {
        if arguments.callback.is_some() && !matches!(method, Method::Replace | Method::ReplaceAll) {
            return bail("a method that texts do not have");
        }
        self.heap.work(text.len())?;
        let (first, second) = (arguments.get(0), arguments.get(1));
        match method {
            Method::ToString | Method::ValueOf => Ok(Js::Text(text.clone())),
            Method::Trim => self.heap.add_text(trim(text)),
            Method::TrimStart => self.heap.add_text(trim_start(text)),
            Method::TrimEnd => self.heap.add_text(trim_end(text)),
            Method::ToLowerCase => self.in_case(text, str::to_lowercase),
            Method::ToUpperCase => self.in_case(text, str::to_uppercase),
            Method::Includes => {
                let sought = self.plain_text(first)?;
                let from = self.integer(second, 0.0)?;
                let from = byte_of(text, relative(from.max(0.0), text.len()))?;
                Ok(text
                    .get(from..)
                    .is_some_and(|rest| rest.contains(sought.as_str()))
                    .into())
            }
            Method::StartsWith => {
                let sought = self.plain_text(first)?;
                let from = self.integer(second, 0.0)?;
                let from = byte_of(text, relative(from.max(0.0), text.len()))?;
                Ok(text
                    .get(from..)
                    .is_some_and(|rest| rest.starts_with(sought.as_str()))
                    .into())
            }
            Method::EndsWith => {
                let sought = self.plain_text(first)?;
                let end = self.integer(second, f64::INFINITY)?;
                let end = byte_of(text, relative(end.max(0.0), text.len()))?;
                Ok(text
                    .get(..end)
                    .is_some_and(|rest| rest.ends_with(sought.as_str()))
                    .into())
            }
            Method::IndexOf => {
                let sought = coerce::text(&mut self.heap, first)?;
                let from = self.integer(second, 0.0)?;
                let from = byte_of(text, relative(from.max(0.0), text.len()))?;
                let found = text.get(from..).and_then(|rest| rest.find(sought.as_str()));
                self.found(text, found.map(|at| at + from))
            }
            Method::LastIndexOf => {
                if !matches!(second, Js::Undefined) {
                    return bail("lastIndexOf with a position");
                }
                let sought = coerce::text(&mut self.heap, first)?;
                self.found(text, text.rfind(sought.as_str()))
            }
            Method::At => {
                let length = length(text);
                let at = self.integer(first, 0.0)?;
                let at = if at < 0.0 { at + length as f64 } else { at };
                match at >= 0.0 && at < length as f64 {
                    true => unit_at(text, at as usize),
                    false => Ok(Js::Undefined),
                }
            }
            Method::CharAt => {
                let at = self.integer(first, 0.0)?;
                let unit = if at < 0.0 { None } else { char_at(text, at as usize)? };
                Ok(Js::Text(unit.map(char_text).unwrap_or_default()))
            }
            Method::CharCodeAt => {
                let at = self.integer(first, 0.0)?;
                let unit = if at < 0.0 { None } else { char_at(text, at as usize)? };
                Ok(Js::Number(unit.map_or(f64::NAN, |c| f64::from(u32::from(c)))))
            }
            Method::CodePointAt => {
                let at = self.integer(first, 0.0)?;
                let point = if at < 0.0 {
                    None
                } else {
                    code_point_at(text, at as usize)
                };
                Ok(point.map_or(Js::Undefined, |point| Js::Number(f64::from(point))))
            }
            Method::LocaleCompare => {
                let other = coerce::text(&mut self.heap, first)?;
                // Beyond these letters QuickJS first composes accents and letters; it ignores locales.
                if text.chars().chain(other.chars()).any(|c| c >= '\u{300}') {
                    return bail("the order of letters far beyond ASCII");
                }
                Ok(Js::Number(f64::from(text.as_str().cmp(other.as_str()) as i8)))
            }
            Method::Slice => {
                let length = length(text);
                let from = relative(self.integer(first, 0.0)?, length);
                let to = relative(self.integer(second, f64::INFINITY)?, length);
                self.cut(text, from, to.max(from))
            }
            Method::Substring => {
                let length = length(text);
                let from = relative(self.integer(first, 0.0)?.max(0.0), length);
                let to = relative(self.integer(second, f64::INFINITY)?.max(0.0), length);
                self.cut(text, from.min(to), from.max(to))
            }
            Method::Substr => {
                let length = length(text);
                let from = relative(self.integer(first, 0.0)?, length);
                let count = self
                    .integer(second, f64::INFINITY)?
                    .max(0.0)
                    .min((length - from) as f64);
                self.cut(text, from, from + count as usize)
            }
            Method::PadStart | Method::PadEnd => self.padded(text, method, first, second),
            Method::Repeat => {
                let count = self.integer(first, 0.0)?;
                if !(0.0..=REPEATED_MAX).contains(&count) || count * text.len() as f64 > REPEATED_MAX {
                    return bail("a text repeated often");
                }
                self.heap.add_text(text.repeat(count as usize))
            }
            Method::Concat => {
                let mut out = text.to_string();
                for argument in &arguments.values {
                    let before = out.len();
                    coerce::push_text(&mut self.heap, argument, &mut out)?;
                    self.heap.spend(out.len() - before)?;
                }
                self.heap.add_text(out)
            }
            Method::Split => self.split(text, first, second),
            Method::Replace | Method::ReplaceAll => self.replaced(text, method == Method::ReplaceAll, arguments),
            Method::Match => self.matched(text, first),
            Method::Search => {
                let regexes = &self.code.regexes;
                let Some(regex) = self.regex(first).and_then(|regex| regexes.get(regex)) else {
                    return bail("a regular expression from a text");
                };
                regex.fits(text)?;
                self.found(text, regex.first(text, 0).map(|found| found.get_match().start()))
            }
            _ => bail("a method that texts do not have"),
        }
    }

    fn found(&self, text: &str, byte: Option<usize>) -> EvalResult<Js> {
        Ok(Js::Number(match byte {
            Some(byte) => place_of(text, byte)? as f64,
            None => -1.0,
        }))
    }

    fn cut(&mut self, text: &Text, from: usize, to: usize) -> EvalResult<Js> {
        let part = part(text, from, to)?;
        self.heap.add_text(part)
    }

    fn in_case(&mut self, text: &Text, change: fn(&str) -> String) -> EvalResult<Js> {
        // Beyond these letters the two engines may know different versions of Unicode.
        if !text.is_ascii() && text.chars().any(|c| c >= '\u{250}') {
            return bail("the case of letters far beyond ASCII");
        }
        self.heap.add_text(change(text))
    }

    fn padded(&mut self, text: &Text, method: Method, to: &Js, with: &Js) -> EvalResult<Js> {
        let to = self.integer(to, 0.0)?;
        let with = match with {
            Js::Undefined => Text::new_static(" "),
            other => coerce::text(&mut self.heap, other)?,
        };
        let missing = to - length(text) as f64;
        if missing <= 0.0 || with.is_empty() {
            return Ok(Js::Text(text.clone()));
        }
        if missing > REPEATED_MAX {
            return bail("a text repeated often");
        }
        has_no_pairs(&with)?;
        let padding: String = with.chars().cycle().take(missing as usize).collect();
        self.heap.add_text(match method {
            Method::PadStart => padding + text,
            _ => format!("{text}{padding}"),
        })
    }

    fn split(&mut self, text: &Text, separator: &Js, limit: &Js) -> EvalResult<Js> {
        let limit = match limit {
            Js::Undefined => usize::MAX,
            other => number::to_i32(coerce::number(&mut self.heap, other)?) as u32 as usize,
        };
        let regexes = &self.code.regexes;
        if let Some(regex) = self.regex(separator).and_then(|regex| regexes.get(regex)) {
            return self.split_by(text, regex, limit);
        }
        let mut parts: Vec<Js> = Vec::new();
        match separator {
            Js::Undefined => parts.push(Js::Text(text.clone())),
            separator => {
                let separator = coerce::text(&mut self.heap, separator)?;
                self.heap.spend(text.len() * 2)?;
                if separator.is_empty() {
                    has_no_pairs(text)?;
                    parts.extend(text.chars().map(|c| Js::Text(char_text(c))));
                } else {
                    parts.extend(text.split(separator.as_str()).map(Js::from));
                }
            }
        }
        parts.truncate(limit);
        self.heap.add_array(parts)
    }

    fn split_by(&mut self, text: &Text, regex: &ScriptRegex, limit: usize) -> EvalResult<Js> {
        let mut parts: Vec<Js> = Vec::new();
        regex.fits(text)?;
        self.heap.spend(text.len() * 2)?;
        if text.is_empty() {
            if !regex.is_match(text)? {
                parts.push(Js::Text(text.clone()));
            }
            parts.truncate(limit);
            return self.heap.add_array(parts);
        }
        let (mut begin, mut from) = (0, 0);
        while let Some(captures) = regex.first(text, from) {
            self.heap.work(text.len() - from + 64)?;
            self.heap.spend(2 * size_of::<Js>())?;
            let whole = captures.get_match();
            if whole.start() >= text.len() {
                break;
            }
            // An empty match right after the last separator separates nothing.
            if whole.end() == begin {
                from = begin
                    + text
                        .get(begin..)
                        .and_then(|rest| rest.chars().next())
                        .map_or(1, char::len_utf8);
                continue;
            }
            parts.push(text.get(begin..whole.start()).unwrap_or_default().into());
            let groups = captures.iter().skip(1);
            parts.extend(groups.map(|group| group.map_or(Js::Undefined, |group| group.as_str().into())));
            begin = whole.end();
            from = begin;
        }
        parts.push(text.get(begin..).unwrap_or_default().into());
        parts.truncate(limit);
        self.heap.add_array(parts)
    }

    fn matched(&mut self, text: &Text, pattern: &Js) -> EvalResult<Js> {
        let regexes = &self.code.regexes;
        let Some(regex) = self.regex(pattern).and_then(|regex| regexes.get(regex)) else {
            return bail("a regular expression from a text");
        };
        let matches = regex.matches(&mut self.heap, text, regex.is_global)?;
        self.heap.spend(text.len() * 2)?;
        let parts: Vec<Js> = match (regex.is_global, matches.first()) {
            (_, None) => return Ok(Js::Null),
            (true, Some(_)) => matches.iter().map(|found| found.get_match().as_str().into()).collect(),
            (false, Some(first)) => {
                let groups = first.iter();
                let parts = groups.map(|group| group.map_or(Js::Undefined, |group| group.as_str().into()));
                return self.heap.add_match(parts.collect());
            }
        };
        self.heap.add_array(parts)
    }

    fn replaced(&mut self, text: &Text, all: bool, arguments: &Arguments) -> EvalResult<Js> {
        let callback = arguments.callback_at(1);
        if arguments.callback.is_some() && callback.is_none() {
            return bail("a function in the place of a text");
        }
        let regexes = &self.code.regexes;
        let mut out = String::new();
        let (mut end, mut counted) = (0, 0);
        if let Some(regex) = self.regex(arguments.get(0)).and_then(|regex| regexes.get(regex)) {
            if all && !regex.is_global {
                return bail("replaceAll without g");
            }
            let template = match callback {
                Some(_) => Text::default(),
                None => coerce::text(&mut self.heap, arguments.get(1))?,
            };
            for found in regex.matches(&mut self.heap, text, regex.is_global)? {
                self.step()?;
                let whole = found.get_match();
                out.push_str(text.get(end..whole.start()).unwrap_or_default());
                let groups: Vec<Option<&str>> = found.iter().map(|group| group.map(|group| group.as_str())).collect();
                match callback {
                    Some(callback) => self.push_called(callback, text, whole.start(), &groups, &mut out)?,
                    None => expand(&template, text, whole.start(), &groups, &mut out)?,
                }
                end = whole.end();
                self.heap.spend(out.len().saturating_sub(counted))?;
                counted = out.len();
            }
        } else {
            let sought = coerce::text(&mut self.heap, arguments.get(0))?;
            if all && sought.is_empty() {
                return bail("replaceAll of nothing");
            }
            let template = match callback {
                Some(_) => Text::default(),
                None => coerce::text(&mut self.heap, arguments.get(1))?,
            };
            let found = text.match_indices(sought.as_str());
            for (start, whole) in found.take(if all { usize::MAX } else { 1 }) {
                self.step()?;
                out.push_str(text.get(end..start).unwrap_or_default());
                match callback {
                    Some(callback) => self.push_called(callback, text, start, &[Some(whole)], &mut out)?,
                    None => expand(&template, text, start, &[Some(whole)], &mut out)?,
                }
                end = start + whole.len();
                self.heap.spend(out.len().saturating_sub(counted))?;
                counted = out.len();
            }
        }
        if end == 0 && out.is_empty() {
            // Nothing was found, or an empty replacement of a match at the front.
            return match text.is_empty() {
                true => self.heap.add_text(out),
                false => Ok(Js::Text(text.clone())),
            };
        }
        out.push_str(text.get(end..).unwrap_or_default());
        self.heap.add_text(out)
    }

    fn push_called(
        &mut self,
        callback: Callback,
        text: &Text,
        start: usize,
        groups: &[Option<&str>],
        out: &mut String,
    ) -> EvalResult<()> {
        self.heap.work(text.len())?;
        let groups = groups.iter().map(|group| group.map_or(Js::Undefined, Js::from));
        let mut arguments: Vec<Js> = groups.collect();
        arguments.push(Js::Number(place_of(text, start)? as f64));
        arguments.push(Js::Text(text.clone()));
        let value = self.call_back(callback, &arguments)?;
        coerce::push_text(&mut self.heap, &value, out)
    }
}

/// Expands `$1`, `$&` and the like in a replacement.
fn expand(template: &str, text: &str, start: usize, groups: &[Option<&str>], out: &mut String) -> EvalResult<()> {
    let whole = groups.first().copied().flatten().unwrap_or_default();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let bytes = from.as_bytes();
        let digit = |i: usize| {
            bytes
                .get(i)
                .filter(|b| b.is_ascii_digit())
                .map(|b| usize::from(b - b'0'))
        };
        let taken = match bytes.get(1) {
            Some(b'$') => {
                out.push('$');
                2
            }
            Some(b'&') => {
                out.push_str(whole);
                2
            }
            Some(b'`') => {
                out.push_str(text.get(..start).unwrap_or_default());
                2
            }
            Some(b'\'') => {
                out.push_str(text.get(start + whole.len()..).unwrap_or_default());
                2
            }
            _ => {
                let group = |n: usize| (n >= 1 && n < groups.len()).then(|| groups.get(n).copied().flatten());
                let two = digit(1).zip(digit(2)).and_then(|(a, b)| group(a * 10 + b));
                match (two, digit(1).and_then(group)) {
                    (Some(group), _) => {
                        out.push_str(group.unwrap_or_default());
                        3
                    }
                    (None, Some(group)) => {
                        out.push_str(group.unwrap_or_default());
                        2
                    }
                    (None, None) => {
                        out.push('$');
                        1
                    }
                }
            }
        };
        rest = from.get(taken..).unwrap_or_default();
        if out.len() > EXPANDED_MAX {
            return bail("it creates a lot of data");
        }
    }
    out.push_str(rest);
    Ok(())
}
