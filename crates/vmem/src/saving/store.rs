//! The calls that saving makes to the file system, behind a seam so that tests can stop after
//! any of them, and the order of those calls.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::{SaveError, io_error};

/// A file system, as far as saving needs one.
pub(super) trait Store {
    /// Creates a file that was not there, under a name that nobody can foresee between `prefix`
    /// and [`SUFFIX`]; further writes go to its end.
    fn create(&mut self, folder: &Path, prefix: &OsStr) -> io::Result<PathBuf>;
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
    fn names(&mut self, folder: &Path) -> io::Result<Vec<OsString>>;
    /// Whether the process with this number may still be running.
    fn is_alive(&self, process: u32) -> bool;
}

/// What the names of unfinished files end with.
pub(super) const SUFFIX: &str = ".tmp";

/// As any other program's new files: the user's mask takes away what is not wanted.
const MODE: u32 = 0o666;

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
    fn create(&mut self, folder: &Path, prefix: &OsStr) -> io::Result<PathBuf> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).permissions(Permissions::from_mode(MODE));
        let (file, path) = builder.tempfile_in(folder)?.keep().map_err(|error| error.error)?;
        self.file = Some(file);
        Ok(path)
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

    fn names(&mut self, folder: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn is_alive(&self, process: u32) -> bool {
        // Where there is no such folder, nobody's files are touched.
        !Path::new("/proc/self").exists() || Path::new(&format!("/proc/{process}")).exists()
    }
}

/// Writes a temporary file beside `path`, brings it to the disk, and gives it the name.
pub(super) fn save<E: From<SaveError>>(
    store: &mut impl Store,
    path: &Path,
    content: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), SaveError>) -> Result<(), E>,
) -> Result<(), E> {
    let Target { folder, prefix } = &Target::of(path)?;
    remove_leftovers(store, folder, prefix);
    let mut own_prefix = prefix.clone();
    own_prefix.push(format!("{}.", std::process::id()));
    let created = store.create(folder, &own_prefix);
    let temporary = created.map_err(|source| io_error(path, "create", source))?;
    let written = content(&mut |bytes| write_all(store, path, bytes));
    let renamed = written.and_then(|()| {
        store.sync().map_err(|source| io_error(path, "bring to disk", source))?;
        // Only a file whose bytes are on the disk may take the name: the disk is free to keep
        // the name and lose the bytes.
        Ok(store.rename(&temporary, path).map_err(|source| io_error(path, "replace", source))?)
    });
    if renamed.is_err() {
        // The first error is the one to report.
        store.remove(&temporary).ok();
        return renamed;
    }
    // Without this the new name, and with it the new file, may be lost; the old one is not.
    Ok(store.sync_folder(folder).map_err(|source| io_error(folder, "bring to disk", source))?)
}

fn write_all(store: &mut impl Store, path: &Path, bytes: &[u8]) -> Result<(), SaveError> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match store.write(rest) {
            Ok(0) => return Err(io_error(path, "write", io::ErrorKind::WriteZero.into())),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(io_error(path, "write", source)),
        }
    }
    Ok(())
}

/// The names around a save.
struct Target {
    folder: PathBuf,
    /// What temporary files for this path begin with; the process number, something random and
    /// [`SUFFIX`] follow.
    prefix: OsString,
}

impl Target {
    fn of(path: &Path) -> Result<Target, SaveError> {
        let name = path.file_name().ok_or_else(|| SaveError::NoFileName(path.to_owned()))?;
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        Ok(Target { folder, prefix })
    }
}

/// Removes what saves of processes that are gone have left behind. It only tidies up, so nothing
/// is reported when it fails.
fn remove_leftovers(store: &mut impl Store, folder: &Path, prefix: &OsStr) {
    for name in store.names(folder).unwrap_or_default() {
        let rest = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes());
        let process = rest.and_then(|rest| std::str::from_utf8(rest).ok()).and_then(process_of);
        if process.is_some_and(|process| !store.is_alive(process)) {
            store.remove(&folder.join(name)).ok();
        }
    }
}

/// The process that made an unfinished file, by the rest of its name.
fn process_of(rest: &str) -> Option<u32> {
    let (number, _) = rest.strip_suffix(SUFFIX)?.split_once('.')?;
    number.parse().ok()
}
