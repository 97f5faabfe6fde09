//! `file`: reads files named by paths or patterns, one after the other, and splits them into messages. The flow ends
//! after the last file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use thalweg_config::{ComponentNode, Fields};
use thalweg_kit::blocking;
use thalweg_record::{AckResult, Message};

use super::scanner::ScannerSpec;
use super::stdin::read_stream;
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError, Component};
use crate::input::{Input, InputContext, InputError};
use crate::parse::ParseContext;
use crate::registry::InputSpec;

#[derive(Clone)]
struct FileInput {
    paths: Vec<String>,
    scanner: ScannerSpec,
    delete_on_finish: bool,
}

/// A file that is deleted when it is read to its end and every message of it has been acknowledged. The reader and every
/// batch hold it, and whoever is last decides.
struct FinishedFile {
    path: PathBuf,
    component: Component,
    is_whole: AtomicBool,
    was_given_up: AtomicBool,
}

impl Drop for FinishedFile {
    fn drop(&mut self) {
        if !*self.is_whole.get_mut() || *self.was_given_up.get_mut() {
            return;
        }
        // At once: after the last message the process may end.
        if let Err(error) = std::fs::remove_file(&self.path) {
            self.component.warn_limited("not_deleted", 1, || {
                let path = self.path.display();
                format!("cannot delete {path}, which was read to its end; it will be read again: {error}")
            });
        }
    }
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
    let scanner = ScannerSpec::read(&mut fields);
    super::read_auto_replay_nacks(&mut fields);
    let delete_on_finish = fields.bool("delete_on_finish", false);
    fields.finish();
    Some(Arc::new(FileInput {
        paths,
        scanner,
        delete_on_finish,
    }))
}

