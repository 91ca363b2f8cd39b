//! Links between documents lead somewhere.

use super::{SourceFile, Violation};

/// The links of a Markdown file to files for which `exists` says no. Paths are from the
/// workspace's root.
pub(super) fn check(file: &SourceFile, exists: impl Fn(&str) -> bool) -> Vec<Violation> {
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut broken = Vec::new();
    let mut in_code = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !exists(format!("{folder}/{path}").trim_start_matches('/')) {
                let text = format!("link to {target}, which is not there");
                broken.push(Violation::new(&file.path, index + 1, text));
            }
        }
    }
    broken
}

/// The targets of the links in a line, which follow `](` and end at `)` or a title.
fn targets(line: &str) -> Vec<&str> {
    let no_code: Vec<&str> = line.split('`').step_by(2).collect();
    let mut found = Vec::new();
    for part in no_code {
        // The text of a link may be code, so its target may begin a part.
        let joined = part.strip_prefix("](").into_iter();
        let inside = part.split("](").skip(1).filter(|_| !part.starts_with("]("));
        for rest in joined.chain(inside) {
            let target = rest.split([')', ' ']).next().unwrap_or_default();
            found.push(target.trim_matches(['<', '>']));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_nothing_are_found() {
        let text = "\
[a](there.md) [b](gone.md) ![c](../there.png \"title\")
[`code`](gone2.md) and `[d](gone3.md)` [e](#part) [f](there.md#part)
[g](https://example.org/gone) [h](mailto:a@b)
```
[i](gone4.md)
```
[j](gone5.md#part)
";
        let file = SourceFile { path: "docs/page.md".to_owned(), text: text.to_owned() };
        let there = ["docs/there.md", "docs/../there.png"];
        let found: Vec<(usize, String)> = check(&file, |path| there.contains(&path))
            .into_iter()
            .map(|violation| (violation.line, violation.text))
            .collect();
        let expect = [(1, "gone.md"), (2, "gone2.md"), (7, "gone5.md#part")];
        let expect = expect.map(|(line, to)| (line, format!("link to {to}, which is not there")));
        assert_eq!(found, expect);
    }
}
