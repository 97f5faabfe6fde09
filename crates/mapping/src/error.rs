//! Errors of a source text (with a position), of a run (with a line), and of one expression (handled by `catch` and
//! `|`).

use std::fmt;

/// Why a text is not a valid mapping: its first mistake, and the others. Positions count from 1 within the text; a
/// caller that took the text from a file adds the file's offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct CompileError {
    pub line: usize,
    /// In characters, not bytes.
    pub column: usize,
    pub message: String,
    /// The further mistakes, in the order of the text; they have no others.
    pub others: Vec<CompileError>,
}

impl CompileError {
    /// Every mistake, in the order of the text.
    pub fn all(&self) -> impl Iterator<Item = &CompileError> {
        std::iter::once(self).chain(&self.others)
    }
}

/// Why a mapping failed on a message. The message is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunError {
    /// The line of the failed statement; `None` for an interpolation, which has no lines.
    pub line: Option<usize>,
    pub message: String,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "failed assignment (line {line}): {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for RunError {}

/// An error in the source text at a byte offset.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub at: usize,
    pub message: String,
}

impl SyntaxError {
    pub fn new(at: usize, message: impl Into<String>) -> SyntaxError {
        SyntaxError {
            at,
            message: message.into(),
        }
    }

    /// The mistakes of a text with their lines and columns.
    pub fn place(mut mistakes: Vec<SyntaxError>, source: &str) -> CompileError {
        mistakes.sort_by_key(|mistake| mistake.at);
        mistakes.dedup_by(|a, b| (a.at, &a.message) == (b.at, &b.message));
        let (mut line, mut line_start, mut passed) = (1, 0, 0);
        let mut placed = mistakes.into_iter().map(|mistake| {
            let at = mistake.at.min(source.len());
            let between = source.get(passed..at).unwrap_or_default();
            if let Some(newline) = between.rfind('\n') {
                line += between.matches('\n').count();
                line_start = passed + newline + 1;
            }
            passed = at;
            CompileError {
                line,
                column: source.get(line_start..at).unwrap_or_default().chars().count() + 1,
                message: mistake.message,
                others: Vec::new(),
            }
        });
        let first = placed.next();
        let others = placed.collect();
        match first {
            Some(first) => CompileError { others, ..first },
            // Nobody asks without a mistake.
            None => CompileError {
                line: 1,
                column: 1,
                message: "the text cannot be read".to_owned(),
                others,
            },
        }
    }
}

/// Returns "unknown function `x`, did you mean `y`?", or lists all known names if none is close.
pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = known.collect();
    names.sort_unstable();
    names.dedup();
    let nearest = names
        .iter()
        .map(|known| (strsim::levenshtein(name, known), *known))
        .min();
    match nearest {
        Some((distance, near)) if distance <= 3 => format!("unknown {what} `{name}`, did you mean `{near}`?"),
        Some(_) => format!("unknown {what} `{name}`; there are: {}", names.join(", ")),
        None => format!("unknown {what} `{name}`; there are none"),
    }
}

pub(crate) type EvalResult<T> = Result<T, Fault>;

/// A fault of one expression. It is boxed so that results stay small on the success path.
#[derive(Debug)]
pub(crate) struct Fault(Box<FaultKind>);

#[derive(Debug)]
enum FaultKind {
    /// A value of the wrong type. A caller that knows the source of the value adds it with [`Fault::from`].
    Expected {
        wanted: &'static str,
        got: &'static str,
        shown: String,
    },
    Text(String),
}

impl Fault {
    pub fn text(message: impl Into<String>) -> Fault {
        Fault(Box::new(FaultKind::Text(message.into())))
    }

    pub fn expected(wanted: &'static str, got: &'static str, shown: String) -> Fault {
        Fault(Box::new(FaultKind::Expected { wanted, got, shown }))
    }

    /// Adds the source of a value of the wrong type; other faults pass unchanged.
    pub fn from(self, source: impl FnOnce() -> String) -> Fault {
        match *self.0 {
            FaultKind::Expected { wanted, got, shown } => {
                let source = source();
                Fault::text(format!("expected {wanted} value, got {got} from {source}{shown}"))
            }
            FaultKind::Text(_) => self,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            FaultKind::Expected { wanted, got, shown } => write!(f, "expected {wanted} value, got {got}{shown}"),
            FaultKind::Text(text) => f.write_str(text),
        }
    }
}
