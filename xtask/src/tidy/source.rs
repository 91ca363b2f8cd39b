//! Rust source with its comments and literals told apart from its code.

/// The same text three times over, line by line: what is not of the kind is blank, so lines and
/// columns stay what they were.
#[derive(Debug)]
pub(super) struct Code {
    /// Code alone.
    pub(super) code: String,
    /// Comments alone.
    pub(super) comments: String,
    /// For each line, whether it lies in a `#[cfg(test)]` item.
    pub(super) in_tests: Vec<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Takes source apart. Source that does not compile is taken apart somehow.
pub(super) fn parse(text: &str) -> Code {
    let letters: Vec<char> = text.chars().collect();
    let kinds = classify(&letters);
    let keep = |kind: Kind| -> String {
        let letters = letters.iter().zip(&kinds);
        letters.map(|(&c, &k)| if k == kind || c == '\n' { c } else { ' ' }).collect()
    };
    let code = keep(Kind::Code);
    let in_tests = test_lines(&code);
    Code { code, comments: keep(Kind::Comment), in_tests }
}

fn classify(letters: &[char]) -> Vec<Kind> {
    let mut kinds = vec![Kind::Code; letters.len()];
    let mut at = 0;
    while at < letters.len() {
        let (kind, end) = token(letters, at);
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// The kind of the token at `at`, and where it ends.
fn token(letters: &[char], at: usize) -> (Kind, usize) {
    let next = letters.get(at + 1).copied().unwrap_or(' ');
    let is_word =
        |index: usize| letters.get(index).is_some_and(|c| c.is_alphanumeric() || *c == '_');
    match letters[at] {
        '/' if next == '/' => {
            let line = letters[at..].iter().position(|&c| c == '\n');
            (Kind::Comment, line.map_or(letters.len(), |length| at + length))
        }
        '/' if next == '*' => (Kind::Comment, block_comment_end(letters, at)),
        '"' => (Kind::Literal, string_end(letters, at + 1)),
        'r' if next == '"' || next == '#' => match raw_string_end(letters, at + 1) {
            Some(end) if at == 0 || !is_word(at - 1) || letters[at - 1] == 'b' => {
                (Kind::Literal, end)
            }
            _ => (Kind::Code, at + 1),
        },
        // A character, unless it is a lifetime.
        '\'' if next == '\\' => {
            let close = letters.iter().skip(at + 3).position(|&c| c == '\'');
            (Kind::Literal, close.map_or(letters.len(), |length| at + 4 + length))
        }
        '\'' if letters.get(at + 2) == Some(&'\'') => (Kind::Literal, at + 3),
        _ => (Kind::Code, at + 1),
    }
}

fn block_comment_end(letters: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < letters.len() {
        match (letters[at], letters[at + 1]) {
            ('/', '*') => {
                depth += 1;
                at += 2;
            }
            ('*', '/') => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    letters.len()
}

fn string_end(letters: &[char], start: usize) -> usize {
    let mut at = start;
    while at < letters.len() {
        match letters[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    letters.len()
}

/// The end of a raw string whose hashes or quote begin at `start`, if it is one.
fn raw_string_end(letters: &[char], start: usize) -> Option<usize> {
    let hashes = letters[start..].iter().take_while(|&&c| c == '#').count();
    let open = start + hashes;
    if letters.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| {
        letters[at] == '"'
            && letters[at + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes
    };
    let close = (open + 1..letters.len()).find(|&at| closes(at));
    Some(close.map_or(letters.len(), |at| at + 1 + hashes))
}

/// Which lines belong to an item under `#[cfg(test)]`.
fn test_lines(code: &str) -> Vec<bool> {
    let lines: Vec<&str> = code.lines().collect();
    let mut in_tests = vec![false; lines.len()];
    for start in 0..lines.len() {
        if in_tests[start] || !lines[start].contains("#[cfg(test)]") {
            continue;
        }
        let end = item_end(&lines, start);
        in_tests[start..=end].fill(true);
    }
    in_tests
}

/// The last line of the item that begins at line `start`.
fn item_end(lines: &[&str], start: usize) -> usize {
    let mut depth = 0_usize;
    for (index, line) in lines.iter().enumerate().skip(start) {
        for letter in line.chars() {
            match letter {
                '{' => depth += 1,
                '}' if depth <= 1 => return index,
                '}' => depth -= 1,
                ';' if depth == 0 => return index,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let check = |text: &str, code: &str, comments: &str| {
            let parsed = parse(text);
            assert_eq!(parsed.code.trim(), code, "{text}");
            assert_eq!(parsed.comments.trim(), comments, "{text}");
        };
        check("a // b", "a", "// b");
        check("/* a /* b */ c */ d", "d", "/* a /* b */ c */");
        check(r#"f("// a \" {", b)"#, "f(           , b)", "");
        check(r##"f(r#"a " {"#, b)"##, "f(          , b)", "");
        check(r##"f(br"{", b)"##, "f(b    , b)", "");
        check("f('{', '\\'', '\\u{7b}', 'a)", "f(   ,     ,         , 'a)", "");
        check("for r in r_s { r#fn }", "for r in r_s { r#fn }", "");
        check("&'a str // '", "&'a str", "// '");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n\"x\n y\"\n/* c\n d */ b\n";
        let parsed = parse(text);
        assert_eq!(parsed.code.lines().count(), 5);
        assert_eq!(parsed.code.lines().nth(4), Some("      b"));
    }

    #[test]
    fn test_items_end_with_their_brace() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod more;\nfn d() {}\n";
        let expect = [false, true, true, true, true, false, true, true, false];
        assert_eq!(parse(text).in_tests, expect);
    }
}
