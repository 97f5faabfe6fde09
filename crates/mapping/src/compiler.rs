//! [`Compiler`] holds the host and the named counters that compiled mappings and interpolations use.

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
    /// Uses the system host and the counters of the process.
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

    /// Compiles a mapping: `root` is a new document and `this` is the input.
    pub fn mapping(&self, source: &str) -> Result<Mapping, CompileError> {
        Mapping::build(self, source, false)
    }

    /// Compiles a mutation: `root` is the input document, changed in place, and `this` sees the changes.
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