impl InputSpec for FileInput {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl Input for FileInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            for pattern in &self.paths {
                for path in find(pattern.clone(), &context).await? {
                    if !context.stop.is_cancelled() {
                        self.read(&path, &context).await?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl FileInput {
    async fn read(&self, path: &Path, context: &InputContext) -> Result<(), InputError> {
        let file = self.delete_on_finish.then(|| {
            Arc::new(FinishedFile {
                path: path.to_owned(),
                component: context.component.clone(),
                is_whole: AtomicBool::new(false),
                was_given_up: AtomicBool::new(false),
            })
        });
        let settle = || {
            let file = file.clone();
            move |result| {
                if let (Some(file), AckResult::Nacked) = (file, result) {
                    file.was_given_up.store(true, Ordering::Relaxed);
                }
            }
        };
        let is_whole = read_file(path, &self.scanner, context, settle).await?;
        if let Some(file) = file {
            file.is_whole.store(is_whole, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Returns whether the whole file was passed on.
async fn read_file<S: FnOnce(AckResult) + Send + 'static>(
    path: &Path,
    scanner: &ScannerSpec,
    context: &InputContext,
    settle: impl Fn() -> S,
) -> Result<bool, InputError> {
    let unreadable = |error| InputError(format!("cannot read {}: {error}", path.display()));
    let file = tokio::fs::File::open(path).await.map_err(unreadable)?;
    let modified = file.metadata().await.ok().and_then(|metadata| metadata.modified().ok());
    let modified = modified
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map(|since| since.as_secs().to_string());
    context.connection.up();
    let name = path.display().to_string();
    let mark = |message: &mut Message| {
        message.meta.set("path", name.as_str());
        message
            .meta
            .set("mod_time_unix", modified.as_deref().unwrap_or_default());
    };
    let read = read_stream(file, scanner, context, mark, settle);
    read.await.map_err(unreadable)
}

/// Finding the files of a pattern may take long, so it runs on a blocking thread.
async fn find(pattern: String, context: &InputContext) -> Result<Vec<PathBuf>, InputError> {
    let component = context.component.clone();
    let search = blocking::spawn(move || {
        let unreadable = |folder: &Path, error: std::io::Error| {
            component.warn_limited("unreadable_folder", 1, || {
                format!("cannot list {}, its files are skipped: {error}", folder.display())
            });
        };
        matching(&pattern, |folder| std::fs::read_dir(folder), unreadable)
    });
    search
        .await
        .unwrap_or_else(|fault| Err(InputError(format!("the search for files was stopped: {fault}"))))
}

/// Characters that make a path a pattern.
const SPECIAL: [char; 4] = ['*', '?', '[', '{'];

/// Returns the files that a path or a pattern matches, sorted. `*` and `?` stay within a folder, `**` crosses folders.
/// Symbolic links to folders are not followed, because they may form a cycle.
fn matching(
    pattern: &str,
    list: impl Fn(&Path) -> std::io::Result<std::fs::ReadDir>,
    unreadable: impl Fn(&Path, std::io::Error),
) -> Result<Vec<PathBuf>, InputError> {
    if !pattern.contains(SPECIAL) {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let glob = globset::GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob
        .map_err(|error| InputError(format!("the pattern {pattern} is not valid: {error}")))?
        .compile_matcher();
    let fixed = pattern.split(SPECIAL).next().unwrap_or_default();
    let root = match fixed.rfind('/') {
        None => ".",
        Some(0) => "/",
        Some(slash) => pattern.get(..slash).unwrap_or_default(),
    };
    let rest = pattern
        .get(fixed.rfind('/').map_or(0, |slash| slash + 1)..)
        .unwrap_or_default();
    // Levels of folders below the root that can contain a match.
    let levels = match rest.contains("**") {
        true => usize::MAX,
        false => rest.matches('/').count(),
    };
    let mut found = Vec::new();
    let mut folders = vec![(PathBuf::from(root), 0)];
    while let Some((folder, level)) = folders.pop() {
        let entries = match list(&folder) {
            Ok(entries) => entries,
            Err(error) if level > 0 => {
                unreadable(&folder, error);
                continue;
            }
            Err(error) => {
                let folder = folder.display();
                return Err(InputError(format!(
                    "cannot list {folder} for the pattern {pattern}: {error}"
                )));
            }
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if level < levels {
                    folders.push((path, level + 1));
                }
            } else if glob.is_match(path.strip_prefix("./").unwrap_or(&path)) && path.exists() && !path.is_dir() {
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

    fn found_by(pattern: &str) -> Vec<PathBuf> {
        matching(
            pattern,
            |folder| std::fs::read_dir(folder),
            |folder, error| panic!("{}: {error}", folder.display()),
        )
        .unwrap()
    }

    #[test]
    fn a_folder_that_cannot_be_listed_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/x.json", "locked/x.json", "z/x.json"] {
            std::fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(root.path().join(name), "x").unwrap();
        }
        let list = |folder: &Path| match folder.ends_with("locked") {
            true => Err(std::io::ErrorKind::PermissionDenied.into()),
            false => std::fs::read_dir(folder),
        };
        let passed_over = std::cell::RefCell::new(Vec::new());
        let pattern = format!("{}/*/x.json", root.path().display());
        let found = matching(&pattern, list, |folder, _| {
            passed_over.borrow_mut().push(folder.to_owned())
        });
        assert_eq!(
            found.unwrap(),
            [root.path().join("a/x.json"), root.path().join("z/x.json")]
        );
        assert_eq!(passed_over.into_inner(), [root.path().join("locked")]);
        let root_itself = matching(&pattern, |_| Err(std::io::ErrorKind::NotFound.into()), |_, _| {});
        assert!(root_itself.is_err());
    }

    #[test]
    fn patterns_find_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for name in ["z.json", "a.json", "a.txt", "b/c.json"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let find = |pattern: &str| {
            let found = found_by(&format!("{}/{pattern}", folder.path().display()));
            found
                .iter()
                .map(|p| p.strip_prefix(folder.path()).unwrap().display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(find("*.json"), ["a.json", "z.json"]);
        assert_eq!(find("**/*.json"), ["a.json", "b/c.json", "z.json"]);
        assert_eq!(find("a.txt"), ["a.txt"]);
    }

    #[test]
    fn a_pattern_looks_no_deeper_than_it_reaches_and_goes_round_no_circle() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a/b/c", "d"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        for name in ["a/1.json", "a/b/2.json", "a/b/c/3.json", "d/4.json"] {
            std::fs::write(path(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(folder.path(), path("d/round")).unwrap();
        std::os::unix::fs::symlink(path("a/1.json"), path("d/linked.json")).unwrap();
        std::os::unix::fs::symlink(path("nowhere"), path("broken.json")).unwrap();
        let find = |pattern: &str| {
            let found = found_by(&format!("{}/{pattern}", folder.path().display()));
            let names = found
                .iter()
                .map(|p| p.strip_prefix(folder.path()).unwrap().display().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(find("*/*.json"), ["a/1.json", "d/4.json", "d/linked.json"]);
        assert_eq!(
            find("**/*.json"),
            ["a/1.json", "a/b/2.json", "a/b/c/3.json", "d/4.json", "d/linked.json"]
        );
    }
}
