//! Files that are saved whole or not at all: the one way in which everything here writes files.
//!
//! The bytes go to a file of their own beside the target, made anew under a name that nobody can
//! foresee. Only when the disk has them does that file take the target's name. A device or a pipe
//! is never replaced: it takes the bytes as they come.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

mod store;

#[cfg(test)]
mod tests;

use store::Disk;

/// A file that could not be saved. The path still holds what was there before, or all of the new
/// content.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, such as "write".
        doing: &'static str,
        /// The file system's answer.
        #[source]
        source: io::Error,
    },
    /// The path names no file.
    #[error("{} is not a file name: name a file inside a folder", .0.display())]
    NoFileName(PathBuf),
    /// Something that is there cannot become a file.
    #[error("{} is {kind}, which is not replaced: name a file", .path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What is there.
        kind: &'static str,
    },
}

/// Saves a file so that the path holds either all that `content` writes or what was there before,
/// even if the machine loses power. What saves to this path that were cut short have left beside it
/// is removed.
///
/// A link is replaced, not followed; a device, a pipe, and what leads to this program's own output
/// take the bytes as they come.
///
/// # Errors
/// [`SaveError`], and what `content` fails with.
pub fn save_file<E: From<SaveError>>(
    path: &Path,
    content: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), SaveError>) -> Result<(), E>,
) -> Result<(), E> {
    match outlet(path)? {
        None => store::save(&mut Disk::default(), path, content),
        Some(mut file) => content(&mut |bytes| {
            file.write_all(bytes).map_err(|source| io_error(path, "write", source))
        }),
    }
}

/// What takes bytes as they come, if that is what is at a path.
fn outlet(path: &Path) -> Result<Option<File>, SaveError> {
    // Creating says best why what cannot be looked at cannot be a file, either.
    let Ok(target) = fs::metadata(path) else { return Ok(None) };
    let is_link = fs::symlink_metadata(path).is_ok_and(|entry| entry.is_symlink());
    if let Some(file) = own_output(&target).filter(|_| is_link) {
        return Ok(Some(file));
    }
    let found = target.file_type();
    let kind = match () {
        () if found.is_file() => return Ok(None),
        () if found.is_char_device() || found.is_fifo() => {
            let opened = OpenOptions::new().write(true).open(path);
            return opened.map(Some).map_err(|source| io_error(path, "open", source));
        }
        () if found.is_dir() => "a folder",
        () if found.is_block_device() => "a disk",
        () => "a socket",
    };
    Err(SaveError::NoFile { path: path.to_owned(), kind })
}

/// The standard output or error output of this program, if one of them is this file. Opened anew,
/// a file would be written from its start.
fn own_output(target: &Metadata) -> Option<File> {
    // What was printed before comes first. If it cannot be printed, its owner will be told.
    let _ = io::stdout().flush();
    let outputs =
        [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    outputs.into_iter().flatten().map(File::from).find(|file| {
        let same = |own: Metadata| (own.dev(), own.ino()) == (target.dev(), target.ino());
        file.metadata().is_ok_and(same)
    })
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> SaveError {
    SaveError::Io { path: path.to_owned(), doing, source }
}
