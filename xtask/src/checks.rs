//! `test` and `ci`: what has to hold before a change goes in.

use std::path::Path;

use xshell::{Shell, cmd};

use crate::{metadata, python, tidy};

/// The feature under which crates build their planted bugs.
const PLANTED: &str = "planted";

/// Whether `ci` runs the tests too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tests {
    Run,
    Skip,
}

/// All tests, those of the documentation and of planted bugs among them, then those that need
/// another build, then those of the Python package.
pub(crate) fn test(shell: &Shell) -> anyhow::Result<()> {
    // A change is judged by the same random cases each time; `cargo test` alone draws others.
    let _seed = shell.push_env("PROPTEST_RNG_SEED", "1");
    // A bug that nobody plants does nothing, so one build serves all tests.
    let mut planted = Vec::new();
    for package in metadata::workspace(shell)?.packages {
        if package.features.iter().any(|feature| feature == PLANTED) {
            planted.extend(["--features".to_owned(), format!("{}/{PLANTED}", package.name)]);
        }
    }
    cmd!(shell, "cargo test --workspace --locked {planted...}").run()?;
    // Plans are the same to the byte in other builds: by the checksums that the run above has met.
    cmd!(shell, "cargo test --release --locked -p policy --test determinism").run()?;
    python::test(shell, &shell.current_dir())
}

/// Every check there is, the quick ones first.
pub(crate) fn ci(shell: &Shell, tests: Tests) -> anyhow::Result<()> {
    cmd!(shell, "cargo fmt --all --check").run()?;
    tidy::run(shell, Path::new("."))?;
    cmd!(shell, "cargo clippy --workspace --all-targets --locked -- -D warnings").run()?;
    // The program and the library have one name: together they write the same pages.
    for packages in [&["--package", "cli"][..], &["--workspace", "--exclude", "cli"]] {
        cmd!(shell, "cargo doc {packages...} --no-deps --locked")
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()?;
    }
    match tests {
        Tests::Run => test(shell),
        Tests::Skip => Ok(()),
    }
}
