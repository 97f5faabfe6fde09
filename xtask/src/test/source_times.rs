//! Lets a fresh clone use what an earlier run compiled from the same sources.
//!
//! Cargo compiles a crate again when a file of it has a newer time than the crate's last build. All files of a fresh clone are
//! new, so every crate of the workspace would be compiled again, whatever the target folder has. After its builds, a run
//! notes the content and the time of each file there. The next run gives a file with the same content the same time.
//!
//! That holds only if nothing else was compiled into the target folder meanwhile: a build of another clone may have compiled
//! another content. Then nothing is changed, and cargo decides as usual.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::shell::{root, target_dir};

/// In the target folder.
const NOTES: &str = "release/compiled-sources";
/// The folder of this program, which cargo has compiled before it could run.
const OWN: &str = "xtask/";

/// Content and time of a file.
#[derive(Clone, Copy, PartialEq, Debug)]
struct SourceVersion {
    hash: u64,
    modified: SystemTime,
}

/// Gives each file that is as it was when the target folder was built the time that it had then. Prints how many files there
/// are, and how many of them are as they were.
pub(super) fn restore() -> Result<()> {
    let Some(files) = tracked_files(&root())? else {
        return Ok(());
    };
    match restore_in(&root(), &target_dir(), &files)? {
        Some(unchanged) => println!(
            "{unchanged} of {} files are as the target folder has compiled them",
            files.len()
        ),
        None => println!("the target folder has no notes of its last build, or something else was built in it since"),
    }
    Ok(())
}

/// Notes the files from which the target folder was built. `begin` is when the first build began: nobody knows whether a
/// build has seen a file as it is now if it was written later.
pub(super) fn note(begin: SystemTime) -> Result<()> {
    let Some(files) = tracked_files(&root())? else {
        return Ok(());
    };
    note_in(&root(), &target_dir(), &files, begin)
}

fn restore_in(root: &Path, target: &Path, files: &[String]) -> Result<Option<usize>> {
    let notes = target.join(NOTES);
    let Ok(text) = fs::read_to_string(&notes) else {
        return Ok(None);
    };
    if last_build(target)? > fs::metadata(&notes)?.modified()? {
        return Ok(None);
    }
    let known: HashMap<_, _> = text.lines().filter_map(parse).collect();
    let mut unchanged = 0;
    for file in files {
        let path = root.join(file);
        let (Some(then), Some(now)) = (known.get(file.as_str()), version(&path)?) else {
            continue;
        };
        if then.hash == now.hash {
            unchanged += 1;
            if then.modified != now.modified {
                set_modified(&path, then.modified)?;
            }
        }
    }
    Ok(Some(unchanged))
}

fn note_in(root: &Path, target: &Path, files: &[String], begin: SystemTime) -> Result<()> {
    let mut text = String::new();
    for file in files {
        if let Some(SourceVersion { hash, modified }) = version(&root.join(file))?
            && modified < begin
        {
            let nanos = modified.duration_since(UNIX_EPOCH)?.as_nanos();
            text.push_str(&format!("{hash:016x} {nanos} {file}\n"));
        }
    }
    // The old notes have gone at every moment at which the new ones are not whole.
    let notes = target.join(NOTES);
    let unfinished = notes.with_extension("new");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, notes).context("cannot note the files of this build")
}

fn parse(line: &str) -> Option<(&str, SourceVersion)> {
    let (hash, rest) = line.split_once(' ')?;
    let (nanos, file) = rest.split_once(' ')?;
    let version = SourceVersion {
        hash: u64::from_str_radix(hash, 16).ok()?,
        modified: UNIX_EPOCH + Duration::from_nanos(nanos.parse().ok()?),
    };
    Some((file, version))
}

/// `None` for what is no file, or is gone.
fn version(path: &Path) -> Result<Option<SourceVersion>> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(None);
    };
    if !metadata.is_file() {
        return Ok(None);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(path).with_context(|| format!("cannot read {}", path.display()))?);
    Ok(Some(SourceVersion {
        hash: hasher.finish(),
        modified: metadata.modified()?,
    }))
}

