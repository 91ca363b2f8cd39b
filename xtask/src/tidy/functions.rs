//! No function is longer than one can read at once.

use super::source::Code;
use super::{SourceFile, Violation, rules};

const LINES_MAX: usize = 70;

/// The functions outside tests that are too long.
pub(super) fn check(file: &SourceFile, code: &Code) -> Vec<Violation> {
    if rules::is_test_file(&file.path) {
        return Vec::new();
    }
    let too_long = functions(&code.code).into_iter().filter(|function| {
        function.lines > LINES_MAX
            && !code.in_tests.get(function.line - 1).copied().unwrap_or(false)
    });
    too_long
        .map(|Function { name, line, lines }| {
            let text = format!("function {name} has {lines} lines, more than {LINES_MAX}");
            Violation::new(&file.path, line, text)
        })
        .collect()
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// All functions with a body.
fn functions(code: &str) -> Vec<Function> {
    let letters: Vec<char> = code.chars().collect();
    let mut found = Vec::new();
    let mut line = 1;
    for (at, &letter) in letters.iter().enumerate() {
        line += usize::from(letter == '\n');
        let Some(name) = name_of_function(&letters, at) else { continue };
        let Some(body) = body_start(&letters, at) else { continue };
        let end = body_end(&letters, body);
        let lines = letters[at..end].iter().filter(|&&c| c == '\n').count() + 1;
        found.push(Function { name, line, lines });
    }
    found
}

/// The name after the word `fn` at `at`. Function pointers have none.
fn name_of_function(letters: &[char], at: usize) -> Option<String> {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let starts_word = at == 0 || !is_word(&letters[at - 1]);
    if !starts_word || !letters[at..].starts_with(&['f', 'n', ' ']) {
        return None;
    }
    let name: String = letters[at + 3..].iter().take_while(|c| is_word(c)).collect();
    (!name.is_empty()).then_some(name)
}

/// The brace that opens the body, if there is one before a semicolon ends the item.
fn body_start(letters: &[char], from: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, letter) in letters.iter().enumerate().skip(from) {
        match letter {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn body_end(letters: &[char], open: usize) -> usize {
    let mut depth = 0_i32;
    for (at, letter) in letters.iter().enumerate().skip(open) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    letters.len()
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let file = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let violations = check(&file, &source::parse(text));
        violations.into_iter().map(|violation| (violation.line, violation.text)).collect()
    }

    fn function(lines: usize) -> String {
        format!("\nfn long(a: [u8; 2])\nwhere A: B {{\n{}}}\n", "    x(\"}\");\n".repeat(lines - 3))
    }

    #[test]
    fn only_functions_over_the_limit_are_found() {
        assert_eq!(found("src/a.rs", &function(LINES_MAX)), []);
        let text = format!("function long has {} lines, more than {LINES_MAX}", LINES_MAX + 1);
        assert_eq!(found("src/a.rs", &function(LINES_MAX + 1)), [(2, text)]);
    }

    #[test]
    fn tests_declarations_and_pointers_are_left_out() {
        let long = function(LINES_MAX + 1);
        assert_eq!(found("src/a/tests.rs", &long), []);
        assert_eq!(found("tests/a.rs", &long), []);
        assert_eq!(found("src/a.rs", &format!("#[cfg(test)]\nmod tests {{{long}}}\n")), []);
        let filler = "const A: u8 = 0;\n".repeat(LINES_MAX + 1);
        let text =
            format!("trait T {{ fn a(&self);\n{filler}}}\ntype F = fn(u8);\n{filler}fn b() {{}}");
        assert_eq!(found("src/a.rs", &text), []);
    }
}
