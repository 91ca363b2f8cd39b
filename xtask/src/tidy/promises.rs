//! The tests that `docs/promises.md` names are there.

use super::{SourceFile, Violation};

/// The page.
pub(super) const PAGE: &str = "docs/promises.md";

/// The tests in the last column of the page's table for which `exists` says no. A name alone is
/// in the folder of the one before it in its row. Paths are from the workspace's root, or from
/// the folder of the crates.
pub(super) fn check(page: &SourceFile, exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let mut missing = Vec::new();
    for (index, line) in page.text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let proof = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        let mut folder = String::new();
        for name in proof.split('`').skip(1).step_by(2).flat_map(names) {
            let places = [name.clone(), format!("crates/{name}"), format!("{folder}/{name}")];
            match places.into_iter().find(|place| exists(place)) {
                Some(place) => {
                    folder = place.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
                }
                None => {
                    let text = format!("names the test {name}, which is not there");
                    missing.push(Violation::new(&page.path, index + 1, text));
                }
            }
        }
    }
    missing
}

/// The files and folders that a piece of code stands for: none if it is a command.
fn names(code: &str) -> Vec<String> {
    let code = code.split("::").next().unwrap_or_default();
    let is_path = !code.contains(' ') && code.contains(['.', '/']);
    let braces = code.split_once('{').and_then(|(before, rest)| {
        rest.split_once('}').map(|(inside, after)| (before, inside, after))
    });
    match braces {
        _ if !is_path => Vec::new(),
        Some((before, inside, after)) => {
            inside.split(',').map(|one| format!("{before}{one}{after}")).collect()
        }
        None => vec![code.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_are_gone_are_named() {
        let text = "\
| promise | proof |
|---|---|
| `gone.rs` is not a proof | `core/tests/a.rs`, `b.rs::one`, `gone.rs` |
| a command | `cargo xtask test`, `core/tests/{a,gone}.rs`, `python/tests/` |
Beside the table `gone.rs` is a word.
";
        let page = SourceFile { path: PAGE.to_owned(), text: text.to_owned() };
        let there = ["crates/core/tests/a.rs", "crates/core/tests/b.rs", "python/tests/"];
        let found: Vec<(usize, String)> = check(&page, |path| there.contains(&path))
            .into_iter()
            .map(|violation| (violation.line, violation.text))
            .collect();
        let expect = [(3, "gone.rs"), (4, "core/tests/gone.rs")];
        let expect =
            expect.map(|(line, name)| (line, format!("names the test {name}, which is not there")));
        assert_eq!(found, expect);
    }
}
