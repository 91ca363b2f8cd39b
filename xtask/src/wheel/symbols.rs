//! Which symbols of later libraries an adapter may ask for: those that `python/packing/later.c`
//! replaces. `auditwheel` says the same of a finished wheel; this takes no time, so CI runs it.

use std::path::Path;

use anyhow::ensure;
use xshell::{Shell, cmd};

use super::target::Target;

/// Functions that the linker leads to the first version of them.
const WRAPPED: [&str; 3] = [
    "pthread_once",
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv",
];
/// What is there once `later.c` is linked in.
const DEFINED: [&str; 1] = ["__libc_single_threaded"];
/// The last versions that the platform of the wheels has.
const LAST: [(&str, &[u32]); 3] =
    [("GLIBC_", &[2, 28]), ("GLIBCXX_", &[3, 4, 25]), ("CXXABI_", &[1, 3, 11])];

/// The linker's flags for [`WRAPPED`].
pub(super) fn linker_flags() -> String {
    WRAPPED.map(|name| format!("-Wl,--wrap={name}")).join(" ")
}

/// Fails where an adapter, linked without `later.c`, asks for more than that replaces.
pub(super) fn check(shell: &Shell, target: &Target, adapter: &Path) -> anyhow::Result<()> {
    let objdump = target.tool("objdump");
    let table = cmd!(shell, "{objdump} -T {adapter}").quiet().read()?;
    let later: Vec<String> =
        undefined(&table).filter(|(name, version)| is_missing(name, version)).map(told).collect();
    ensure!(
        later.is_empty(),
        "the adapter asks for what the platform of the wheels does not have: {}; do without it, \
         or replace it in python/packing/later.c and xtask/src/wheel/symbols.rs",
        later.join(", ")
    );
    Ok(())
}

fn told((name, version): (&str, &str)) -> String {
    format!("{name} of {version}")
}

/// Names and versions of what is looked for in other libraries.
fn undefined(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter(|line| line.contains("*UND*")).filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (name, version) = (words.next()?, words.next()?);
        Some((name, version.strip_prefix('(')?.strip_suffix(')')?))
    })
}

fn is_missing(name: &str, version: &str) -> bool {
    let is_replaced = WRAPPED.iter().chain(&DEFINED).any(|&replaced| replaced == name);
    !is_replaced && is_later(version)
}

fn is_later(version: &str) -> bool {
    let found = LAST.iter().find_map(|(family, last)| Some((version.strip_prefix(family)?, last)));
    let Some((number, last)) = found else { return false };
    let parts: Vec<u32> = number.split('.').filter_map(|part| part.parse().ok()).collect();
    parts.as_slice() > *last
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.34)  pthread_once
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.34) pthread_create
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.4)  __stack_chk_fail
0000000000000000      DF *UND*\t0000000000000000  Base        plain
0000000000000000      DF *UND*\t0000000000000000 (GLIBCXX_3.4.26) _ZSt4late
0000000000041230 g    DF .text\t0000000000000010 (GLIBC_2.99) own
";

    #[test]
    fn later_symbols_are_found_but_for_those_that_are_replaced() {
        let missing: Vec<_> =
            undefined(TABLE).filter(|(name, version)| is_missing(name, version)).collect();
        assert_eq!(missing, [("pthread_create", "GLIBC_2.34"), ("_ZSt4late", "GLIBCXX_3.4.26")]);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(!is_later("GLIBC_2.4") && !is_later("GLIBC_2.28") && is_later("GLIBC_2.29"));
        assert!(!is_later("GLIBCXX_3.4") && is_later("GLIBCXX_3.4.30"));
        assert!(is_later("CXXABI_1.3.13") && !is_later("GCC_3.0"));
    }
}
