//! `thalweg list`: the components that a configuration can name.

use std::process::ExitCode;

use crate::cli::{ListKind, ListOptions};
use crate::out;

pub fn main(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let components = thalweg_assemble::Components::new();
    let registry = &components.registry;
    let all: [(ListKind, &str, Vec<&str>); 3] = [
        (ListKind::Inputs, "Inputs", registry.input_names().collect()),
        (ListKind::Processors, "Processors", registry.processor_names().collect()),
        (ListKind::Outputs, "Outputs", registry.output_names().collect()),
    ];
    let mut text = String::new();
    for (kind, title, names) in all {
        if options.kind.is_none_or(|wanted| wanted == kind) {
            text.push_str(title);
            text.push_str(":\n");
            names.iter().for_each(|name| text.extend(["  ", name, "\n"]));
        }
    }
    out::text_as_is(text)?;
    Ok(ExitCode::SUCCESS)
}
