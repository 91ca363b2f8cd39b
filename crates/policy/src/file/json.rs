//! What both kinds of files share: the head of the file, and hexadecimal numbers.

use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::FileError;

/// What a file must be to be read further.
pub(super) struct Expected {
    /// "plan" or "trace".
    pub(super) what: &'static str,
    /// The value of `format`.
    pub(super) format: &'static str,
    /// The newest version that is known.
    pub(super) version: u64,
}

/// The first keys of our files. All others are left to the reader of the version.
#[derive(Deserialize)]
struct Head {
    format: String,
    version: u64,
}

/// The keys of a recorded step. Ours have them too, behind a `format`.
#[derive(Deserialize)]
struct RecordedHead {
    format: Option<IgnoredAny>,
    #[serde(rename = "ops")]
    _ops: IgnoredAny,
    #[serde(rename = "tensors")]
    _tensors: IgnoredAny,
}

/// Whether this is a step as frameworks record it.
pub(super) fn is_recorded(bytes: &[u8]) -> bool {
    serde_json::from_slice::<RecordedHead>(bytes).is_ok_and(|head| head.format.is_none())
}

/// Whether this could have been such a step before it was cut short or damaged.
pub(super) fn was_recorded(bytes: &[u8]) -> bool {
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    has(b"\"ops\"") && !has(b"smartswap-") && serde_json::from_slice::<IgnoredAny>(bytes).is_err()
}

/// The objects of a file, one behind the other. What is damaged ends the last one; without any the
/// whole file counts as one.
pub(super) fn objects(bytes: &[u8]) -> Vec<&[u8]> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<IgnoredAny>();
    let (mut objects, mut start) = (Vec::new(), 0);
    while values.next().is_some_and(|value| value.is_ok()) {
        objects.push(&bytes[start..values.byte_offset()]);
        start = values.byte_offset();
    }
    let rest = &bytes[start..];
    if objects.is_empty() || !rest.trim_ascii().is_empty() {
        objects.push(rest);
    }
    objects
}

/// Tells our files, of versions that we know, from others.
pub(super) fn check_head(bytes: &[u8], path: &Path, expected: &Expected) -> Result<(), FileError> {
    let foreign = || FileError::Foreign { path: path.to_owned(), expected: expected.what };
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(bytes) {
        // Cut short counts as ours only if the part that is there says so.
        let name = expected.format.as_bytes();
        let names_us = bytes.windows(name.len()).any(|window| window == name);
        return Err(if ends_early(bytes, &error) && (names_us || is_start_of_ours(bytes)) {
            FileError::Truncated { path: path.to_owned(), size_bytes: bytes.len() as u64 }
        } else if names_us {
            FileError::Malformed { path: path.to_owned(), source: error }
        } else {
            foreign()
        });
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|_| foreign())?;
    if head.format != expected.format || head.version == 0 {
        return Err(foreign());
    }
    if head.version > expected.version {
        return Err(FileError::Newer {
            path: path.to_owned(),
            found: head.version,
            supported: expected.version,
        });
    }
    Ok(())
}

/// Whether it is the end of the file that was not expected.
fn ends_early(bytes: &[u8], error: &serde_json::Error) -> bool {
    // A number cut at its point is called invalid, at the last byte.
    let lines = bytes.split(|&byte| byte == b'\n');
    let (line, column) = lines.enumerate().last().map_or((0, 0), |(i, line)| (i + 1, line.len()));
    error.is_eof() || (error.line(), error.column()) == (line, column)
}

/// Whether so short a file could be the beginning of one of ours.
fn is_start_of_ours(bytes: &[u8]) -> bool {
    START.starts_with(bytes) || bytes.starts_with(START)
}

/// What all of our files begin with.
const START: &[u8] = b"{\"format\":\"smartswap-";

/// A number of 64 bits as text: JSON readers elsewhere keep only 53 bits of a number.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(in crate::file) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:016x}"))
    }

    pub(in crate::file) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 16
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        match u64::from_str_radix(&text, 16) {
            Ok(value) if digits => Ok(value),
            _ => Err(de::Error::custom("expected 16 lower-case hex digits")),
        }
    }
}
