//! `file`: files named by paths or patterns, one after the other, cut into messages. The flow ends after the last.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use thalweg_config::{ComponentNode, Fields};

use super::codec::Codec;
use super::stdin::read_stream;
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::input::{Input, InputContext, InputError};
use crate::parse::ParseContext;
use crate::registry::InputSpec;

#[derive(Clone)]
struct Spec {
    paths: Vec<String>,
    codec: Codec,
}

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let paths = fields.string_list("paths");
    if paths.is_empty() {
        fields.error(
            "paths",
            "no paths given; name at least one file or pattern such as \"data/*.json\"",
        );
    }
    let codec = Codec::read(&mut fields);
    fields.finish();
    Some(Arc::new(Spec { paths, codec }))
}

impl InputSpec for Spec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl Input for Spec {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            for pattern in &self.paths {
                for path in matching(pattern)? {
                    if !context.stop.is_cancelled() {
                        read_file(&path, &self.codec, &context).await?;
                    }
                }
            }
            Ok(())
        })
    }
}

async fn read_file(path: &Path, codec: &Codec, context: &InputContext) -> Result<(), InputError> {
    let unreadable = |error| InputError(format!("cannot read {}: {error}", path.display()));
    let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let modified = file.metadata().await.ok().and_then(|metadata| metadata.modified().ok());
    let modified = modified
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map(|since| since.as_secs().to_string());
    context.connection.up();
    let name = path.display().to_string();
    let read = read_stream(file, codec, context, |message| {
        message.meta.set("path", name.as_str());
        message
            .meta
            .set("mod_time_unix", modified.as_deref().unwrap_or_default());
    });
    read.await.map_err(unreadable)
}

/// The files that a path or a pattern names, sorted. `*` and `?` stay within a folder, `**` crosses folders.
fn matching(pattern: &str) -> Result<Vec<PathBuf>, InputError> {
    if !pattern.contains(['*', '?', '[', '{']) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob
        .map_err(|error| InputError(format!("the pattern {pattern} is not valid: {error}")))?
        .compile_matcher();
    let first_special = pattern.find(['*', '?', '[', '{']).unwrap_or(0);
    let root = pattern
        .get(..first_special)
        .and_then(|fixed| fixed.rfind('/'))
        .and_then(|slash| pattern.get(..slash));
    let root = match root {
        None => ".",
        Some("") => "/",
        Some(root) => root,
    };
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(root)];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).map_err(|error| {
            InputError(format!(
                "cannot list {} for the pattern {pattern}: {error}",
                folder.display()
            ))
        })?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let relative = path.strip_prefix("./").unwrap_or(&path);
            if path.is_dir() {
                folders.push(path);
            } else if glob.is_match(relative) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_find_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for name in ["z.json", "a.json", "a.txt", "b/c.json"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let find = |pattern: &str| {
            let found = matching(&format!("{}/{pattern}", folder.path().display())).unwrap();
            found
                .iter()
                .map(|p| p.strip_prefix(folder.path()).unwrap().display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(find("*.json"), ["a.json", "z.json"]);
        assert_eq!(find("**/*.json"), ["a.json", "b/c.json", "z.json"]);
        assert_eq!(find("a.txt"), ["a.txt"]);
    }
}