fn set_modified(path: &Path, time: SystemTime) -> Result<()> {
    let file = File::options().append(true).open(path);
    file.and_then(|file| file.set_modified(time))
        .with_context(|| format!("cannot set the time of {}", path.display()))
}

/// When a crate of the workspace was compiled last. Cargo has a folder for each unit, and writes into it when it compiles it.
fn last_build(target: &Path) -> Result<SystemTime> {
    let (mut last, units) = (UNIX_EPOCH, target.join("release/.fingerprint"));
    if !units.exists() {
        return Ok(last);
    }
    for folder in fs::read_dir(units)? {
        let folder = folder?;
        if !folder.file_name().to_string_lossy().starts_with("thalweg") {
            continue;
        }
        for file in fs::read_dir(folder.path())? {
            last = last.max(file?.metadata()?.modified()?);
        }
    }
    Ok(last)
}

/// The files that Git has, by their path from the root; `None` if these sources have no repository.
fn tracked_files(root: &Path) -> Result<Option<Vec<String>>> {
    let Ok(output) = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output() else {
        return Ok(None);
    };
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8(output.stdout).context("Git has a file whose name is no UTF-8")?;
    let files: Vec<_> = text
        .split_terminator('\0')
        .filter(|file| !file.starts_with(OWN))
        .collect();
    if files.iter().any(|file| file.contains('\n')) {
        bail!("Git has a file with a line end in its name");
    }
    Ok(Some(files.into_iter().map(str::to_owned).collect()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FILES: [&str; 3] = ["same.rs", "changed.rs", "written_late.rs"];

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn write(path: &Path, text: &str, seconds: u64) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        set_modified(path, at(seconds)).unwrap();
    }

    fn modified(path: &Path) -> SystemTime {
        fs::metadata(path).unwrap().modified().unwrap()
    }

    /// A workspace that was built at 1,500, and a clone of it at 5,000 with one change.
    fn built_and_cloned() -> (tempfile::TempDir, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let (built, target) = (folder.path().join("built"), folder.path().join("target"));
        let files: Vec<_> = FILES.iter().map(|file| (*file).to_owned()).collect();
        write(&target.join("release/.fingerprint/thalweg-log-1/lib"), "", 1_600);
        write(&target.join("release/.fingerprint/xtask-1/bin"), "", 4_000);
        for (file, seconds) in FILES.iter().zip([1_000, 1_000, 1_550]) {
            write(&built.join(file), file, seconds);
        }
        note_in(&built, &target, &files, at(1_500)).unwrap();
        set_modified(&target.join(NOTES), at(2_000)).unwrap();
        for file in FILES {
            write(&folder.path().join("clone").join(file), file, 5_000);
        }
        write(&folder.path().join("clone/changed.rs"), "other", 5_000);
        (folder, files)
    }

    #[test]
    fn a_clone_has_the_times_of_the_files_that_were_compiled_as_they_are() {
        let (folder, files) = built_and_cloned();
        let (clone, target) = (folder.path().join("clone"), folder.path().join("target"));
        assert_eq!(restore_in(&clone, &target, &files).unwrap(), Some(1));
        let times = FILES.map(|file| modified(&clone.join(file)));
        assert_eq!(times, [at(1_000), at(5_000), at(5_000)]);
    }

    #[test]
    fn nothing_is_believed_after_another_build_or_without_notes() {
        let (folder, files) = built_and_cloned();
        let (clone, target) = (folder.path().join("clone"), folder.path().join("target"));
        let unit = target.join("release/.fingerprint/thalweg-log-1/lib");
        write(&unit, "", 2_001);
        assert_eq!(restore_in(&clone, &target, &files).unwrap(), None);
        write(&unit, "", 1_600);
        fs::remove_file(target.join(NOTES)).unwrap();
        assert_eq!(restore_in(&clone, &target, &files).unwrap(), None);
        assert_eq!(modified(&clone.join("same.rs")), at(5_000));
    }
}
