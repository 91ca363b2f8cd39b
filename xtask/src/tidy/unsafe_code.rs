//! Where `unsafe` may be: the one list of files.

use super::Violation;
use super::source::Code;

/// Files that may hold unsafe blocks and impls; a folder's files end in `/*`.
const ALLOWED: [&str; 38] = [
    "crates/acl-standin/src/*",
    "crates/acl-standin/tests/*",
    "crates/bridge/src/exports/*",
    "crates/bridge/src/device.rs",
    // Calls the functions as C does.
    "crates/bridge/tests/c_abi/*",
    "crates/npu-sys/src/acl/*",
    "crates/npu-sys/src/cuda/*",
    "crates/npu-sys/src/load.rs",
    "crates/npu-sys/src/pages.rs",
    "crates/npu-sys/src/pages/*",
    "crates/npu-sys/src/operands.rs",
    "crates/npu-sys/src/wrap/*",
    "crates/npu-sys/src/host/*",
    // The driver's own tests are its callers.
    "crates/npu-sys/tests/*",
    "crates/vmem/src/arena.rs",
    "crates/vmem/src/arena/*",
    "crates/vmem/src/probe.rs",
    "crates/vmem/src/probe/*",
    "crates/vmem/src/tensor/bytes.rs",
    "crates/vmem/src/tensor/storage.rs",
    "crates/vmem/src/tensor/transfer.rs",
    // Opens the stand-in library.
    "crates/vmem/tests/memory/forks.rs",
    // Launches kernels.
    "crates/vmem/tests/tensor/order.rs",
    "crates/vmem/src/pool/mapper.rs",
    "crates/vmem/src/pool/mapping.rs",
    "crates/vmem/src/pool/physical.rs",
    "crates/vmem/src/pool/segments/plain.rs",
    "crates/vmem/src/pool/planned.rs",
    "crates/vmem/src/pool/planned/shown.rs",
    "crates/swap-core/src/copies.rs",
    "crates/swap-core/src/ops.rs",
    // Computes on the calling thread.
    "crates/swap-core/tests/engine/beside.rs",
    // Reads an address that must fault.
    "crates/swap-core/tests/engine/reuse.rs",
    "crates/swap-core/tests/engine/lab.rs",
    // Reads addresses, some of which must fault.
    "crates/adaptive/tests/unmapping.rs",
    "crates/cli/src/stress/pattern.rs",
    "crates/kernels/src/matmul.rs",
    // Launches kernels, as whoever uses `vmem` does.
    "examples/layer-by-layer/src/main.rs",
];

/// The number of unsafe blocks and impls. Declarations of unsafe functions do nothing unsafe.
pub(super) fn count(code: &Code) -> usize {
    let words: Vec<&str> = code
        .code
        .split(|c: char| c.is_whitespace())
        .flat_map(|piece| piece.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_'))
        .collect();
    let opens = |next: &str| next.starts_with('{') || next == "impl" || next.starts_with("impl<");
    words.windows(2).filter(|pair| pair[0] == "unsafe" && opens(pair[1])).count()
        + words.iter().filter(|word| **word == "unsafe{").count()
}

/// Whether a file with so many may have them.
pub(super) fn check(path: &str, count: usize) -> Option<Violation> {
    let is_allowed = ALLOWED.iter().any(|allowed| match allowed.strip_suffix('*') {
        Some(folder) => path.starts_with(folder),
        None => path == *allowed,
    });
    let text = "unsafe code in a file that may not have any (see xtask/src/tidy/unsafe_code.rs)";
    (count > 0 && !is_allowed).then(|| Violation::new(path, 0, text))
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    #[test]
    fn blocks_and_impls_count_and_nothing_else() {
        let check = |text: &str, expect: usize| {
            assert_eq!(count(&source::parse(text)), expect, "{text}");
        };
        check("let a = unsafe { b() };", 1);
        check("let a = f(unsafe{ b() });", 1);
        check("let a = unsafe\n{ b() };", 1);
        check("unsafe impl Send for A {}\nunsafe impl<T> Sync for B<T> {}", 2);
        check("unsafe fn a();", 0);
        check("#![forbid(unsafe_code)] // unsafe { }", 0);
        check("let a = \"unsafe { }\";", 0);
    }

    #[test]
    fn only_listed_files_may_have_them() {
        assert_eq!(check("crates/npu-sys/src/operands.rs", 3), None);
        assert_eq!(check("crates/npu-sys/src/host/vm.rs", 3), None);
        assert_eq!(check("crates/policy/src/lib.rs", 0), None);
        for path in ["crates/policy/src/lib.rs", "crates/npu-sys/src/hosts.rs"] {
            assert!(check(path, 1).is_some(), "{path}");
        }
    }
}
