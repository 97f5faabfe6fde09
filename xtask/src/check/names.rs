//! Checks that type names are understandable without their path and unique in their crate.

use std::collections::BTreeMap;

use super::SourceFile;

/// Words that do not describe a type.
const SAY_NOTHING: &[&str] = &[
    "Asked", "Found", "Gathered", "Given", "Gone", "Growing", "Held", "Judged", "Kept", "Known", "Left", "Lies",
    "Looked", "Made", "Opened", "Passed", "Place", "Reached", "Said", "Seen", "Taken", "Told", "Wanted", "What",
    "Which", "Why",
];

/// Applies to files of the product. Types of tests, benches and fuzz targets may be short.
pub(super) fn are_unique_and_say_something(files: &[SourceFile], wrong: &mut Vec<String>) {
    let mut declared: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_product()) {
        for one in &file.facts.types {
            let place = format!("{}:{}", file.short, one.line);
            if SAY_NOTHING.contains(&one.name.as_str()) {
                wrong.push(format!(
                    "{place} {} does not describe the type; use a specific name",
                    one.name
                ));
            }
            declared
                .entry((file.crate_name(), one.name.as_str()))
                .or_default()
                .push(place);
        }
    }
    for ((crate_name, name), places) in declared {
        if places.len() > 1 {
            wrong.push(format!(
                "crates/{crate_name} has {} types named {name}; each needs its own name: {}",
                places.len(),
                places.join(", ")
            ));
        }
    }
}
