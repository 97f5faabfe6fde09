//! Regular expressions, as far as an engine without backtracking runs them exactly as JavaScript does.
//!
//! Such an engine searches in linear time, whatever the expression. What it cannot do (look-around, backreferences) or
//! does differently (groups within repetitions) is left to QuickJS. The bound applies to one search; the number of
//! searches is counted.

use std::fmt::Write as _;

use oxc_ast::ast::{RegExp, RegExpFlags};
use oxc_regular_expression::ast::{
    Alternative, BoundaryAssertionKind, CharacterClass, CharacterClassContents, CharacterClassContentsKind,
    CharacterClassEscapeKind, Disjunction, Term,
};
use regex::Captures;

use super::heap::{EvalResult, Heap, bail};

#[derive(Debug)]
pub(super) struct ScriptRegex {
    compiled: regex::Regex,
    pub is_global: bool,
    ignores_case: bool,
}

const SPACES: &str = r"\t-\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}";
const SIZE_MAX: usize = 1 << 20;

type TranslateResult = Result<(), String>;

impl ScriptRegex {
    pub fn new(literal: &RegExp<'_>) -> Result<ScriptRegex, String> {
        let allowed = RegExpFlags::G | RegExpFlags::I | RegExpFlags::S | RegExpFlags::U;
        if !allowed.contains(literal.flags) {
            return Err("a regular expression with flags other than g, i, s, u".to_owned());
        }
        let pattern = literal.pattern.pattern.as_ref();
        let pattern = pattern.ok_or("a regular expression that only QuickJS can parse")?;
        let ignores_case = literal.flags.contains(RegExpFlags::I);
        let mut translator = Translator {
            out: String::new(),
            dot_is_all: literal.flags.contains(RegExpFlags::S),
            ignores_case,
        };
        if ignores_case {
            translator.out.push_str("(?i)");
        }
        translator.disjunction(&pattern.body)?;
        let compiled = regex::RegexBuilder::new(&translator.out).size_limit(SIZE_MAX).build();
        Ok(ScriptRegex {
            compiled: compiled.map_err(|_| "a large regular expression")?,
            is_global: literal.flags.contains(RegExpFlags::G),
            ignores_case,
        })
    }

    /// Makes sure that the engine sees the text as JavaScript does.
    pub fn fits(&self, text: &str) -> EvalResult<()> {
        if self.ignores_case && !text.is_ascii() {
            return bail("a regular expression without case on text beyond ASCII");
        }
        if text.bytes().any(|b| b >= 0xf0) {
            return bail("a regular expression on text with surrogate pairs");
        }
        Ok(())
    }

    pub fn is_match(&self, text: &str) -> EvalResult<bool> {
        self.fits(text)?;
        Ok(self.compiled.is_match(text))
    }

    /// The first match from a byte offset on, in a text that fits.
    pub fn first<'t>(&self, text: &'t str, from: usize) -> Option<Captures<'t>> {
        self.compiled.captures_at(text, from)
    }

    /// All matches, or the first one, as `replace` and `match` iterate over them: after an empty match they continue
    /// one character further.
    pub fn matches<'t>(&self, heap: &mut Heap<'_>, text: &'t str, all: bool) -> EvalResult<Vec<Captures<'t>>> {
        self.fits(text)?;
        let mut found = Vec::new();
        let mut from = 0;
        while from <= text.len() {
            // One search takes linear time, and there may be as many as the text has characters.
            heap.work(text.len() - from + 64)?;
            heap.spend(size_of::<Captures<'_>>())?;
            let Some(captures) = self.compiled.captures_at(text, from) else {
                break;
            };
            let whole = captures.get_match();
            from = match whole.is_empty() {
                true => {
                    whole.end()
                        + text
                            .get(whole.end()..)
                            .and_then(|rest| rest.chars().next())
                            .map_or(1, char::len_utf8)
                }
                false => whole.end(),
            };
            found.push(captures);
            if !all {
                break;
            }
        }
        Ok(found)
    }
}

struct Translator {
    out: String,
    dot_is_all: bool,
    ignores_case: bool,
}

impl Translator {
    fn disjunction(&mut self, disjunction: &Disjunction<'_>) -> TranslateResult {
        for (i, alternative) in disjunction.body.iter().enumerate() {
            if i > 0 {
                self.out.push('|');
            }
            alternative.body.iter().try_for_each(|term| self.term(term))?;
        }
        Ok(())
    }

