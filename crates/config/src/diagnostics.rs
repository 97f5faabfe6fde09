//! Mistakes and warnings found in a configuration, each with its position.
//!
//! All readers of the file share [`Diagnostics`] through a plain reference. It collects messages and returns them
//! sorted by position, without duplicates.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::describe::FieldDoc;
use crate::node::Node;
use crate::source::Pos;

/// Maximum number of diagnostics; a file with more mistakes is not a configuration.
const DIAGNOSTICS_MAX: usize = 1000;

/// Replaces an unset variable or an unreadable secret in the parsed text. Messages about a value that contains it are
/// dropped, because they would only repeat that report.
pub(crate) const UNSET: &str = "\u{E000}";
/// The same, as it is in quotes.
const UNSET_QUOTED: &str = "\\u{e000}";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    Error,
    Warning,
    /// Neither wrong nor doubtful; shown only on request.
    Note,
}

/// One message; its `Display` is the line that an operator reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub file: Arc<str>,
    pub pos: Pos,
    pub message: String,
}

impl Diagnostic {
    pub(crate) fn error(file: &str, pos: Pos, message: String) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            file: Arc::from(file),
            pos,
            message,
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pos {
            Pos::COMMAND_LINE => f.write_str("command line: ")?,
            Pos::WHOLE_FILE => write!(f, "{}: ", self.file)?,
            pos => write!(f, "{}:{pos}: ", self.file)?,
        }
        if self.severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Collects the diagnostics of one file; all methods take `&self`.
#[derive(Debug)]
pub struct Diagnostics {
    file: Arc<str>,
    chilled: bool,
    allows_absent: bool,
    describing: bool,
    state: Mutex<DiagnosticsState>,
}

#[derive(Debug, Default)]
struct DiagnosticsState {
    found: Vec<Diagnostic>,
    /// Whether [`UNSET`] stands for something in the document.
    has_unset: bool,
    /// Where values begin and end that contain [`UNSET`], as far as they are known.
    unset: Vec<(Pos, Pos)>,
    notes: Vec<Diagnostic>,
    omitted: usize,
    /// Maps a label to its first position and document path.
    labels: HashMap<String, (Pos, String)>,
    docs: Vec<FieldDoc>,
}

impl Diagnostics {
    /// `file` is the name shown before each message.
    pub fn new(file: impl AsRef<str>) -> Diagnostics {
        Diagnostics {
            file: Arc::from(file.as_ref()),
            chilled: false,
            allows_absent: false,
            describing: false,
            state: Mutex::default(),
        }
    }

    /// With `chilled`, unknown fields are warnings.
    #[must_use]
    pub fn with_chilled(mut self, chilled: bool) -> Diagnostics {
        self.chilled = chilled;
        self
    }

    /// With `allowed`, variables, secrets and files that are not on this machine are warnings.
    #[must_use]
    pub fn with_absent(mut self, allowed: bool) -> Diagnostics {
        self.allows_absent = allowed;
        self
    }

    /// Whether variables, secrets and files may be absent.
    pub fn allows_absent(&self) -> bool {
        self.allows_absent
    }

    pub(crate) fn describing() -> Diagnostics {
        Diagnostics::new("").with_docs()
    }

    /// Every field that a reader asks for is recorded.
    #[must_use]
    pub fn with_docs(mut self) -> Diagnostics {
        self.describing = true;
        self
    }

    /// Whether fields are only being described; a reader that could go on without an end then stops.
    pub fn is_describing(&self) -> bool {
        self.describing
    }

    /// An error at the node's position, prefixed with the node's path.
    pub fn error(&self, node: &Node, message: impl fmt::Display) {
        if self.is_told(node) {
            return;
        }
        self.push(Severity::Error, node.pos(), with_path(node, &message));
    }

    /// A warning at the node's position, prefixed with the node's path.
    pub fn warn(&self, node: &Node, message: impl fmt::Display) {
        self.push(Severity::Warning, node.pos(), with_path(node, &message));
    }

    pub fn error_at(&self, pos: Pos, message: impl fmt::Display) {
        self.push(Severity::Error, pos, message.to_string());
    }

