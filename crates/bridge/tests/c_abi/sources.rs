//! A panic must not reach C: what is caught, and that every exported function catches.

use std::path::Path;

/// Functions with nothing in them that could panic.
const PLAIN: [&str; 6] = [
    "smartswap_abi_version",
    "smartswap_last_error",
    "smartswap_default_settings",
    "smartswap_is_open",
    "smartswap_free_text",
    "smartswap_memory_fraction",
];
/// What catches, or calls what does.
const CATCHES: [&str; 7] = [
    "code(",
    "guard(",
    "smartswap_allocate(",
    "smartswap_free(",
    "smartswap_use_on(",
    "smartswap_reset_peaks(",
    "is_open(",
];

#[test]
fn every_exported_function_catches_panics() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exports");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder of the exports") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for exported in text.split("#[unsafe(no_mangle)]\n").skip(1) {
            let (head, rest) = exported.split_once('{').expect("a body");
            let body = rest.split("\n}\n").next().expect("its end");
            let name = head.split("fn ").nth(1).and_then(|name| name.split('(').next());
            let name = name.expect("a name").to_owned();
            let catches = CATCHES.iter().any(|call| body.contains(call));
            assert!(catches || PLAIN.contains(&name.as_str()), "{name} lets a panic through");
            names.push(name);
        }
    }
    assert!(names.len() >= 47, "{names:?}");
    // And the header declares each that is not for pluggable allocators.
    let header = include_str!("../../include/smartswap.h");
    let pluggable = include_str!("../../src/exports/pluggable.rs");
    for name in &names {
        let declared = header.contains(&format!("{name}("));
        assert_ne!(declared, pluggable.contains(&format!("fn {name}(")), "{name}");
    }
}
