//! Any text as a configuration: it loads or is refused with a reason, and what is printed of a
//! loaded one reads back as the same document.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_config::{LoadOptions, Node, SourceText, load};

fuzz_target!(|text: &str| {
    let env = |name: &str| (name.len() < 3).then(|| "x\n- y: 1".to_owned());
    let loaded = load(&SourceText::new("fuzz.yaml", text), &env, &LoadOptions::default());
    let _ = loaded.diagnostics.to_string();
    let _ = loaded.config.to_json();
    let printed = loaded.config.to_yaml();
    let again = Node::parse(&printed).expect("what is printed is YAML");
    // Printing masks secrets, so the second printing is compared, not the tree.
    assert_eq!(again.to_yaml(), printed);
});