    pub fn warn_at(&self, pos: Pos, message: impl fmt::Display) {
        self.push(Severity::Warning, pos, message.to_string());
    }

    /// Something of the document that is not on this machine: a warning if that is allowed, or else an error, which may
    /// have a cure.
    pub fn absent_at(&self, pos: Pos, what: impl fmt::Display, cure: &str) {
        match self.allows_absent {
            true => self.warn_at(pos, format!("{what}; what depends on it is not checked")),
            false => self.error_at(pos, format!("{what}{cure}")),
        }
    }

    /// [`UNSET`] stands for something, which has been reported.
    pub(crate) fn unset(&self) {
        self.state().has_unset = true;
    }

    /// Whether a part of the document is not known, which has been reported.
    pub fn has_unset(&self) -> bool {
        self.state().has_unset
    }

    /// Values of the tree that contain [`UNSET`]: from now on, nothing that is found in them is reported.
    pub(crate) fn leave_out_unset(&self, root: &Node) {
        if self.has_unset() {
            let mut found = Vec::new();
            unset_values(root, &mut found);
            self.state().unset = found;
        }
    }

    /// A note, which is stored separately (see [`Diagnostics::notes`]).
    pub fn note_at(&self, pos: Pos, message: impl fmt::Display) {
        let note = Diagnostic {
            severity: Severity::Note,
            file: self.file.clone(),
            pos,
            message: message.to_string(),
        };
        let mut state = self.state();
        // A resource is read each time that it is referenced.
        if state.notes.len() < DIAGNOSTICS_MAX && !state.notes.contains(&note) {
            state.notes.push(note);
        }
    }

    /// All notes, sorted by position.
    pub fn notes(&self) -> Vec<Diagnostic> {
        let mut notes = self.state().notes.clone();
        notes.sort_by_key(|note| note.pos);
        notes
    }

    /// An unknown field: an error, or a warning with `--chilled`.
    pub(crate) fn unknown_field_at(&self, pos: Pos, message: String) {
        let severity = if self.chilled {
            Severity::Warning
        } else {
            Severity::Error
        };
        self.push(severity, pos, message);
    }

    /// Adds a diagnostic created elsewhere, for example for a file that could not be read.
    pub fn add(&self, diagnostic: Diagnostic) {
        let mut state = self.state();
        let pos = diagnostic.pos;
        let is_within = |(start, end): &(Pos, Pos)| (*start..=*end).contains(&pos);
        let quotes_unset = [UNSET, UNSET_QUOTED]
            .iter()
            .any(|mark| diagnostic.message.contains(mark));
        if state.has_unset && (quotes_unset || state.unset.iter().any(is_within)) {
            return;
        }
        if state.found.len() < DIAGNOSTICS_MAX {
            state.found.push(diagnostic);
        } else {
            state.omitted += 1;
        }
    }

    /// Whether the node contains an unset variable or an unreadable secret, which is reported already. Without one the
    /// mark is just a character of the file.
    pub(crate) fn is_told(&self, node: &Node) -> bool {
        node.is_unset() && self.has_unset()
    }

    fn push(&self, severity: Severity, pos: Pos, message: String) {
        self.add(Diagnostic {
            severity,
            file: self.file.clone(),
            pos,
            message,
        });
    }

    pub fn has_errors(&self) -> bool {
        self.error_count() > 0
    }

    pub fn error_count(&self) -> usize {
        let state = self.state();
        state.found.iter().filter(|d| d.severity == Severity::Error).count()
    }

    /// Whether further diagnostics would be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.state().found.len() >= DIAGNOSTICS_MAX
    }

    /// Everything found so far, sorted by position, without duplicates.
    pub fn sorted(&self) -> Vec<Diagnostic> {
        let state = self.state();
        let mut found = state.found.clone();
        found.sort_by_key(|found| (found.pos, found.severity));
        let mut seen = std::collections::HashSet::new();
        found.retain(|d| seen.insert((d.pos, d.severity, d.message.clone())));
        if state.omitted > 0 {
            let message = format!("{} more mistakes are not shown", state.omitted);
            found.push(Diagnostic::error(&self.file, Pos::WHOLE_FILE, message));
        }
        found
    }

