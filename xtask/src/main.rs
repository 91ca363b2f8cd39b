//! The project's own commands: `cargo xtask <command>`. Plain Rust, so that a machine with only
//! the toolchain runs every check.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use xshell::Shell;

mod acl_headers;
mod asan;
mod bench;
mod checks;
mod metadata;
mod mutants;
mod python;
mod tidy;
mod wheel;

const HELP: &str = "\
cargo xtask <command>

  test                 all tests: unit, integration, documentation, planted bugs, and those of
                       the Python package where SMARTSWAP_PYTHON or .venv has PyTorch
  ci [--without-tests] formatting, clippy, documentation, tidy, then the tests
  tidy                 layers, dependencies, sizes, unsafe code, links
  bench                hot-path benchmarks, as one table beside their targets
  mutants [<k>/<n>]    which small changes of swap-core and vmem their tests notice; all of them,
                       or one of n shares (needs cargo-mutants; takes hours)
  asan                 the tests of the crates with unsafe code, under AddressSanitizer (slow)
  acl-headers          what npu-sys declares of Ascend's library, against the vendor's headers
                       (fetches packages with pip)
  wheel [--torch <minors>|installed] [--python <file>] [--out <folder>]
                       the Python package as a wheel that needs no toolchain, built and checked;
                       `installed` packs what is built already (fetches packages with pip)
  help                 this text
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let shell = Shell::new().context("cannot start in this folder")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    shell.change_dir(root);
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["test"] => checks::test(&shell),
        ["ci"] => checks::ci(&shell, checks::Tests::Run),
        ["ci", "--without-tests"] => checks::ci(&shell, checks::Tests::Skip),
        ["tidy"] => tidy::run(&shell, root),
        ["mutants"] => mutants::run(&shell, None),
        ["mutants", shard] => mutants::run(&shell, Some(shard)),
        ["asan"] => asan::run(&shell),
        ["bench"] => bench::run(&shell),
        ["wheel", ref rest @ ..] => wheel::run(&shell, root, rest),
        ["acl-headers"] => acl_headers::run(&shell, root),
        _ => bail!("'{}' is not a command: run `cargo xtask help`", words.join(" ")),
    }
}
