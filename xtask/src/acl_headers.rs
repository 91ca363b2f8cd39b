//! Holds what npu-sys declares of Ascend's library to the vendor's own headers, which the
//! `torch_npu` packages carry: `cargo xtask acl-headers`. It needs the network, pip and a C
//! compiler, so it is not part of the tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

mod c;
mod declarations;

use declarations::Declarations;

/// Packages whose headers differ, oldest first.
const VERSIONS: [&str; 4] = ["2.1.0.post12", "2.7.1.post2", "2.9.0", "2.14.0"];
/// Pythons for which the packages are built; the headers are the same in all.
const PYTHONS: [&str; 3] = ["3.11", "3.10", "3.9"];
/// The folder with the headers inside a package.
const HEADERS: &str = "torch_npu/include/third_party/acl/inc";
/// Takes the headers out of the package, which is a zip file.
const EXTRACT: &str = "\
import sys, zipfile
package = zipfile.ZipFile(sys.argv[1])
for name in package.namelist():
    if name.startswith(sys.argv[3]) and name.endswith('.h'):
        package.extract(name, sys.argv[2])
";

/// Runs the checks against all versions that the package index has.
pub(crate) fn run(shell: &Shell, root: &Path) -> anyhow::Result<()> {
    let read = |name: &str| {
        let path = root.join("crates/npu-sys/src/acl").join(name);
        shell.read_file(&path)
    };
    let declarations = Declarations::parse(&read("sys.rs")?, &read("failure.rs")?)?;
    println!("npu-sys declares {}", declarations.counts());
    let cache = root.join("target/acl-headers");
    let mut checked = 0;
    for version in VERSIONS {
        let folder = cache.join(version);
        match headers(shell, version, &folder) {
            Ok(headers) => {
                check(shell, version, &folder, &headers, &declarations)?;
                checked += 1;
            }
            Err(error) => println!("torch_npu {version}: not to be had: {error:#}"),
        }
    }
    ensure!(checked > 0, "no version of torch_npu could be fetched: is there a network?");
    Ok(())
}

/// The headers of one version, fetched unless they are there.
fn headers(shell: &Shell, version: &str, folder: &Path) -> anyhow::Result<PathBuf> {
    let headers = folder.join(HEADERS);
    if shell.path_exists(headers.join("acl/acl.h")) {
        return Ok(headers);
    }
    shell.create_dir(folder)?;
    let package = format!("torch_npu=={version}");
    let mut outcome = Ok(());
    for python in PYTHONS {
        let fetch = cmd!(
            shell,
            "python3 -m pip download --quiet --no-deps --only-binary=:all:
             --python-version {python} {package} --dest {folder}"
        );
        outcome = fetch.quiet().ignore_stderr().run();
        if outcome.is_ok() {
            break;
        }
    }
    outcome.context("pip found no package")?;
    let files = shell.read_dir(folder)?;
    let wheel = files.iter().find(|path| path.extension().is_some_and(|end| end == "whl"));
    let wheel = wheel.context("pip left no package")?;
    cmd!(shell, "python3 -c {EXTRACT} {wheel} {folder} {HEADERS}").quiet().run()?;
    ensure!(shell.path_exists(headers.join("acl/acl.h")), "the package has no headers");
    shell.remove_path(wheel)?;
    Ok(headers)
}

/// Checks the declarations against one version's headers.
fn check(
    shell: &Shell,
    version: &str,
    folder: &Path,
    headers: &Path,
    declarations: &Declarations,
) -> anyhow::Result<()> {
    let words = words(shell, folder, headers)?;
    let (known, lacking) = declarations.split(|name| words.contains(name));
    let (source, program) = (folder.join("check.c"), folder.join("check"));
    shell.write_file(&source, c::program(&known))?;
    cmd!(shell, "cc -std=gnu11 -Wno-deprecated-declarations -I{headers} {source} -o {program}")
        .quiet()
        .run()
        .with_context(|| format!("the headers of torch_npu {version} declare it otherwise"))?;
    let output = cmd!(shell, "{program}").quiet().ignore_status().read()?;
    if !output.is_empty() {
        bail!("the headers of torch_npu {version} have other values:\n{output}");
    }
    println!("torch_npu {version}: {} agree", known.counts());
    let names: Vec<&str> = lacking.names().into_iter().collect();
    if !names.is_empty() {
        println!("  not declared there: {}", names.join(", "));
    }
    match lacking.required() {
        Some(name) => bail!("{name} is required, and torch_npu {version} does not declare it"),
        None => Ok(()),
    }
}

/// All names that the headers know, macros too.
fn words(shell: &Shell, folder: &Path, headers: &Path) -> anyhow::Result<BTreeSet<String>> {
    let source = folder.join("include.c");
    shell.write_file(&source, c::INCLUDES)?;
    let text = cmd!(shell, "cc -E -dD -I{headers} {source}").quiet().read()?;
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    Ok(text.split(|c| !is_in_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect())
}
