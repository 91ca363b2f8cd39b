//! Rules for the Python and C++ of the front end.

use super::rules::{COLUMNS_MAX, LINES_MAX, UNFINISHED, has_word};
use super::{SourceFile, Violation};

/// Whether a file is Python or C++.
pub(super) fn is_source(path: &str) -> bool {
    opening(path).is_some()
}

/// How a file's first line begins, by its language.
fn opening(path: &str) -> Option<&'static [&'static str]> {
    match path.rsplit_once('.')?.1 {
        "py" => Some(&["\"\"\""]),
        "cpp" | "h" => Some(&["// ", "/* "]),
        _ => None,
    }
}

/// Rules of form, which hold for tests too.
pub(super) fn check(file: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |line: usize, text: String| {
        violations.push(Violation::new(&file.path, line, text));
    };
    let first = file.text.lines().next().unwrap_or_default();
    let openings = opening(&file.path).unwrap_or_default();
    let purpose = openings.iter().find_map(|opening| first.strip_prefix(opening));
    if !purpose.is_some_and(|text| text.contains(char::is_alphabetic)) {
        let opening = openings.first().copied().unwrap_or_default();
        report(1, format!("the first line does not say what the file is for (`{opening}...`)"));
    }
    let mut lines = 0;
    for (index, line) in file.text.lines().enumerate() {
        lines += 1;
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            report(index + 1, format!("{columns} columns, more than {COLUMNS_MAX}"));
        }
        for word in UNFINISHED.into_iter().filter(|word| has_word(line, word)) {
            report(index + 1, format!("{word}: finish it, or write down what is missing"));
        }
    }
    if lines > LINES_MAX {
        report(0, format!("{lines} lines, more than {LINES_MAX}"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(path: &str, text: &str, lines: &[usize]) {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let found: Vec<usize> = check(&file).iter().map(|violation| violation.line).collect();
        assert_eq!(found, lines, "{path}: {text}");
    }

    #[test]
    fn only_python_and_cpp_are_sources() {
        for path in ["a.py", "b/c.cpp", "d.h"] {
            assert!(is_source(path), "{path}");
        }
        for path in ["a.rs", "py", "b.toml", "py.typed"] {
            assert!(!is_source(path), "{path}");
        }
    }

    #[test]
    fn good_source_passes() {
        expect("a.py", "\"\"\"Why.\"\"\"\n\nTODO_LIST = 1\n", &[]);
        expect("a.cpp", "// Why.\nint a;\n", &[]);
        expect("a.h", "/* Why.\n */\n#pragma once\n", &[]);
    }

    #[test]
    fn each_rule_can_be_broken() {
        for text in ["", "import a\n", "# Why.\n", "\"\"\"\nWhy.\n\"\"\"\n"] {
            expect("a.py", text, &[1]);
        }
        for text in ["", "#pragma once\n", "//\n", "\"\"\"Why.\"\"\"\n"] {
            expect("a.h", text, &[1]);
        }
        expect("a.py", "\"\"\"Why.\"\"\"\n# TODO: b\n", &[2]);
        expect("a.cpp", "// Why.\nint a;  // FIXME\n", &[2]);
        let wide = |columns: usize| format!("// Why.\n{}\n", "ä".repeat(columns));
        expect("a.cpp", &wide(COLUMNS_MAX), &[]);
        expect("a.cpp", &wide(COLUMNS_MAX + 1), &[2]);
        let long = |lines: usize| format!("\"\"\"Why.\"\"\"\n{}", "a = 1\n".repeat(lines - 1));
        expect("a.py", &long(LINES_MAX), &[]);
        expect("a.py", &long(LINES_MAX + 1), &[0]);
    }
}
