//! Rules of form: first lines, widths, lengths, forbidden words.

use super::source::Code;
use super::{SourceFile, Violation};

pub(super) const COLUMNS_MAX: usize = 100;
pub(super) const LINES_MAX: usize = 500;

/// Marks of unfinished work, anywhere but in literals.
pub(super) const UNFINISHED: [&str; 2] = ["TODO", "FIXME"];
/// Code that gives up, outside tests, and what to write in its place.
const GIVES_UP: [(&str, &str); 3] = [
    (".unwrap()", "say why it holds: .expect(\"...\")"),
    ("todo!", "finish it"),
    ("unimplemented!", "finish it"),
];

/// Whether a file holds nothing but tests.
pub(super) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

/// Rules for text of any kind.
pub(super) fn check_text(file: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            violations.push(Violation::new(&file.path, index + 1, "white space at the line's end"));
        }
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        violations.push(Violation::new(&file.path, 0, "no line end at the file's end"));
    }
    violations
}

/// Rules for Rust source.
pub(super) fn check_code(file: &SourceFile, code: &Code) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |line: usize, text: String| {
        violations.push(Violation::new(&file.path, line, text));
    };
    if file.path.ends_with("/mod.rs") {
        report(0, "named mod.rs: name it after its module".to_owned());
    }
    if !file.text.starts_with("//!") {
        report(1, "the first line does not say what the file is for (`//! ...`)".to_owned());
    }
    let is_test_file = is_test_file(&file.path);
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        report(0, format!("{lines} lines, more than {LINES_MAX}"));
    }
    let parts = code.code.lines().zip(code.comments.lines()).zip(&code.in_tests);
    for (index, (line, ((code, comment), &in_tests))) in file.text.lines().zip(parts).enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !is_table_row(line) {
            report(index + 1, format!("{columns} columns, more than {COLUMNS_MAX}"));
        }
        for word in UNFINISHED {
            if has_word(code, word) || has_word(comment, word) {
                report(index + 1, format!("{word}: finish it, or write down what is missing"));
            }
        }
        if is_test_file || in_tests {
            continue;
        }
        for (call, instead) in GIVES_UP {
            if code.contains(call) {
                report(index + 1, format!("{call}: {instead}"));
            }
        }
    }
    violations
}

/// A row of a table in documentation, which Markdown does not let us break.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//! |") || line.starts_with("/// |")
}

pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let mut violations = check_text(&file);
        violations.extend(check_code(&file, &source::parse(text)));
        violations.sort();
        let brief = |violation: Violation| {
            let words: Vec<&str> = violation.text.split(' ').take(2).collect();
            (violation.line, words.join(" "))
        };
        violations.into_iter().map(brief).collect()
    }

    fn check(path: &str, text: &str, expect: &[(usize, &str)]) {
        let expect: Vec<(usize, String)> =
            expect.iter().map(|&(line, text)| (line, text.to_owned())).collect();
        assert_eq!(found(path, text), expect, "{text}");
    }

    #[test]
    fn good_source_passes() {
        let text =
            "//! Why.\n\nfn a() -> &'static str {\n    b().expect(\"c\");\n    \"TODO\"\n}\n";
        check("src/a.rs", text, &[]);
        check("src/a.rs", "//! MY_TODO and autoFIXME are other words.\n", &[]);
    }

    #[test]
    fn each_rule_can_be_broken() {
        check("src/a.rs", "fn a() {}\n", &[(1, "the first")]);
        check("src/mod.rs", "//! A.\n", &[(0, "named mod.rs:")]);
        check("src/a.rs", "//! A. \n", &[(1, "white space")]);
        check("src/a.rs", "//! A.", &[(0, "no line")]);
        check("src/a.rs", "//! A.\n// TODO: b\n", &[(2, "TODO: finish")]);
        check("src/a.rs", "//! A.\n/* FIXME */\n", &[(2, "FIXME: finish")]);
        check("src/a.rs", "//! A.\nfn a() {\n    b.unwrap();\n}\n", &[(3, ".unwrap(): say")]);
        check("src/a.rs", "//! A.\nfn a() {\n    todo!();\n}\n", &[(3, "todo!: finish")]);
        check(
            "src/a.rs",
            "//! A.\nfn a() {\n    unimplemented!();\n}\n",
            &[(3, "unimplemented!: finish")],
        );
        let wide = |columns: usize| format!("//! {}\n", "ä".repeat(columns - 4));
        check("src/a.rs", &wide(COLUMNS_MAX), &[]);
        check("src/a.rs", &wide(COLUMNS_MAX + 1), &[(1, "101 columns,")]);
        let long = |lines: usize| format!("//! A.\n{}", "// b\n".repeat(lines - 1));
        check("src/a.rs", &long(LINES_MAX), &[]);
        check("src/a.rs", &long(LINES_MAX + 1), &[(0, "501 lines,")]);
    }

    #[test]
    fn tests_may_unwrap_but_not_be_long_or_unfinished() {
        let body = "fn a() { b.unwrap(); }\n";
        let text = format!("//! A.\n{body}");
        for path in ["src/a/tests.rs", "tests/a.rs", "src/a/tests/b.rs"] {
            check(path, &text, &[]);
            check(path, "//! A.\n// TODO\n", &[(2, "TODO: finish")]);
            let long = format!("{text}{}", "// b\n".repeat(LINES_MAX - 1));
            check(path, &long, &[(0, "501 lines,")]);
        }
        check("src/a.rs", &format!("//! A.\n#[cfg(test)]\nmod tests {{\n{body}}}\n"), &[]);
        assert_eq!(found("src/contests.rs", &text).len(), 1);
    }
}
