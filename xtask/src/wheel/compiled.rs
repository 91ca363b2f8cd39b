//! The compiled parts of a wheel: the engine, the command line, and an adapter for each PyTorch.

use std::env;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use xshell::{Shell, cmd};

use super::target::Target;
use super::{Paths, site, symbols};
use crate::metadata;

/// Builds everything into the stage.
pub(super) fn build(
    shell: &Shell,
    paths: &Paths,
    tools: &Path,
    minors: &[String],
    stage: &Path,
) -> anyhow::Result<()> {
    let programs = tools.parent().context("a Python lies in a folder")?;
    let target = &paths.target;
    let engine = engine(shell, programs, target)?;
    let compiled = stage.join("compiled");
    copy_stripped(shell, target, &engine.join("libsmartswap.so"), &compiled.join("lib"))?;
    copy_stripped(shell, target, &engine.join("smartswap"), &compiled.join("bin"))?;
    let later = paths.work.join("later.o");
    let source = paths.root.join("python/packing/later.c");
    let compiler = target.tool("gcc");
    cmd!(shell, "{compiler} -O2 -fPIC -c {source} -o {later}").run()?;
    // Here the recipe finds its own.
    let _compiler = (!target.is_here()).then(|| shell.push_env("CXX", target.tool("g++")));
    let _cuda = shell.push_env("CUDA_HOME", site(shell, tools)?.join("nvidia/cu13"));
    let _links =
        shell.push_env("LDFLAGS", format!("{} {} -s", later.display(), symbols::linker_flags()));
    for minor in minors {
        let torch = torch(shell, paths, minor)?.join("torch");
        let objects = paths.work.join("objects");
        shell.remove_path(&objects)?;
        let (python, root) = (&paths.python, &paths.root);
        cmd!(
            shell,
            "{python} {root}/python/smartswap/recipe.py --torch {torch} --engine {engine}
             --sources {root}/python/csrc --headers {root}/crates/bridge/include
             --objects {objects} --out {compiled}/adapters"
        )
        .run()
        .with_context(|| format!("the adapter for PyTorch {minor} does not build"))?;
    }
    Ok(())
}

/// The folder with the engine and the command line, built for release.
fn engine(shell: &Shell, programs: &Path, target: &Target) -> anyhow::Result<PathBuf> {
    let zigbuild = programs.join("cargo-zigbuild");
    let others = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&others);
    let triple = target.triple_with_glibc();
    cmd!(shell, "{zigbuild} zigbuild --release --locked -p bridge -p cli --target {triple}")
        // It asks the first Python for zig.
        .env("PATH", env::join_paths(iter::once(programs.to_owned()).chain(others))?)
        .run()?;
    Ok(metadata::workspace(shell)?.target_folder.join(target.triple()).join("release"))
}

fn copy_stripped(shell: &Shell, target: &Target, from: &Path, folder: &Path) -> anyhow::Result<()> {
    shell.create_dir(folder)?;
    let to = folder.join(from.file_name().context("a program has a name")?);
    let strip = target.tool("strip");
    cmd!(shell, "{strip} -o {to} {from}").run()?;
    Ok(())
}

/// The folder with PyTorch's latest release of a minor and all that it needs, fetched unless it is
/// there.
pub(super) fn torch(shell: &Shell, paths: &Paths, minor: &str) -> anyhow::Result<PathBuf> {
    let folder = paths.work.join(format!("torch{minor}"));
    if !folder.join("torch/version.py").is_file() {
        shell.remove_path(&folder)?;
        let python = &paths.python;
        let options = ["--quiet", "--no-compile", "--only-binary=:all:", "--target"];
        cmd!(shell, "{python} -m pip install {options...} {folder} torch=={minor}.*").run()?;
    }
    Ok(folder)
}

/// Copies what `cargo xtask test`, or `pip install ./python`, has left beside an installed PyTorch.
pub(super) fn from_installed(shell: &Shell, paths: &Paths, stage: &Path) -> anyhow::Result<()> {
    let package = paths.site.join("smartswap");
    ensure!(
        package.join("_built_for.json").is_file(),
        "no package was built into {}: pip install --no-build-isolation ./python",
        paths.site.display()
    );
    let compiled = stage.join("compiled");
    let target = &paths.target;
    copy_stripped(shell, target, &package.join("lib/libsmartswap.so"), &compiled.join("lib"))?;
    let program = package.join("bin/smartswap");
    if program.is_file() {
        copy_stripped(shell, target, &program, &compiled.join("bin"))?;
    }
    let (python, recipe) = (&paths.python, paths.root.join("python/smartswap/recipe.py"));
    let find =
        "import importlib.util as u; print(*u.find_spec('torch').submodule_search_locations)";
    let torch = cmd!(shell, "{python} -c {find}").quiet().read()?;
    let name = cmd!(shell, "{python} {recipe} --torch {torch} --name").quiet().read()?;
    let adapter = compiled.join("adapters").join(name);
    shell.create_dir(&adapter)?;
    for file in shell.read_dir(&package)? {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("_adapter.") || name == "_built_for.json" {
            shell.copy_file(&file, &adapter)?;
        }
        if name.starts_with("_adapter.") {
            symbols::check(shell, target, &file)?;
        }
    }
    Ok(())
}
