//! What can be wrong with settings, where, and how to fix it.

use std::fmt;
use std::path::PathBuf;

use policy::FileError;
use thiserror::Error;

/// Where a setting stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Location {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; `None` if it concerns the file as a whole.
    pub line: Option<usize>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.line.map_or(Ok(()), |line| write!(f, " line {line}"))
    }
}

/// Settings that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not TOML.
    #[error("{place} is not TOML: {what}")]
    Syntax {
        /// Where it stops to be.
        place: Location,
        /// What is wrong there.
        what: String,
    },
    /// A key that nobody knows.
    #[error("unknown key `{key}`{}: did you mean `{nearest}`?", in_place(.place))]
    UnknownKey {
        /// The key as it is written.
        key: String,
        /// Where it stands.
        place: Option<Location>,
        /// The key that looks most like it, with its table if it stands in another.
        nearest: String,
    },
    /// A value that its key cannot have.
    #[error("`{key}`{} is {found}: write {expected}", in_place(.place))]
    Value {
        /// The key.
        key: String,
        /// Where it stands.
        place: Option<Location>,
        /// What is written.
        found: String,
        /// What could be.
        expected: String,
    },
    /// Settings that do not go together.
    #[error("{}{what}", of_place(.place))]
    Conflict {
        /// The file.
        place: Option<Location>,
        /// What does not go together, and how to fix it.
        what: String,
    },
}

fn in_place(place: &Option<Location>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!(" in {place}"))
}

fn of_place(place: &Option<Location>) -> String {
    place.as_ref().map_or_else(String::new, |place| format!("{place}: "))
}
