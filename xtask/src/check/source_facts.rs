//! Parses a source file: its declared types, the lengths of its functions, and its test lines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// A declaration and its line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    pub line: usize,
}

#[derive(Debug, Default)]
pub struct SourceFacts {
    /// Structs, enums, unions, traits and aliases outside of tests.
    pub types: Vec<Declared>,
    /// Functions outside of tests, with their numbers of lines.
    pub functions: Vec<(Declared, usize)>,
    /// Number of lines outside of tests.
    pub lines: usize,
    /// Lines of tests, counted from 1.
    pub test_lines: BTreeSet<usize>,
    /// Test-only modules, by the names of their files.
    pub test_modules: Vec<PathBuf>,
}

impl SourceFacts {
    /// `file` is the path of the text.
    pub fn of(file: &Path, text: &str) -> Result<SourceFacts> {
        let parsed = syn::parse_file(text).with_context(|| format!("cannot parse {}", file.display()))?;
        let mut reader = FactReader {
            file,
            facts: SourceFacts::default(),
        };
        let count = text.lines().count();
        match is_of_tests(&parsed.attrs) {
            // The whole file is test code, as its first line declares.
            true => reader.facts.test_lines.extend(1..=count),
            false => reader.visit_file(&parsed),
        }
        reader.facts.lines = count - reader.facts.test_lines.len();
        Ok(reader.facts)
    }
}

struct FactReader<'a> {
    file: &'a Path,
    facts: SourceFacts,
}

impl FactReader<'_> {
    fn declare(&mut self, name: &syn::Ident) {
        self.facts.types.push(Declared {
            name: name.to_string(),
            line: name.span().start().line,
        });
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let name = Declared {
            name: signature.ident.to_string(),
            line: signature.span().start().line,
        };
        let lines = body.span().end().line + 1 - signature.span().start().line;
        self.facts.functions.push((name, lines));
    }

    fn of_tests(&mut self, attributes: &[syn::Attribute], item: proc_macro2::Span) {
        let begins = attributes.iter().map(|attribute| attribute.span().start().line);
        let first = begins.min().unwrap_or(item.start().line);
        self.facts.test_lines.extend(first..=item.end().line);
    }

    /// The files that may contain a module declared here.
    fn files_of(&self, module: &syn::ItemMod) -> Vec<PathBuf> {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        if let Some(path) = path_of(&module.attrs) {
            return vec![folder.join(path)];
        }
        let stem = self.file.file_stem().unwrap_or_default();
        let own = match stem.to_str() {
            Some("lib" | "main" | "mod") => folder.to_owned(),
            _ => folder.join(stem),
        };
        let name = module.ident.to_string();
        vec![own.join(format!("{name}.rs")), own.join(name)]
    }
}

impl<'ast> Visit<'ast> for FactReader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = attributes_of(item);
        if is_of_tests(attributes) {
            self.of_tests(attributes, item.span());
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
            {
                let files = self.files_of(module);
                self.facts.test_modules.extend(files);
            }
            return;
        }
        match item {
            syn::Item::Struct(item) => self.declare(&item.ident),
            syn::Item::Enum(item) => self.declare(&item.ident),
            syn::Item::Union(item) => self.declare(&item.ident),
            syn::Item::Trait(item) => self.declare(&item.ident),
            syn::Item::Type(item) => self.declare(&item.ident),
            syn::Item::Fn(item) => self.function(&item.sig, &item.block),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if is_of_tests(&item.attrs) {
            self.of_tests(&item.attrs, item.span());
            return;
        }
        self.function(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

fn attributes_of(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, alone or within `all` or `any`: code that is built only for tests and fuzzing counts as tests.
fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            let words: Vec<&str> = condition
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .collect();
            words.contains(&"test") && !words.contains(&"not")
        }
        meta => meta.path().is_ident("test"),
    })
}

/// The value of `#[path = "…"]`.
fn path_of(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn facts(text: &str) -> SourceFacts {
        SourceFacts::of(Path::new("crates/a/src/queue.rs"), text).unwrap()
    }

    #[test]
    fn a_module_of_tests_near_the_top_hides_nothing_that_follows() {
        let text = "//! Queue.\n#[cfg(test)]\nmod tests;\nstruct Queue;\nfn long() {\n\n}\n";
        let facts = facts(text);
        assert_eq!(facts.lines, 5);
        let names: Vec<&str> = facts.types.iter().map(|declared| declared.name.as_str()).collect();
        assert_eq!(names, ["Queue"]);
        assert_eq!(facts.functions[0].1, 3);
        let modules: Vec<_> = facts.test_modules.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(modules, ["crates/a/src/queue/tests.rs", "crates/a/src/queue/tests"]);
    }

    #[test]
    fn types_of_tests_do_not_count_and_those_within_modules_and_functions_do() {
        let text = "mod inner { pub enum Kind {} }\n\
            fn f() { struct Local; }\n\
            impl Local { type Item = u8; fn g(&self) {} }\n\
            #[cfg(test)] mod tests { struct State; }\n\
            #[cfg(any(test, fuzzing))] struct Fuzzed;\n\
            #[cfg(not(test))] struct Real;\n\
            #[path = \"crash.rs\"] #[cfg(test)] mod crash_tests;\n";
        let facts = facts(text);
        let names: Vec<&str> = facts.types.iter().map(|declared| declared.name.as_str()).collect();
        assert_eq!(names, ["Kind", "Local", "Real"]);
        assert_eq!(facts.functions.len(), 2);
        assert_eq!(facts.test_modules, [Path::new("crates/a/src/crash.rs")]);
    }
}