    fn term(&mut self, term: &Term<'_>) -> TranslateResult {
        match term {
            Term::BoundaryAssertion(boundary) => self.out.push_str(match boundary.kind {
                BoundaryAssertionKind::Start => r"\A",
                BoundaryAssertionKind::End => r"\z",
                BoundaryAssertionKind::Boundary => r"(?-u:\b)",
                // There is no boundary and no position between the bytes of a character.
                BoundaryAssertionKind::NegativeBoundary => return Err("\\B in a regular expression".to_owned()),
            }),
            Term::Quantifier(quantifier) => {
                let is_repeated = quantifier.max != Some(1);
                if is_nullable(&quantifier.body) || (is_repeated && has_group(&quantifier.body)) {
                    return Err("a repeated group in a regular expression".to_owned());
                }
                self.out.push_str("(?:");
                self.term(&quantifier.body)?;
                let _infallible = match quantifier.max {
                    Some(max) => write!(self.out, "){{{},{max}}}", quantifier.min),
                    None => write!(self.out, "){{{},}}", quantifier.min),
                };
                if !quantifier.greedy {
                    self.out.push('?');
                }
            }
            Term::Character(character) => self.character(character.value)?,
            Term::Dot(_) => self.out.push_str(match self.dot_is_all {
                true => "(?s:.)",
                false => r"[^\n\r\x{2028}\x{2029}]",
            }),
            Term::CharacterClassEscape(escape) => {
                self.out.push('[');
                self.escape(escape.kind);
                self.out.push(']');
            }
            Term::CharacterClass(class) => self.class(class)?,
            Term::CapturingGroup(group) => {
                if group.name.is_some() {
                    return Err("a named group in a regular expression".to_owned());
                }
                self.out.push('(');
                self.disjunction(&group.body)?;
                self.out.push(')');
            }
            Term::IgnoreGroup(group) => {
                if group.modifiers.is_some() {
                    return Err("modifiers in a regular expression".to_owned());
                }
                self.out.push_str("(?:");
                self.disjunction(&group.body)?;
                self.out.push(')');
            }
            Term::LookAroundAssertion(_) => return Err("a look-around in a regular expression".to_owned()),
            Term::UnicodePropertyEscape(_) => return Err("\\p in a regular expression".to_owned()),
            Term::IndexedReference(_) | Term::NamedReference(_) => {
                return Err("a reference in a regular expression".to_owned());
            }
        }
        Ok(())
    }

    fn character(&mut self, value: u32) -> TranslateResult {
        if !is_simple(value) || (self.ignores_case && value > 0x7f) {
            return Err("an unusual character in a regular expression".to_owned());
        }
        let _infallible = write!(self.out, "\\x{{{value:X}}}");
        Ok(())
    }

    fn escape(&mut self, kind: CharacterClassEscapeKind) {
        let (negated, members) = match kind {
            CharacterClassEscapeKind::D => (false, "0-9"),
            CharacterClassEscapeKind::NegativeD => (true, "0-9"),
            CharacterClassEscapeKind::S => (false, SPACES),
            CharacterClassEscapeKind::NegativeS => (true, SPACES),
            CharacterClassEscapeKind::W => (false, "0-9A-Za-z_"),
            CharacterClassEscapeKind::NegativeW => (true, "0-9A-Za-z_"),
        };
        let _infallible = match negated {
            true => write!(self.out, "[^{members}]"),
            false => write!(self.out, "{members}"),
        };
    }

    fn class(&mut self, class: &CharacterClass<'_>) -> TranslateResult {
        if class.kind != CharacterClassContentsKind::Union || class.strings {
            return Err("an unusual class in a regular expression".to_owned());
        }
        if class.body.is_empty() {
            self.out.push_str(match class.negative {
                true => "(?s:.)",
                false => return Err("an empty class in a regular expression".to_owned()),
            });
            return Ok(());
        }
        self.out.push_str(if class.negative { "[^" } else { "[" });
        for member in &class.body {
            match member {
                CharacterClassContents::Character(character) => self.character(character.value)?,
                CharacterClassContents::CharacterClassRange(range) => {
                    let (min, max) = (range.min.value, range.max.value);
                    if min < 0xd800 && (0xe000..=0xffff).contains(&max) && !self.ignores_case {
                        let _infallible = write!(self.out, "\\x{{{min:X}}}-\\x{{D7FF}}\\x{{E000}}-\\x{{{max:X}}}");
                        continue;
                    }
                    self.character(min)?;
                    self.out.push('-');
                    self.character(max)?;
                }
                CharacterClassContents::CharacterClassEscape(escape) => self.escape(escape.kind),
                _ => return Err("an unusual class in a regular expression".to_owned()),
            }
        }
        self.out.push(']');
        Ok(())
    }
}

/// One unit in JavaScript, and one character here.
fn is_simple(value: u32) -> bool {
    value < 0xd800 || (0xe000..=0xffff).contains(&value)
}

/// Whether the term can match the empty text.
fn is_nullable(term: &Term<'_>) -> bool {
    match term {
        Term::BoundaryAssertion(_) | Term::LookAroundAssertion(_) => true,
        Term::Quantifier(quantifier) => quantifier.min == 0 || is_nullable(&quantifier.body),
        Term::CapturingGroup(group) => any(&group.body, |alternative| alternative.body.iter().all(is_nullable)),
        Term::IgnoreGroup(group) => any(&group.body, |alternative| alternative.body.iter().all(is_nullable)),
        Term::IndexedReference(_) | Term::NamedReference(_) => true,
        _ => false,
    }
}

fn has_group(term: &Term<'_>) -> bool {
    match term {
        Term::CapturingGroup(_) => true,
        Term::Quantifier(quantifier) => has_group(&quantifier.body),
        Term::IgnoreGroup(group) => any(&group.body, |alternative| alternative.body.iter().any(has_group)),
        _ => false,
    }
}

fn any(disjunction: &Disjunction<'_>, test: impl Fn(&Alternative<'_>) -> bool) -> bool {
    disjunction.body.iter().any(test)
}
