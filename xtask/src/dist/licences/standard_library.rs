//! The licences of Rust's standard library, which is linked into every binary. The toolchain contains them as a page and some
//! texts.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::dist::contents::{files_of, read};
use crate::dist::programs::{english, output};
use crate::shell::root;

/// States the authors, and the crates that the library contains parts of.
const PAGE: &str = "COPYRIGHT-library.html";

/// File names with their texts.
pub fn texts() -> Result<Vec<(String, String)>> {
    // Run in the work tree, which may select its own toolchain.
    let toolchain = output(english("rustc").args(["--print", "sysroot"]).current_dir(root()))?;
    let folder = Path::new(toolchain.trim()).join("share/doc/rust");
    let page = read(&folder.join(PAGE)).context("the component rustc of rustup has it")?;
    let page = plain(&page);
    let mut texts = Vec::new();
    for file in files_of(&folder.join("licenses"), ".txt")? {
        let id = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        // The other files belong to the compiler.
        if page.contains(id) {
            texts.push((format!("{id}.txt"), read(&file)?));
        }
    }
    texts.push((PAGE.to_owned(), page));
    Ok(texts)
}

/// Converts a simple HTML page to text, without layout and with at most one blank line in a row.
fn plain(html: &str) -> String {
    let (mut text, mut is_in_tag) = (String::with_capacity(html.len()), false);
    for c in html.chars() {
        match c {
            '<' => is_in_tag = true,
            '>' if is_in_tag => is_in_tag = false,
            _ if is_in_tag => {}
            c => text.push(c),
        }
    }
    for (escaped, character) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#60;", "<"),
        ("&#62;", ">"),
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        // Last, so that nothing is replaced twice.
        ("&amp;", "&"),
    ] {
        text = text.replace(escaped, character);
    }
    let mut out = String::with_capacity(text.len());
    for line in text.lines().map(str::trim_end) {
        if !line.is_empty() || !out.ends_with("\n\n") {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_text_with_its_characters_and_without_its_layout() {
        let html = "<h1>Notices</h1>\n\n\n  \n<p><b>Copyright:</b> A &lt;a@b&gt; &amp;amp; \"C\"</p>\n";
        assert_eq!(plain(html), "Notices\n\nCopyright: A <a@b> &amp; \"C\"\n");
    }
}
