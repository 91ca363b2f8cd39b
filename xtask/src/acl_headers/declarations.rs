//! What npu-sys declares of Ascend's library, read from its source.
//!
//! The source is our own and in a plain form: one item a line, or one field a line. What does not
//! have that form is an error, so that nothing is passed over.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};

/// A name and a type, both as Rust writes them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) rust_type: String,
}

/// One declared item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// A function; the fields are its arguments.
    Function { name: String, is_required: bool, arguments: Vec<Field>, result: String },
    /// Another name for a type.
    Alias { name: String, rust_type: String },
    /// An opaque pointer.
    Handle { name: String },
    /// A `struct` or `union`.
    Layout { name: String, is_union: bool, fields: Vec<Field> },
    /// A constant.
    Value { name: String, value: i64 },
}

impl Item {
    pub(super) fn name(&self) -> &str {
        match self {
            Item::Function { name, .. }
            | Item::Alias { name, .. }
            | Item::Handle { name }
            | Item::Layout { name, .. }
            | Item::Value { name, .. } => name,
        }
    }
}

/// All declared items.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Declarations(pub(super) Vec<Item>);

impl Declarations {
    /// Reads `sys.rs`, and the table of names of codes in `failure.rs`.
    pub(super) fn parse(sys: &str, failure: &str) -> anyhow::Result<Declarations> {
        let mut items = Vec::new();
        let mut rest = without_comments(sys);
        let functions = cut(&mut rest, "vendor_functions! {", "\n}")?;
        for declaration in functions.split(';').map(str::trim).filter(|text| !text.is_empty()) {
            items.push(function(declaration)?);
        }
        for name in cut(&mut rest, "handles!(", ")")?.split_whitespace() {
            items.push(Item::Handle { name: name.to_owned() });
        }
        for line in rest.lines() {
            if let Some(text) = line.strip_prefix("pub(super) type ") {
                let (name, rust_type) = text.split_once(" = ").context("a type without `=`")?;
                let rust_type = rust_type.trim_end_matches(';').to_owned();
                items.push(Item::Alias { name: name.to_owned(), rust_type });
            } else if let Some(text) = line.strip_prefix("pub(super) const ACL") {
                items.push(value(&format!("ACL{text}"))?);
            }
        }
        for (keyword, is_union) in [("struct", false), ("union", true)] {
            let opening = format!("\npub(crate) {keyword} ");
            for text in rest.split(opening.as_str()).skip(1) {
                items.push(layout(text, is_union)?);
            }
        }
        for line in failure.lines().filter(|line| line.starts_with("    (")) {
            items.push(code(line)?);
        }
        Ok(Declarations(items))
    }

    /// Those whose names are known, and the rest.
    pub(super) fn split(&self, is_known: impl Fn(&str) -> bool) -> (Declarations, Declarations) {
        let (known, rest) = self.0.iter().cloned().partition(|item| is_known(item.name()));
        (Declarations(known), Declarations(rest))
    }

    /// The names, each once, in the order of the alphabet.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.0.iter().map(Item::name).collect()
    }

    /// The first function that the driver cannot do without.
    pub(super) fn required(&self) -> Option<&str> {
        let is_required = |item: &&Item| matches!(item, Item::Function { is_required: true, .. });
        self.0.iter().find(is_required).map(Item::name)
    }

    /// How many there are of each kind, in words.
    pub(super) fn counts(&self) -> String {
        let count = |is_it: fn(&Item) -> bool| self.0.iter().filter(|item| is_it(item)).count();
        format!(
            "{} functions, {} structures, {} types, {} values",
            count(|item| matches!(item, Item::Function { .. })),
            count(|item| matches!(item, Item::Layout { .. })),
            count(|item| matches!(item, Item::Alias { .. } | Item::Handle { .. })),
            count(|item| matches!(item, Item::Value { .. })),
        )
    }
}

fn without_comments(text: &str) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// Takes what is between the first `opening` and the next `closing` out of `text`.
fn cut(text: &mut String, opening: &str, closing: &str) -> anyhow::Result<String> {
    let start = text.find(&format!("\n{opening}")).with_context(|| format!("no `{opening}`"))? + 1;
    let inner = start + opening.len();
    let length = text[inner..].find(closing).with_context(|| format!("no end of `{opening}`"))?;
    let found = text[inner..inner + length].to_owned();
    text.replace_range(start..inner + length + closing.len(), "");
    Ok(found)
}

