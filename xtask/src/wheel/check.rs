//! What a wheel must do: install where there is no toolchain, and train the same weights.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use xshell::{Shell, cmd};

use super::{INSTALLED, Paths, compiled, site};

const BYTES_MAX: u64 = 25_000_000;
/// Below what the training of `python/packing/train.py` takes, so that it must swap.
const CAP: &str = "28MiB";
/// What must not be found.
const TOOLCHAIN: [&str; 5] = ["cargo", "c++", "g++", "clang++", "cc"];

/// Checks the size, then installs and trains under each PyTorch.
pub(super) fn run(
    shell: &Shell,
    paths: &Paths,
    wheel: &Path,
    minors: &[String],
) -> anyhow::Result<()> {
    let bytes = fs::metadata(wheel)?.len();
    ensure!(bytes < BYTES_MAX, "the wheel has {bytes} bytes, not less than {BYTES_MAX}");
    let bare = paths.work.join("bare");
    shell.remove_path(&bare)?;
    let own = &paths.python;
    cmd!(shell, "{own} -m venv {bare}").run()?;
    let python = bare.join("bin/python");
    // The whole path. A Python may have been put into a folder with more than itself.
    let programs = bare.join("bin");
    for tool in TOOLCHAIN {
        ensure!(!programs.join(tool).exists(), "{tool} is in {}", programs.display());
    }
    let _path = shell.push_env("PATH", &programs);
    cmd!(shell, "{python} -m pip install --quiet --no-deps --no-index {wheel}").run()?;
    let search_path = site(shell, &python)?.join("pytorch.pth");
    for minor in minors {
        let folder = match minor.as_str() {
            INSTALLED => paths.site.clone(),
            _ => compiled::torch(shell, paths, minor)?,
        };
        // With what that folder leads to in turn.
        let line = format!("import site; site.addsitedir({folder:?})\n");
        shell.write_file(&search_path, line)?;
        train(shell, paths, &python).with_context(|| format!("with PyTorch {minor}"))?;
    }
    Ok(())
}

/// Trains with the cap and without, and compares the weights.
fn train(shell: &Shell, paths: &Paths, python: &Path) -> anyhow::Result<()> {
    let script = paths.root.join("python/packing/train.py");
    // What would be compiled would lie there.
    let cache = paths.work.join("cache");
    shell.remove_path(&cache)?;
    let _threads = shell.push_env("OMP_NUM_THREADS", "1");
    // PyTorch warns that there is no NumPy, which it does not need.
    let _warnings = shell.push_env("PYTHONWARNINGS", "ignore");
    let _cache = shell.push_env("XDG_CACHE_HOME", &cache);
    let _memory = shell.push_env("SMARTSWAP_MEMORY", "");
    let plain = cmd!(shell, "{python} {script}").quiet().read()?;
    let capped = cmd!(shell, "{python} {script} capped")
        .env("SMARTSWAP_MEMORY", CAP)
        .env("SMARTSWAP_DEVICE", "host")
        // Cargo's own leads to what was built for tests.
        .env_remove("LD_LIBRARY_PATH")
        .quiet()
        .read()?;
    if plain != capped {
        bail!("the weights differ:\nplain  {plain}\ncapped {capped}");
    }
    ensure!(!cache.exists(), "something was put into {}", cache.display());
    println!("trained the same weights under {CAP}: PyTorch {capped}");
    Ok(())
}
