//! Loads a configuration: environment, YAML, overrides, secret files, typed reading.
//!
//! Each step reports into the same [`Diagnostics`]. A text that is not YAML gives the configuration of an empty file
//! beside its error, so a caller must check the diagnostics before using it.

use std::path::Path;
use std::sync::Arc;

use crate::config::Config;
use crate::diagnostics::Diagnostics;
use crate::environment::replace;
use crate::node::{Node, ValueKind};
use crate::overrides::set;
use crate::parse::parse;
use crate::secrets::expand_files;
use crate::source::SourceText;

#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Pairs of `-s path=value`, applied in order.
    pub set: Vec<(String, String)>,
    /// Unknown fields are warnings.
    pub chilled: bool,
    /// Variables, secrets and files that are not on this machine are warnings, and what depends on them is not checked.
    pub allows_absent: bool,
    /// Every field that a reader asks for is recorded ([`Diagnostics::take_docs`]).
    pub describing: bool,
}

/// A configuration and its diagnostics.
#[derive(Debug)]
pub struct LoadedConfig {
    pub config: Config,
    pub diagnostics: Diagnostics,
}

/// Reads a configuration from its text. `env` returns the value of an environment variable.
pub fn load(source: &SourceText, env: &dyn Fn(&str) -> Option<String>, options: &LoadOptions) -> LoadedConfig {
    let mut diagnostics = Diagnostics::new(&source.name)
        .with_chilled(options.chilled)
        .with_absent(options.allows_absent);
    if options.describing {
        diagnostics = diagnostics.with_docs();
    }
    let root = document(source, env, options, &diagnostics);
    let config = root.map(|root| Config::read(&root, &diagnostics));
    LoadedConfig {
        config: config.unwrap_or_default(),
        diagnostics,
    }
}

/// Reads a configuration from a file of at most 8 MiB.
pub fn load_path(path: &Path, env: &dyn Fn(&str) -> Option<String>, options: &LoadOptions) -> LoadedConfig {
    match SourceText::read(path) {
        Ok(source) => load(&source, env, options),
        Err(error) => {
            let diagnostics = Diagnostics::new(path.display().to_string());
            diagnostics.add(error);
            LoadedConfig {
                config: Config::default(),
                diagnostics,
            }
        }
    }
}

/// The environment of this process; a value that is not UTF-8 counts as not set.
pub fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn document(
    source: &SourceText,
    env: &dyn Fn(&str) -> Option<String>,
    options: &LoadOptions,
    diags: &Diagnostics,
) -> Option<Node> {
    let map = replace(source, env, diags)?;
    let root = parse(&Arc::new(map), None, diags)?;
    if !matches!(root.kind(), ValueKind::Map | ValueKind::Null) {
        let message = "the file must be a mapping, with fields such as input, pipeline and output";
        if !diags.is_told(&root) {
            diags.error_at(root.pos(), format!("{message}; it is {}", root.describe()));
        }
        return None;
    }
    let sets = options.set.iter();
    let root = sets.fold(root, |root, (path, value)| set(&root, path, value, diags));
    let root = expand_files(&root, diags);
    diags.leave_out_unset(&root);
    Some(root)
}
