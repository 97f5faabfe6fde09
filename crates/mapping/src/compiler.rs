//! Where compiled things get the world they run in: a [`Compiler`] holds a host and the named counters.

use std::sync::Arc;

use crate::host::{Host, NamedCounters, system};
use crate::{CompileError, Interpolation, Mapping};

/// Compiles mappings and interpolations that share a [`Host`] and the counters of `count("name")`.
#[derive(Clone)]
pub struct Compiler {
    pub(crate) host: Arc<dyn Host>,
    pub(crate) counts: Arc<NamedCounters>,
}

impl Default for Compiler {
    /// The machine itself, and the counters of the process.
    fn default() -> Compiler {
        Compiler {
            host: system(),
            counts: NamedCounters::process(),
        }
    }
}

impl Compiler {
    pub fn new(host: Arc<dyn Host>, counts: Arc<NamedCounters>) -> Compiler {
        Compiler { host, counts }
    }

    /// A mapping: `root` is a new document, `this` the input.
    pub fn mapping(&self, source: &str) -> Result<Mapping, CompileError> {
        Mapping::build(self, source, false)
    }

    /// A mutation: `root` is the input document, changed in place, and `this` sees the changes.
    pub fn mutation(&self, source: &str) -> Result<Mapping, CompileError> {
        Mapping::build(self, source, true)
    }

    pub fn interpolation(&self, text: &str) -> Result<Interpolation, CompileError> {
        Interpolation::build(self, text)
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Compiler")
    }
}
