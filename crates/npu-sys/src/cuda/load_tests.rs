//! What opening says when the library is missing, wrong, or too old.

use std::path::Path;

use crate::cuda::CudaDriver;
use crate::error::OpenError;

fn refusal(library: &Path) -> OpenError {
    CudaDriver::open_from(library, 0).expect_err("this is no CUDA library")
}

#[test]
fn a_missing_library_is_named_with_the_hint() {
    let error = refusal(Path::new("/nowhere/libcuda.so.1"));
    assert!(matches!(error, OpenError::NoLibrary { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("tried /nowhere/libcuda.so.1: "), "{text}");
    assert!(text.contains("install the NVIDIA driver"), "{text}");
}

#[test]
fn files_that_are_no_library_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], expect: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = refusal(&path);
        assert!(matches!(error, OpenError::NotALibrary { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&path.display().to_string()) && text.contains(expect), "{text}");
    };
    check("text", b"this is a text that is longer than a header", "it is not an ELF file");
    check("short", b"\x7fEL", "it is not an ELF file");
    check("empty", b"", "it is not an ELF file");
    // A machine that this test does not run on: s390.
    let mut header = [0_u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[18] = 22;
    check("other", &header, "it is for ELF machine 22");
    header[18] = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    check("cut", &header, "");
}

#[test]
fn another_library_lacks_the_first_function() {
    let error = refusal(Path::new("libm.so.6"));
    let OpenError::MissingSymbol { symbol, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*symbol, "cuInit");
    assert!(error.to_string().contains("libm.so.6 has no function cuInit"), "{error}");
}
