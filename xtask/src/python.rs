//! The Python package: built into an environment that has PyTorch, and tested there.

use std::env;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use crate::metadata;

/// Names the Python to test with.
const WISH: &str = "SMARTSWAP_PYTHON";
/// The Python of the environment that `.ci/run` makes.
const OWN: &str = ".venv/bin/python";
const HOW: &str = "python3 -m venv .venv && .venv/bin/pip install -r python/requirements-test.txt";
/// Where `.ci/run` puts releases of torch_npu, and how tests are told of them and of the stand-in.
const NPU_PACKAGES: [&str; 2] = [".venv/npu", ".venv/npu-post"];
const NPU_FOLDERS: &str = "SMARTSWAP_NPU_PACKAGES";
const NPU_STANDIN: &str = "SMARTSWAP_NPU_STANDIN";
const NPU_HOW: &str = ".venv/bin/pip install --no-deps --target .venv/npu \
                       -r python/requirements-npu.txt";
/// Each test runs processes of its own, which take a gigabyte or two together.
const AT_ONCE_MAX: usize = 4;
/// What the package is built and tested with.
const MODULES: [&str; 7] = ["ninja", "numpy", "pytest", "setuptools", "torch", "wheel", "xdist"];

/// Builds the package into an environment and runs its tests there, with the libraries that the
/// tests of the crates have left. Without an environment it says so, and how to get one.
///
/// # Errors
/// If the build or a test fails, or the Python that [`WISH`] names cannot be used.
pub(crate) fn test(shell: &Shell, root: &Path) -> anyhow::Result<()> {
    let wish = env::var_os(WISH).filter(|wish| !wish.is_empty());
    let python = wish.as_ref().map_or_else(|| root.join(OWN), PathBuf::from);
    if let Some(lack) = lack(shell, &python) {
        if wish.is_some() {
            bail!("{WISH}: {lack}; install python/requirements-test.txt there");
        }
        println!("python: skipped its tests, since {lack}; to run them: {HOW}");
        return Ok(());
    }
    // Built with the tests of the crates, every check on. Cargo leaves the libraries of tests
    // among what they depend on.
    let built = metadata::workspace(shell)?.target_folder.join("debug");
    for library in ["libsmartswap.so", "libascendcl.so"] {
        shell.copy_file(built.join("deps").join(library), &built)?;
    }
    let library = built.join("libsmartswap.so");
    // The environment's ninja compiles files side by side, where it is found.
    let _path = shell.push_env("PATH", path_from(&python)?);
    cmd!(shell, "{python} -m pip install --quiet --no-build-isolation --no-deps ./python")
        .env("SMARTSWAP_ENGINE_LIBRARY", &library)
        .run()
        .context("the Python package does not build")?;
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let at_once = cores.clamp(2, AT_ONCE_MAX).to_string();
    let mut tests = cmd!(
        shell,
        "{python} -m pytest --quiet --durations 20 --numprocesses {at_once} --dist loadgroup
         python/tests python/examples"
    );
    // It was just built, so a test that does not find it has found something else.
    tests = tests.env("SMARTSWAP_REQUIRE", "package");
    // As many tests run at once as there are cores: threads of PyTorch would wait for each other.
    tests = tests.env("OMP_NUM_THREADS", "1");
    let mut releases: Vec<PathBuf> = NPU_PACKAGES.iter().map(|folder| root.join(folder)).collect();
    releases.retain(|packages| packages.join("torch_npu").is_dir());
    if releases.is_empty() {
        println!("python: skips torch_npu over the stand-in; to run it: {NPU_HOW}");
    } else {
        for packages in &releases {
            install_for_npu(shell, &python, packages, &library)?;
        }
        let standin = built.join("libascendcl.so");
        tests = tests.env(NPU_FOLDERS, env::join_paths(&releases)?).env(NPU_STANDIN, standin);
    }
    tests.run()?;
    Ok(())
}

/// Builds the package once more beside a torch_npu, where no other test sees either.
fn install_for_npu(
    shell: &Shell,
    python: &Path,
    packages: &Path,
    library: &Path,
) -> anyhow::Result<()> {
    let install = "install --quiet --no-build-isolation --no-deps --upgrade --target";
    let install = install.split(' ');
    cmd!(shell, "{python} -m pip {install...} {packages} ./python")
        .env("SMARTSWAP_ENGINE_LIBRARY", library)
        .env("PYTHONPATH", packages)
        .run()
        .context("the Python package does not build for torch_npu")
}

/// The path for programs, with those of the Python's environment first.
fn path_from(python: &Path) -> anyhow::Result<OsString> {
    let own = python.parent().map(Path::to_path_buf);
    let others = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths(own.into_iter().chain(env::split_paths(&others)))?)
}

/// What keeps a Python from being used, in words.
fn lack(shell: &Shell, python: &Path) -> Option<String> {
    if !python.is_file() {
        return Some(format!("there is no {}", python.display()));
    }
    let found = "import importlib.util as u, sys; print(*filter(u.find_spec, sys.argv[1:]))";
    match cmd!(shell, "{python} -c {found} {MODULES...}").quiet().ignore_stderr().read() {
        Ok(found) => missing(&found, python),
        Err(error) => Some(format!("{} does not run: {error}", python.display())),
    }
}

/// What is not among the modules that were found.
fn missing(found: &str, python: &Path) -> Option<String> {
    let found: Vec<&str> = found.split_whitespace().collect();
    let lacking: Vec<&str> = MODULES.into_iter().filter(|module| !found.contains(module)).collect();
    let names = lacking.join(", ");
    (!lacking.is_empty()).then(|| format!("{} has no {names}", python.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let python = Path::new("p");
        assert_eq!(missing(&MODULES.join(" "), python), None);
        assert_eq!(
            missing("numpy torch wheel setuptools xdist", python),
            Some("p has no ninja, pytest".to_owned())
        );
        assert!(missing("", python).is_some_and(|text| text.contains("torch")));
    }

    #[test]
    fn a_python_that_cannot_be_used_says_why() {
        let shell = Shell::new().expect("a folder");
        let none = lack(&shell, Path::new("/nowhere/python"));
        assert_eq!(none, Some("there is no /nowhere/python".to_owned()));
        let other = lack(&shell, Path::new("/bin/false"));
        assert!(other.is_some_and(|text| text.starts_with("/bin/false does not run")));
    }
}
