//! `asan`: the tests of the crates with unsafe code under AddressSanitizer, which notices accesses
//! beyond an allocation or after its end, and leaks. What is mapped, as device memory is, it does
//! not see. It builds everything once more and runs several times slower, so `ci` leaves it out.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use xshell::{Shell, cmd};

use crate::metadata;

/// The crates that handle memory themselves.
const CRATES: [&str; 4] = ["swap-core", "vmem", "npu-sys", "bridge"];

/// Tests that cannot run so, by a part of their name, each with the reason.
const LEFT_OUT: [(&str, &str); 3] = [
    ("hand_over::tests", "loom switches stacks, which the sanitizer does not follow"),
    ("a_process_without_mappings_to_spare", "the sanitizer needs mappings, and ends without them"),
    ("c_abi::programs", "programs in C++ lack the runtime, which rustc links into its own alone"),
];

/// Memory that is never freed on purpose, by a function that allocates it, each with the reason.
const KEPT: [(&str, &str); 3] = [
    ("load::Library>::open", "a vendor's library is never unloaded"),
    ("cuda::tests::fake", "nor is its stand-in in tests"),
    ("rust_panic", "dropping what a panic carried may panic again, inside the library"),
];

/// Faults that a test expects must end its process as they do without the sanitizer.
const OPTIONS: &str = "handle_segv=0:handle_sigbus=0";

/// Builds these crates with the sanitizer, in a folder of its own, and runs their tests.
///
/// # Errors
/// If the toolchain has no runtime of the sanitizer for this machine, a test fails, or the
/// sanitizer reports something.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let target = cmd!(shell, "rustc --print host-tuple").quiet().read()?;
    let libraries = cmd!(shell, "rustc --print target-libdir").quiet().read()?;
    if !has_runtime(Path::new(&libraries))? {
        bail!(
            "this toolchain has no AddressSanitizer for {target}: no *_rt.asan.a in {libraries}; \
             those of rustup have it for Linux on x86_64 and aarch64"
        );
    }
    let packages = CRATES.iter().flat_map(|name| ["--package", name]);
    let skips = LEFT_OUT.iter().flat_map(|(name, _)| ["--skip", name]);
    let folder = metadata::workspace(shell)?.target_folder.join("asan");
    // By this way and not by RUSTFLAGS, which the builds that tests start would inherit: rustc
    // loads parts of those, and has no sanitizer itself.
    let flags = format!("target.{target}.rustflags=['-Zsanitizer=address']");
    for (name, why) in LEFT_OUT {
        println!("left out: {name}: {why}");
    }
    fs::create_dir_all(&folder)?;
    let kept = folder.join("kept.txt");
    fs::write(&kept, KEPT.map(|(function, _)| format!("leak:{function}\n")).concat())?;
    cmd!(
        shell,
        "cargo test --locked --no-fail-fast {packages...} --lib --tests
            --target {target} --target-dir {folder} --config {flags} -- {skips...}"
    )
    // Flags from there would take the place of these, and the sanitizer would be left out.
    .env_remove("RUSTFLAGS")
    .env_remove("CARGO_ENCODED_RUSTFLAGS")
    // The option is not stable; a released compiler takes it so.
    .env("RUSTC_BOOTSTRAP", "1")
    .env("ASAN_OPTIONS", OPTIONS)
    .env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", kept.display()))
    .env("PROPTEST_RNG_SEED", "1")
    .run()?;
    Ok(())
}

/// Whether the sanitizer's runtime is among these libraries. Its name tells the channel.
fn has_runtime(libraries: &Path) -> anyhow::Result<bool> {
    let entries = fs::read_dir(libraries).with_context(|| {
        format!("rustc names a folder that is not there: {}", libraries.display())
    })?;
    for entry in entries {
        if entry?.file_name().to_string_lossy().ends_with("_rt.asan.a") {
            return Ok(true);
        }
    }
    Ok(false)
}
