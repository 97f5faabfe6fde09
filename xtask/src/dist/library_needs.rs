//! Computes the Debian packages that the binary needs, and their versions, from the newest symbol version that it requires of
//! each library. This is what `dpkg-shlibdeps` does, reduced to two packages.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use super::programs::{english, output};

/// For the field `Depends`: `libc6 (>= 2.35)`.
pub fn of(binary: &Path) -> Result<Vec<String>> {
    let dynamic = output(english("readelf").args(["--wide", "--dynamic"]).arg(binary))?;
    let versions = output(english("readelf").args(["--wide", "--version-info"]).arg(binary))?;
    depends(&dynamic, &versions)
}

/// `dynamic` and `versions` are the output of `readelf` for these sections.
fn depends(dynamic: &str, versions: &str) -> Result<Vec<String>> {
    let mut newest: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let library = line.split(['[', ']']).nth(1).context("readelf names no library")?;
        newest.entry(package_of(library)?).or_default();
    }
    // The part before it lists the versions that the binary itself defines, if any.
    let needs = versions.split("Version needs section").nth(1).unwrap_or_default();
    let mut package = None;
    for line in needs.lines() {
        if let Some(library) = word_after(line, "File: ") {
            package = Some(package_of(library)?);
        } else if let (Some(package), Some(name)) = (package, word_after(line, "Name: ")) {
            let version = numbers_of(name)?;
            let known = newest.entry(package).or_default();
            if version > *known {
                *known = version;
            }
        }
    }
    Ok(newest
        .iter()
        .map(|(package, version)| field(package, version))
        .collect())
}

fn package_of(library: &str) -> Result<&'static str> {
    Ok(match library {
        "libc.so.6" | "libm.so.6" | "libdl.so.2" | "libpthread.so.0" | "librt.so.1" | "ld-linux-x86-64.so.2" => "libc6",
        "libgcc_s.so.1" => "libgcc-s1",
        _ => bail!(
            "the binary needs {library}, whose package is unknown; link it statically, or name its package in xtask/src/dist/library_needs.rs"
        ),
    })
}

fn word_after<'a>(line: &'a str, label: &str) -> Option<&'a str> {
    line.split_once(label)?.1.split_whitespace().next()
}

/// `GLIBC_2.34`, `GCC_4.2.0`
fn numbers_of(name: &str) -> Result<Vec<u32>> {
    if name == "GLIBC_ABI_DT_RELR" {
        // Relocations in the packed form, which this version is the first to support.
        return Ok(vec![2, 36]);
    }
    let numbers = name.split_once('_').map(|(_, numbers)| numbers);
    let parsed: Option<Vec<u32>> =
        numbers.and_then(|numbers| numbers.split('.').map(|part| part.parse::<u32>().ok()).collect());
    parsed.with_context(|| format!("the binary needs the symbol version {name}, whose package is unknown"))
}

fn field(package: &str, version: &[u32]) -> String {
    // Packages omit a third number of 0.
    let short = version.strip_suffix(&[0]).filter(|short| short.len() >= 2);
    let version = short.unwrap_or(version);
    if version.is_empty() {
        return package.to_owned();
    }
    let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
    format!("{package} (>= {})", numbers.join("."))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DYNAMIC: &str = "\
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000001e (FLAGS)              BIND_NOW
";
    const VERSIONS: &str = "\
Version symbols section '.gnu.version' contains 388 entries:
  000:   0 (*local*)       2 (GLIBC_2.34)
Version needs section '.gnu.version_r' contains 4 entries:
 Addr: 0x0000000000002aa8  Offset: 0x00002aa8  Link: 8 (.dynstr)
  000000: Version: 1  File: libgcc_s.so.1  Cnt: 3
  0x0040:   Name: GCC_3.0  Flags: none  Version: 5
  0x0060:   Name: GCC_4.2.0  Flags: none  Version: 33
  0x0020: Version: 1  File: libc.so.6  Cnt: 24
  0x0220:   Name: GLIBC_2.34  Flags: none  Version: 2
  0x00b0:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0010: Version: 1  File: libm.so.6  Cnt: 4
  0x00a0:   Name: GLIBC_2.35  Flags: none  Version: 20
";

    #[test]
    fn the_newest_version_that_any_library_of_a_package_is_asked_for_counts() {
        let found = depends(DYNAMIC, VERSIONS).unwrap();
        assert_eq!(found, ["libc6 (>= 2.35)", "libgcc-s1 (>= 4.2)"]);
        let packed = VERSIONS.replace("GLIBC_2.35", "GLIBC_ABI_DT_RELR");
        assert_eq!(depends(DYNAMIC, &packed).unwrap()[0], "libc6 (>= 2.36)");
        assert_eq!(depends(DYNAMIC, "").unwrap(), ["libc6", "libgcc-s1"]);
    }

    #[test]
    fn a_library_and_a_version_that_nobody_knows_are_errors_that_name_them() {
        let other = DYNAMIC.replace("libc.so.6", "libssl.so.3");
        let error = depends(&other, VERSIONS).unwrap_err().to_string();
        assert!(error.contains("libssl.so.3"), "{error}");
        let private = VERSIONS.replace("GLIBC_2.35", "GLIBC_PRIVATE");
        let error = depends(DYNAMIC, &private).unwrap_err().to_string();
        assert!(error.contains("GLIBC_PRIVATE"), "{error}");
    }
}
