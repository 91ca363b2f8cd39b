//! Where the stand-in is: cargo builds it beside each test that this file is a part of, since the
//! test's package depends on it.

use std::path::PathBuf;

/// The built library, or why there is none.
pub(super) fn standin() -> Result<PathBuf, String> {
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    let library = test.with_file_name("libascendcl.so");
    if !library.is_file() {
        return Err(format!("run the tests by cargo: there is no {}", library.display()));
    }
    Ok(library)
}
