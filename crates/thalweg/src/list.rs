//! `thalweg list`: the components that a configuration can name.

use std::process::ExitCode;

use crate::cli::{ListKind, ListOptions};

pub fn main(options: &ListOptions) -> anyhow::Result<ExitCode> {
    let components = thalweg_assemble::Components::new();
    let registry = &components.registry;
    let all: [(ListKind, &str, Vec<&str>); 3] = [
        (ListKind::Inputs, "Inputs", registry.input_names().collect()),
        (ListKind::Processors, "Processors", registry.processor_names().collect()),
        (ListKind::Outputs, "Outputs", registry.output_names().collect()),
    ];
    for (kind, title, names) in all {
        if options.kind.is_none_or(|wanted| wanted == kind) {
            println!("{title}:");
            names.iter().for_each(|name| println!("  {name}"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