    /// Claims a label for the component at `path` in the document. Returns where it was claimed before, unless by the
    /// same component, which is read once for checking and once for building.
    pub(crate) fn claim_label(&self, label: &str, pos: Pos, path: &str) -> Option<Pos> {
        match self.state().labels.entry(label.to_owned()) {
            Entry::Vacant(free) => {
                free.insert((pos, path.to_owned()));
                None
            }
            Entry::Occupied(taken) => {
                let (first, first_path) = taken.get();
                ((*first, first_path.as_str()) != (pos, path)).then_some(*first)
            }
        }
    }

    pub(crate) fn record(&self, doc: FieldDoc) {
        let mut state = self.state();
        if !state.docs.iter().any(|known| known.name == doc.name) {
            state.docs.push(doc);
        }
    }

    /// The fields that readers asked for, in their order, if they are recorded.
    pub fn take_docs(&self) -> Vec<FieldDoc> {
        std::mem::take(&mut self.state().docs)
    }

    fn state(&self) -> MutexGuard<'_, DiagnosticsState> {
        // A panic elsewhere leaves the list consistent: each change to it is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Diagnostics {
    /// All diagnostics, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in self.sorted() {
            writeln!(f, "{diagnostic}")?;
        }
        Ok(())
    }
}

fn unset_values(node: &Node, found: &mut Vec<(Pos, Pos)>) {
    if node.is_unset() {
        found.push((node.pos(), node.end_pos()));
    }
    let items = node.as_seq().into_iter().flatten();
    let fields = node
        .as_map()
        .into_iter()
        .flat_map(|map| map.iter().map(|(_, value)| value));
    items.chain(fields).for_each(|below| unset_values(below, found));
}

fn with_path(node: &Node, message: &impl fmt::Display) -> String {
    let path = node.path();
    if path.is_empty() {
        message.to_string()
    } else {
        format!("{path}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_sorted_and_once() {
        let diags = Diagnostics::new("flow.yaml");
        diags.warn_at(Pos { line: 9, column: 3 }, "late");
        diags.error_at(Pos { line: 2, column: 8 }, "early");
        diags.error_at(Pos { line: 2, column: 8 }, "early");
        diags.error_at(Pos::COMMAND_LINE, "from -s");
        diags.error_at(Pos::WHOLE_FILE, "unreadable");
        let text = "flow.yaml: unreadable\ncommand line: from -s\n\
                    flow.yaml:2:8: early\nflow.yaml:9:3: warning: late\n";
        assert_eq!(diags.to_string(), text);
        assert!(diags.has_errors());
        assert_eq!(diags.error_count(), 4);
    }

    #[test]
    fn a_flood_of_mistakes_is_counted_not_kept() {
        let diags = Diagnostics::new("flow.yaml");
        for line in 1..=1500 {
            diags.error_at(Pos { line, column: 1 }, "bad");
        }
        let sorted = diags.sorted();
        assert_eq!(sorted.len(), 1001);
        assert_eq!(
            sorted.last().unwrap().to_string(),
            "flow.yaml: 500 more mistakes are not shown"
        );
    }

    #[test]
    fn messages_that_quote_an_unset_variable_are_dropped() {
        let diags = Diagnostics::new("flow.yaml");
        diags.error_at(Pos { line: 1, column: 1 }, format!("got the text \"{UNSET}\""));
        assert_eq!(diags.error_count(), 1, "the character alone hides nothing");
        let diags = Diagnostics::new("flow.yaml");
        diags.error_at(Pos { line: 1, column: 1 }, "environment variable X is not set");
        diags.unset();
        let node = Node::parse(&format!("a: {UNSET}")).unwrap();
        diags.error(node.get("a").unwrap(), "bad");
        diags.error_at(Pos { line: 1, column: 1 }, format!("got the text \"{UNSET}\""));
        assert_eq!(diags.error_count(), 1);
    }
}
