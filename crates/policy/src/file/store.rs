//! The calls that saving makes to the file system, behind a seam so that tests can stop after
//! any of them, and the order of those calls.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::FileError;

/// A file system, as far as saving and loading need one.
pub(super) trait Store {
    /// Creates a file, or empties the one that is there; further writes go to its end.
    fn create(&mut self, path: &Path) -> io::Result<()>;
    /// Writes to the file created last; says how many bytes it took.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Brings the bytes of the file created last to the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Gives a file another name, in place of the one that had it.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Brings the names in a folder to the disk.
    fn sync_folder(&mut self, folder: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// The names in a folder.
    fn names(&mut self, folder: &Path) -> io::Result<Vec<String>>;
    /// The first bytes of a file, at most `size_bytes_max`.
    fn read(&mut self, path: &Path, size_bytes_max: u64) -> io::Result<Vec<u8>>;
    /// Whether the process with this number may still be running.
    fn is_alive(&self, process: u32) -> bool;
}

/// The file system of this machine.
#[derive(Debug, Default)]
pub(super) struct Disk {
    file: Option<File>,
}

impl Disk {
    fn file(&mut self) -> &mut File {
        self.file.as_mut().expect("writes and syncs follow a create")
    }
}

impl Store for Disk {
    fn create(&mut self, path: &Path) -> io::Result<()> {
        self.file = Some(File::create(path)?);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file().sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn names(&mut self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            // A name that is no text is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&mut self, path: &Path, size_bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(size_bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn is_alive(&self, process: u32) -> bool {
        // Where there is no such folder, nobody's files are touched.
        !Path::new("/proc/self").exists() || Path::new(&format!("/proc/{process}")).exists()
    }
}

/// Writes a temporary file beside `path`, brings it to the disk, and gives it the name.
pub(super) fn save(store: &mut impl Store, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let target = Target::of(path)?;
    target.remove_leftovers(store);
    let written = write_and_sync(store, &target.temporary, bytes);
    let renamed = written.and_then(|()| {
        // Only a file whose bytes are on the disk may take the name: the disk is free to keep
        // the name and lose the bytes.
        store.rename(&target.temporary, path).map_err(|source| io_error(path, "replace", source))
    });
    if renamed.is_err() {
        // The first error is the one to report.
        store.remove(&target.temporary).ok();
        return renamed;
    }
    // Without this the new name, and with it the new file, may be lost; the old one is not.
    store.sync_folder(&target.folder).map_err(|e| io_error(&target.folder, "bring to disk", e))
}

/// Reads a whole file of at most `size_bytes_max`.
pub(super) fn read(
    store: &mut impl Store,
    path: &Path,
    expected: &'static str,
    size_bytes_max: u64,
) -> Result<Vec<u8>, FileError> {
    let bytes =
        store.read(path, size_bytes_max + 1).map_err(|source| io_error(path, "read", source))?;
    if bytes.len() as u64 > size_bytes_max {
        let limit_bytes = size_bytes_max;
        return Err(FileError::TooLarge { path: path.to_owned(), expected, limit_bytes });
    }
    Ok(bytes)
}

fn write_and_sync(store: &mut impl Store, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    store.create(path).map_err(|source| io_error(path, "create", source))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match store.write(rest) {
            Ok(0) => return Err(io_error(path, "write", io::ErrorKind::WriteZero.into())),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(io_error(path, "write", source)),
        }
    }
    store.sync().map_err(|source| io_error(path, "bring to disk", source))
}

fn io_error(path: &Path, doing: &'static str, source: io::Error) -> FileError {
    FileError::Io { path: path.to_owned(), doing, source }
}

/// The names around a save.
struct Target {
    folder: PathBuf,
    temporary: PathBuf,
    /// What temporary files for this path begin with; the process number and `.tmp` follow.
    prefix: String,
}

impl Target {
    fn of(path: &Path) -> Result<Target, FileError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| FileError::NoFileName(path.to_owned()))?;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let prefix = format!(".{name}.");
        let temporary = folder.join(format!("{prefix}{}.tmp", std::process::id()));
        Ok(Target { folder, temporary, prefix })
    }

    /// Removes what saves to this path have left behind when they were cut short. It only tidies
    /// up, so nothing is reported when it fails.
    fn remove_leftovers(&self, store: &mut impl Store) {
        for name in store.names(&self.folder).unwrap_or_default() {
            let process = name
                .strip_prefix(&self.prefix)
                .and_then(|rest| rest.strip_suffix(".tmp"))
                .and_then(|number| number.parse::<u32>().ok());
            if process.is_some_and(|process| !store.is_alive(process)) {
                store.remove(&self.folder.join(name)).ok();
            }
        }
    }
}
