//! Reads settings from TOML, and finds the key that was meant.

use std::path::Path;

use strsim::levenshtein;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Key;
use super::error::{Location, SettingsError};
use super::keys::{self, Settings};

/// A value as it was given.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Given<'a> {
    /// Text in quotes.
    Text(&'a str),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Boolean(bool),
    /// Text that says nothing of its type.
    Untyped(&'a str),
    /// What no key takes: a date, a list, a table.
    Other(&'static str),
}

impl Given<'_> {
    /// As it is shown where it is wrong.
    fn words(&self) -> String {
        match self {
            Given::Text(text) => format!("\"{}\"", text.escape_debug()),
            Given::Integer(number) => number.to_string(),
            Given::Float(number) => number.to_string(),
            Given::Boolean(value) => value.to_string(),
            Given::Untyped(text) => format!("'{}'", text.escape_debug()),
            Given::Other(kind) => (*kind).to_owned(),
        }
    }
}

/// Reads a whole file into `settings`.
pub(super) fn read(text: &str, path: &Path, settings: &mut Settings) -> Result<(), SettingsError> {
    let place = |offset: usize| Location { path: path.to_owned(), line: Some(line(text, offset)) };
    let document = DeTable::parse(text).map_err(|error| SettingsError::Syntax {
        place: place(error.span().map_or(text.len(), |span| span.start)),
        what: error.message().split_whitespace().collect::<Vec<_>>().join(" "),
    })?;
    for (key, value) in in_order(document.get_ref()) {
        let name = key.get_ref().as_ref();
        let at = place(key.span().start);
        let is_table = keys::TABLE_NAMES.contains(&name);
        match value.get_ref() {
            DeValue::Table(table) if is_table => {
                for (key, value) in in_order(table) {
                    let at = place(key.span().start);
                    assign(settings, name, key.get_ref(), &given(value.get_ref()), Some(at))?;
                }
            }
            other if is_table => {
                return Err(SettingsError::Value {
                    key: name.to_owned(),
                    place: Some(at),
                    found: given(other).words(),
                    expected: format!("a table: [{name}]"),
                });
            }
            other => assign(settings, "", name, &given(other), Some(at))?,
        }
    }
    Ok(())
}

/// The entries of a table as they stand in the file, so that the first fault is the one named.
fn in_order<'t, 'i>(
    table: &'t DeTable<'i>,
) -> Vec<(&'t Spanned<std::borrow::Cow<'i, str>>, &'t Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Gives one key its value.
pub(super) fn assign(
    settings: &mut Settings,
    table: &str,
    name: &str,
    given: &Given<'_>,
    place: Option<Location>,
) -> Result<(), SettingsError> {
    match keys::assign(settings, table, name, given) {
        Some(Ok(())) => Ok(()),
        Some(Err(expected)) => Err(SettingsError::Value {
            key: name.to_owned(),
            place,
            found: given.words(),
            expected,
        }),
        None => Err(SettingsError::UnknownKey {
            key: name.to_owned(),
            nearest: nearest(table, name),
            place,
        }),
    }
}

fn given<'a>(value: &'a DeValue<'_>) -> Given<'a> {
    match value {
        DeValue::String(text) => Given::Text(text),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Given::Other("a number out of all range"), Given::Integer),
        DeValue::Float(number) => {
            number.as_str().parse().map_or(Given::Other("a number out of all range"), Given::Float)
        }
        DeValue::Boolean(value) => Given::Boolean(*value),
        DeValue::Datetime(_) => Given::Other("a date"),
        DeValue::Array(_) => Given::Other("a list"),
        DeValue::Table(_) => Given::Other("a table"),
    }
}

fn line(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

/// The key, or the table, that looks most like `name`; of equals one of the same table.
fn nearest(table: &str, name: &str) -> String {
    let shown = |key: &Key| match key.table {
        own if own == table => key.name.to_owned(),
        "" => format!("{}` at the top, before any table", key.name),
        other => format!("{other}.{}", key.name),
    };
    let keys = Settings::keys();
    let known =
        keys.iter().map(|key| (levenshtein(name, key.name), key.table != table, shown(key)));
    let tables = keys::TABLE_NAMES.iter().filter(|_| table.is_empty());
    let tables = tables.map(|table| (levenshtein(name, table), true, format!("[{table}]")));
    let nearest = known.chain(tables).min_by_key(|&(edits, elsewhere, _)| (edits, elsewhere));
    nearest.map(|(_, _, shown)| shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_named_with_its_table_if_that_is_another() {
        assert_eq!(nearest("smartswap", "warmup_stpe"), "warmup_step");
        assert_eq!(nearest("", "policy_perf"), "smartswap.policy_pref");
        assert_eq!(nearest("", "smart_swap"), "[smartswap]");
        assert_eq!(nearest("", "memroy"), "memory");
    }
}
