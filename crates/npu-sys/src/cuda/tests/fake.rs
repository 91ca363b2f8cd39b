//! Builds the stand-in library of the tests, whole or with a function taken out.

use std::ffi::{c_int, c_long};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use tempfile::TempDir;

use crate::cuda::sys::Api;
use crate::cuda::{CudaDriver, open};
use crate::error::OpenError;

/// The bytes of the compiled library.
fn library_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("fake.c"), folder.path().join("fake.so"));
        fs::write(&source, include_str!("fake.c")).unwrap();
        // The compiler that links Rust programs.
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "-o"]).arg(&library).arg(&source);
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(library).unwrap()
    })
}

/// A library file of one test, with a state of its own.
pub(super) struct Fake {
    folder: TempDir,
    /// The test's own handle of it, never closed: the driver does not close its own either.
    library: OnceLock<&'static libloading::Library>,
}

impl Fake {
    /// All functions.
    pub(super) fn whole() -> Fake {
        Fake::with(library_bytes())
    }

    /// All but one.
    pub(super) fn without(symbol: &str) -> Fake {
        // The symbol is renamed, so that nobody finds it. The final zero keeps longer names.
        let name = format!("\0{symbol}\0").into_bytes();
        let mut bytes = library_bytes().to_vec();
        let mut found = 0;
        for at in 0..bytes.len() - name.len() {
            if bytes[at..at + name.len()] == name[..] {
                bytes[at + 1] = b'x';
                found += 1;
            }
        }
        assert!(found > 0, "the library has no {symbol}");
        Fake::with(&bytes)
    }

    fn with(bytes: &[u8]) -> Fake {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("libcuda.so.1"), bytes).unwrap();
        Fake { folder, library: OnceLock::new() }
    }

    /// Opens its device of that number.
    pub(super) fn open(&self, index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        // SAFETY: it does what NVIDIA's library does, as far as the driver uses it.
        unsafe { CudaDriver::open_from(&self.path(), index) }
    }

    /// Its functions.
    pub(super) fn api(&self) -> Api {
        // SAFETY: as for `open`.
        unsafe { open::load_from(&self.path()) }.unwrap()
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    /// Sets one of the numbers that decide what it does.
    pub(super) fn set(&self, name: &str, value: c_int) {
        let library = self.library();
        // SAFETY: `fake.c` defines numbers of these names.
        let place = unsafe { library.get::<*mut c_int>(name) }.unwrap();
        // SAFETY: the number lives as long as the library, which is never unloaded.
        unsafe { place.write(value) };
    }

    /// How many objects it gave out and did not get back.
    pub(super) fn held(&self) -> i64 {
        self.count("fake_held")
    }

    /// How often its context was retained and not released.
    pub(super) fn retained(&self) -> i64 {
        self.count("fake_retained")
    }

    /// One of its counts.
    pub(super) fn count(&self, name: &str) -> i64 {
        let library = self.library();
        // SAFETY: `fake.c` defines counts of these names.
        let place = unsafe { library.get::<*mut c_long>(name) }.unwrap();
        // SAFETY: the count lives as long as the library, which is never unloaded.
        unsafe { place.read() }
    }

    fn library(&self) -> &'static libloading::Library {
        self.library.get_or_init(|| {
            // SAFETY: `fake.c` has no initialisers.
            let library = unsafe { libloading::Library::new(self.path()) }.unwrap();
            Box::leak(Box::new(library))
        })
    }
}
