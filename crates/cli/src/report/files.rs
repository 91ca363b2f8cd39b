//! The folder that `--out` names: checked before the run, and no file in it ever half-written.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A folder that can be written to.
#[derive(Debug)]
pub(crate) struct OutFolder {
    path: PathBuf,
}

impl OutFolder {
    /// Creates the folder where it is missing and tries that files can be made and renamed in it,
    /// so that a run does not end by losing its results.
    ///
    /// # Errors
    ///
    /// One line that says what is wrong and how to fix it. No file is left behind.
    pub(crate) fn prepare(path: &Path) -> anyhow::Result<OutFolder> {
        let folder = OutFolder { path: path.to_owned() };
        let fix = || {
            format!(
                "cannot write to the --out folder '{}'; name a folder that you may write to, or \
                 leave out --out",
                path.display()
            )
        };
        fs::create_dir_all(path).with_context(fix)?;
        // The process id keeps two runs apart.
        let probe = path.join(format!(".probe.{}", std::process::id()));
        adaptive::save_bytes(&probe, b"probe").with_context(fix)?;
        fs::remove_file(&probe).with_context(fix)?;
        Ok(folder)
    }

    /// Writes a file as a whole or not at all, and returns where it is. A file of that name is
    /// replaced.
    ///
    /// # Errors
    ///
    /// When the disk is full, or the folder has gone or can no longer be written to.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> anyhow::Result<PathBuf> {
        let to = self.path.join(name);
        adaptive::save_bytes(&to, content).with_context(|| {
            format!("cannot write '{}'; free some space or name another --out", to.display())
        })?;
        Ok(to)
    }

    /// Where a file of that name belongs.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::OutFolder;

    fn names_in(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn missing_folders_are_made_and_files_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let folder = OutFolder::prepare(&path).unwrap();
        assert!(names_in(&path).is_empty());
        folder.write("x.json", b"one").unwrap();
        let written = folder.write("x.json", b"two").unwrap();
        assert_eq!(fs::read(written).unwrap(), b"two");
        assert_eq!(names_in(&path), ["x.json"]);
        OutFolder::prepare(&path).unwrap();
        assert_eq!(names_in(&path), ["x.json"]);
    }

    #[test]
    fn a_path_that_cannot_be_a_folder_is_one_clear_line() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, b"in the way").unwrap();
        for path in [file.clone(), file.join("below"), "/proc/no-such-folder".into()] {
            let error = OutFolder::prepare(&path).unwrap_err();
            let line = format!("{error:#}");
            assert!(line.starts_with("cannot write to the --out folder"), "{line}");
            assert!(line.contains("name a folder") && !line.contains('\n'), "{line}");
        }
        assert_eq!(fs::read(&file).unwrap(), b"in the way");
        assert_eq!(names_in(root.path()), ["file"]);
    }

    #[test]
    fn a_failed_write_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let folder = OutFolder::prepare(root.path()).unwrap();
        fs::create_dir(root.path().join("report.html")).unwrap();
        let error = folder.write("report.html", b"page").unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write '"), "{error:#}");
        assert_eq!(names_in(root.path()), ["report.html"]);
    }
}
