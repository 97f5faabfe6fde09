//! The content of both packages and its locations. The .tar.gz has the folders of a prefix such as /usr/local; the .deb has the
//! same ones below /usr, and Debian's locations for some files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::programs::{english, output, output_to};
use super::staging::{EXECUTE, READ, StagedTree};
use crate::shell::root;

/// Locations that depend on the package.
pub struct Layout {
    /// Prefix of `bin`, `lib` and `share`.
    pub prefix: &'static str,
    /// Path of the installed program in the unit.
    pub program: &'static str,
    /// The folder of zsh completions, below the prefix.
    pub zsh: &'static str,
    /// Folder of `README.md`, `LICENSE`, `docs` and `examples`.
    pub documents: &'static str,
}

pub const DEBIAN: Layout = Layout {
    prefix: "usr/",
    program: UNIT_PROGRAM,
    zsh: "share/zsh/vendor-completions",
    documents: "usr/share/doc/thalweg/",
};

pub const TARBALL: Layout = Layout {
    prefix: "",
    program: "/usr/local/bin/thalweg",
    zsh: "share/zsh/site-functions",
    documents: "",
};

/// The program that the unit in `packaging` starts.
const UNIT_PROGRAM: &str = "/usr/bin/thalweg";
pub const UNIT: &str = "lib/systemd/system/thalweg.service";
pub const CONFIG: &str = "etc/thalweg/thalweg.yaml";
pub const LICENCES: &str = "THIRD-PARTY-LICENSES";
pub const MANUAL: &str = "share/man/man1";

/// The folders of the packaged documents; the decisions are only for readers of the sources.
const PARTS: [&str; 5] = [
    "docs",
    "docs/tutorials",
    "docs/how-to",
    "docs/reference",
    "docs/explanation",
];

/// The completions: name of the shell, and the file below the prefix. The zsh file is below [`Layout::zsh`].
const BASH: &str = "share/bash-completion/completions/thalweg";
const ZSH: &str = "_thalweg";
const FISH: &str = "share/fish/vendor_completions.d/thalweg.fish";

/// Files generated for each release.
pub struct GeneratedFiles {
    pub binary: PathBuf,
    licences: String,
    /// Contains `bash`, `zsh` and `fish`, and the folder `man`.
    folder: PathBuf,
}

impl GeneratedFiles {
    /// Generates completions and manual pages with the binary itself, so that they match its command line.
    pub fn make(binary: &Path, licences: String, folder: &Path) -> Result<GeneratedFiles> {
        for shell in ["bash", "zsh", "fish"] {
            output_to(english(binary).args(["completions", shell]), &folder.join(shell))?;
        }
        let pages = folder.join("man");
        std::fs::create_dir_all(&pages)?;
        output(english(binary).arg("man").arg(&pages))?;
        let made = GeneratedFiles {
            binary: binary.to_owned(),
            licences,
            folder: folder.to_owned(),
        };
        ensure!(!made.pages()?.is_empty(), "thalweg man wrote no page");
        Ok(made)
    }

    fn pages(&self) -> Result<Vec<PathBuf>> {
        files_of(&self.folder.join("man"), ".1")
    }
}

impl Layout {
    /// The completion file of a shell.
    pub fn completions(&self, shell: &str) -> String {
        match shell {
            "bash" => format!("{}{BASH}", self.prefix),
            "zsh" => format!("{}{}/{ZSH}", self.prefix, self.zsh),
            _ => format!("{}{FISH}", self.prefix),
        }
    }

    /// Puts all files into a tree.
    pub fn fill(&self, tree: &StagedTree, generated: &GeneratedFiles) -> Result<()> {
        let prefix = self.prefix;
        tree.copy(&generated.binary, &format!("{prefix}bin/thalweg"), EXECUTE)?;
        for shell in ["bash", "zsh", "fish"] {
            tree.copy(&generated.folder.join(shell), &self.completions(shell), READ)?;
        }
        for page in generated.pages()? {
            tree.copy(&page, &format!("{prefix}{MANUAL}/{}", name(&page)?), READ)?;
        }
        let unit = read(&packaging("thalweg.service"))?.replace(UNIT_PROGRAM, self.program);
        tree.write(&format!("{prefix}{UNIT}"), &unit, READ)?;
        tree.copy(&packaging("thalweg.yaml"), CONFIG, READ)?;
        self.documents(tree, generated)
    }

    fn documents(&self, tree: &StagedTree, generated: &GeneratedFiles) -> Result<()> {
        let before = self.documents;
        tree.write(&format!("{before}{LICENCES}"), &generated.licences, READ)?;
        for own in ["README.md", "LICENSE"] {
            tree.copy(&root().join(own), &format!("{before}{own}"), READ)?;
        }
        for part in PARTS {
            for page in files_of(&root().join(part), ".md")? {
                let name = name(&page)?;
                // The lists of tests are only for readers of the sources.
                if !name.ends_with("-tests.md") {
                    tree.copy(&page, &format!("{before}{part}/{name}"), READ)?;
                }
            }
        }
        for example in files_of(&root().join("examples"), ".yaml")? {
            tree.copy(&example, &format!("{before}examples/{}", name(&example)?), READ)?;
        }
        Ok(())
    }
}

/// A file of the folder `packaging`.
pub fn packaging(name: &str) -> PathBuf {
    root().join("packaging").join(name)
}

pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The files of a folder with an extension, sorted.
pub fn files_of(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_file() && name(&path)?.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{} has a name that is no text", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_package_has_completions_where_its_shells_look() {
        let zsh = [&DEBIAN, &TARBALL].map(|layout| layout.completions("zsh"));
        assert_eq!(
            zsh,
            [
                "usr/share/zsh/vendor-completions/_thalweg",
                "share/zsh/site-functions/_thalweg"
            ]
        );
        assert_eq!(DEBIAN.completions("bash"), format!("usr/{BASH}"));
        assert_eq!(TARBALL.completions("fish"), FISH);
    }

    #[test]
    fn the_unit_of_each_package_starts_what_that_package_installs() {
        let unit = read(&packaging("thalweg.service")).unwrap();
        assert_eq!(unit.matches(UNIT_PROGRAM).count(), 1);
        assert!(unit.contains(&format!("ExecStart={UNIT_PROGRAM} run /{CONFIG}\n")));
        assert_eq!(DEBIAN.program, format!("/{}bin/thalweg", DEBIAN.prefix));
    }
}
