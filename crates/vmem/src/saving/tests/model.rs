//! A file system in memory that keeps apart what programs see and what the disk has, so that a
//! test can pull the plug after any call.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::super::store::{SUFFIX, Store};

/// What the tests change about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Trouble {
    #[default]
    None,
    /// The program is killed before this call.
    StopBefore(u32),
    /// This call fails with this error number and has no effect.
    FailOnce(u32, i32),
    /// `sync` does nothing: a planted bug.
    NoSync,
    /// `sync_folder` does nothing: a planted bug.
    NoFolderSync,
}

/// The content of a file, as programs see it and as it is on the disk.
#[derive(Clone, Debug, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
}

/// A change of names that may not have reached the disk.
#[derive(Clone, Debug)]
enum Pending {
    Name(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Remove(PathBuf),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) trouble: Trouble,
    pub(super) calls: u32,
    /// Whether this process is taken to live.
    pub(super) lives: bool,
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    pending: Vec<Pending>,
    open: usize,
}

/// One `write` takes at most this many bytes.
const WRITE_BYTES_MAX: usize = 200;

impl Model {
    /// A disk on which a file has long been.
    pub(super) fn with(path: &Path, bytes: &[u8]) -> Model {
        let mut model = Model { lives: true, ..Model::default() };
        model.contents.push(Content { seen: bytes.to_vec(), durable: bytes.to_vec() });
        model.names.insert(path.to_owned(), 0);
        model.durable_names = model.names.clone();
        model
    }

    /// What programs see at a path.
    pub(super) fn seen(&self, path: &Path) -> Option<&[u8]> {
        self.names.get(path).map(|&file| &self.contents[file].seen[..])
    }

    /// The names that programs see.
    pub(super) fn file_count(&self) -> usize {
        self.names.len()
    }

    /// All that may be at `path` after the power was lost: any of the pending changes of names
    /// may have reached the disk or not, and so may any part of each file's bytes.
    pub(super) fn after_power_loss(&self, path: &Path) -> Vec<Option<Vec<u8>>> {
        let mut outcomes = Vec::new();
        for mask in 0..1_u32 << self.pending.len() {
            let mut names = self.durable_names.clone();
            for (bit, pending) in self.pending.iter().enumerate() {
                if mask & 1 << bit != 0 {
                    apply(&mut names, pending);
                }
            }
            match names.get(path) {
                None => outcomes.push(None),
                Some(&file) => {
                    let content = &self.contents[file];
                    let half = &content.seen[..content.seen.len() / 2];
                    for bytes in [&content.durable[..], &content.seen[..], half] {
                        if bytes != half || content.durable != content.seen {
                            outcomes.push(Some(bytes.to_vec()));
                        }
                    }
                }
            }
        }
        outcomes
    }

    /// Counts a call and says whether it goes through.
    fn call(&mut self) -> io::Result<()> {
        let call = self.calls;
        self.calls += 1;
        match self.trouble {
            Trouble::StopBefore(stop) if call >= stop => Err(io::Error::other("killed")),
            Trouble::FailOnce(fail, code) if call == fail => {
                Err(io::Error::from_raw_os_error(code))
            }
            _ => Ok(()),
        }
    }

    fn change(&mut self, pending: Pending) {
        apply(&mut self.names, &pending);
        self.pending.push(pending);
    }

    fn file_at(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, pending: &Pending) {
    match pending {
        Pending::Name(path, file) => {
            names.insert(path.clone(), *file);
        }
        Pending::Rename(from, to, file) => {
            names.remove(from);
            names.insert(to.clone(), *file);
        }
        Pending::Remove(path) => {
            names.remove(path);
        }
    }
}

impl Store for Model {
    fn create(&mut self, folder: &Path, prefix: &OsStr) -> io::Result<PathBuf> {
        self.call()?;
        let number = self.contents.len();
        let path = folder.join(format!("{}{number}{SUFFIX}", prefix.display()));
        assert!(!self.names.contains_key(&path), "each is new");
        self.contents.push(Content::default());
        self.open = number;
        self.change(Pending::Name(path.clone(), number));
        Ok(path)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call()?;
        let count = bytes.len().min(WRITE_BYTES_MAX);
        self.contents[self.open].seen.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.call()?;
        if self.trouble != Trouble::NoSync {
            let content = &mut self.contents[self.open];
            content.durable.clone_from(&content.seen);
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.call()?;
        let file = self.file_at(from)?;
        self.change(Pending::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn sync_folder(&mut self, _folder: &Path) -> io::Result<()> {
        self.call()?;
        if self.trouble != Trouble::NoFolderSync {
            self.durable_names.clone_from(&self.names);
            self.pending.clear();
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.call()?;
        self.file_at(path)?;
        self.change(Pending::Remove(path.to_owned()));
        Ok(())
    }

    fn names(&mut self, folder: &Path) -> io::Result<Vec<OsString>> {
        self.call()?;
        let here = self.names.keys().filter(|path| path.parent() == Some(folder));
        Ok(here.filter_map(|path| path.file_name()).map(OsStr::to_owned).collect())
    }

    fn is_alive(&self, process: u32) -> bool {
        self.lives && process == std::process::id()
    }
}
