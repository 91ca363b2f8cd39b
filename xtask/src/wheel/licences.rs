//! The licences of the crates that the engine and the command line are built of.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;
use xshell::{Shell, cmd};

use super::target::Target;

/// How files with a licence's text begin.
const NAMES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "UNLICENSE"];

/// Writes them into one file, which goes along as a licence file of the package.
pub(super) fn collect(shell: &Shell, stage: &Path, target: &Target) -> anyhow::Result<()> {
    let triple = target.triple();
    let options = ["--target", &triple, "-e", "normal", "--prefix", "none", "--format", "{p}"];
    let tree = cmd!(shell, "cargo tree --locked -p bridge -p cli {options...}").quiet().read()?;
    let used: BTreeSet<String> = tree.lines().filter_map(crate_of).collect();
    let platform = ["--filter-platform", &triple];
    let json = cmd!(shell, "cargo metadata --format-version 1 --locked {platform...}");
    let json = json.quiet().read()?;
    let value: Value = serde_json::from_str(&json).context("cargo metadata gave no JSON")?;
    let packages = value["packages"].as_array().context("cargo metadata named no packages")?;
    let mut text = String::from("Parts of this package are built of these crates.\n");
    for package in packages {
        let word = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", word("name"), word("version"));
        // Those without a source are our own.
        if package["source"].is_null() || !used.contains(&name) {
            continue;
        }
        write!(text, "\n==== {name}: {}\n", word("license"))?;
        let folder = Path::new(word("manifest_path")).parent().context("a crate has a folder")?;
        let mut texts = 0;
        for file in shell.read_dir(folder)? {
            let file_name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_text = NAMES.iter().any(|begin| file_name.to_uppercase().starts_with(begin));
            if is_text && file.is_file() {
                write!(text, "\n---- {file_name}\n\n{}\n", shell.read_file(&file)?.trim_end())?;
                texts += 1;
            }
        }
        ensure!(texts > 0 || !word("license").is_empty(), "{name} comes without a licence");
    }
    shell.write_file(stage.join("LICENSE-THIRD-PARTY"), text)?;
    Ok(())
}

/// The crate in a line of `cargo tree`, as name and version.
fn crate_of(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(" v")?;
    Some(format!("{name} {}", rest.split(' ').next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_tree_are_read() {
        let line = "serde_derive v1.0.229 (proc-macro) (*)";
        assert_eq!(crate_of(line), Some("serde_derive 1.0.229".to_owned()));
        assert_eq!(crate_of("serde v1.0.229"), Some("serde 1.0.229".to_owned()));
        assert_eq!(crate_of(""), None);
    }
}