/// `required fn name(argument: type, ...) -> type = "name"`.
fn function(text: &str) -> anyhow::Result<Item> {
    let parts = || {
        let (need, rest) = text.split_once(" fn ")?;
        let (name, rest) = rest.split_once('(')?;
        let (arguments, rest) = rest.split_once(')')?;
        let (result, symbol) = rest.trim().strip_prefix("-> ")?.split_once('=')?;
        Some((need, name, arguments, result.trim(), symbol.trim()))
    };
    let (need, name, arguments, result, symbol) =
        parts().with_context(|| format!("not the form of a function: {text}"))?;
    ensure!(matches!(need, "required" | "optional"), "{name} is {need}");
    ensure!(symbol == format!("\"{name}\""), "{name} has the symbol {symbol}");
    let arguments = fields(arguments)?;
    let (name, result) = (name.to_owned(), result.to_owned());
    Ok(Item::Function { name, is_required: need == "required", arguments, result })
}

/// `name: type, ...`.
fn fields(text: &str) -> anyhow::Result<Vec<Field>> {
    let fields = text.split(',').map(str::trim).filter(|field| !field.is_empty());
    let field = |text: &str| {
        let (name, rust_type) = text.split_once(": ").with_context(|| format!("field {text}"))?;
        let name = name.trim_start_matches("pub(super) ").trim_start_matches("r#").to_owned();
        Ok(Field { name, rust_type: rust_type.to_owned() })
    };
    fields.map(field).collect()
}

/// `NAME: type = value;`.
fn value(text: &str) -> anyhow::Result<Item> {
    let parts = text.trim_end_matches(';').split_once(": ");
    let parts = parts.and_then(|(name, rest)| Some((name, rest.split_once(" = ")?.1)));
    let (name, value) = parts.with_context(|| format!("not the form of a constant: {text}"))?;
    Ok(Item::Value { name: name.to_owned(), value: number(value)? })
}

/// `(value, "NAME"),`.
fn code(line: &str) -> anyhow::Result<Item> {
    let inner = line.trim().trim_start_matches('(').trim_end_matches("),");
    let parts = inner.split_once(", ");
    let (value, name) = parts.with_context(|| format!("not the form of a code: {line}"))?;
    Ok(Item::Value { name: name.trim_matches('"').to_owned(), value: number(value)? })
}

fn number(text: &str) -> anyhow::Result<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .with_context(|| format!("not a number: {text}"))
}

/// `Name { field, ... }` and what follows.
fn layout(text: &str, is_union: bool) -> anyhow::Result<Item> {
    let Some((name, rest)) = text.split_once(" {") else { bail!("a structure without fields") };
    let (body, _) = rest.split_once("\n}").context("a structure without end")?;
    Ok(Item::Layout { name: name.to_owned(), is_union, fields: fields(body)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYS: &str = "
pub(super) type aclError = c_int;
handles!(aclrtStream aclrtEvent);
pub(super) const ACL_EVENT_SYNC: u32 = 0x1;
pub(super) const OURS: u64 = 1;

/// A comment.
#[repr(C)]
pub(crate) struct aclrtMemLocation {
    pub(super) id: u32,
    pub(super) r#type: aclrtMemLocationType,
}

// Another one; with the signs, that (matter).
vendor_functions! {
    required fn aclInit(configPath: *const c_char) -> aclError = \"aclInit\";
    optional fn aclrtFree(
        devPtr: *mut c_void,
    ) -> aclError
        = \"aclrtFree\";
}
";

    #[test]
    fn each_form_is_read() {
        let failure = "const NAMES: &[_] = &[\n    (107000, \"ACL_ERROR_RT_PARAM_INVALID\"),\n];";
        let read = Declarations::parse(SYS, failure).expect("plain forms");
        assert_eq!(read.counts(), "2 functions, 1 structures, 3 types, 2 values");
        let field = |name: &str, rust_type: &str| Field {
            name: name.to_owned(),
            rust_type: rust_type.to_owned(),
        };
        assert!(read.0.contains(&Item::Function {
            name: "aclrtFree".to_owned(),
            is_required: false,
            arguments: vec![field("devPtr", "*mut c_void")],
            result: "aclError".to_owned(),
        }));
        assert!(read.0.contains(&Item::Layout {
            name: "aclrtMemLocation".to_owned(),
            is_union: false,
            fields: vec![field("id", "u32"), field("type", "aclrtMemLocationType")],
        }));
        assert!(read.0.contains(&Item::Value { name: "ACL_EVENT_SYNC".to_owned(), value: 1 }));
        let (known, rest) = read.split(|name| name.starts_with("aclrt"));
        assert_eq!((known.0.len(), rest.0.len()), (4, 4));
        assert_eq!((known.required(), rest.required()), (None, Some("aclInit")));
    }

    #[test]
    fn other_forms_are_errors() {
        let wrong = |from: &str, to: &str| Declarations::parse(&SYS.replace(from, to), "").is_err();
        assert!(!wrong("", ""));
        assert!(wrong("required fn", "wanted fn"));
        assert!(wrong("= \"aclInit\"", "= \"aclOther\""));
        assert!(wrong("0x1", "one"));
        assert!(wrong("id: u32", "id"));
        assert!(wrong("vendor_functions! {", "functions! {"));
    }
}
