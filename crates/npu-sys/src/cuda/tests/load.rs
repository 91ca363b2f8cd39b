//! What opening says when the library is missing, wrong, or too old.

use std::path::Path;

use crate::cuda::CudaDriver;
use crate::cuda::sys::Api;
use crate::cuda::tests::fake::Fake;
use crate::error::OpenError;

fn refusal(library: &Path) -> OpenError {
    // SAFETY: a library without CUDA's functions is refused.
    unsafe { CudaDriver::open_from(library, 0) }.expect_err("this is not a CUDA library")
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

#[test]
fn each_function_is_missed_by_its_name_or_done_without() {
    for &(symbol, is_optional) in Api::SYMBOLS {
        let opened = Fake::without(symbol).open(0);
        match opened {
            Ok(driver) => assert!(is_optional, "{driver:?} without {symbol}"),
            Err(OpenError::MissingSymbol { symbol: missed, path }) => {
                assert_eq!((missed, is_optional), (symbol, false), "{path}");
            }
            Err(error) => panic!("without {symbol}: {error}"),
        }
    }
}

#[test]
fn a_driver_that_does_not_start_says_why() {
    let fake = Fake::whole();
    let error = fake.open(3).unwrap_err();
    assert_eq!(error, OpenError::NoDevice { name: "CUDA", index: 3, count: 1 });
    fake.set("fake_init_code", 100);
    let error = fake.open(0).unwrap_err();
    assert_eq!(error, OpenError::NoDevice { name: "CUDA", index: 0, count: 0 });
    fake.set("fake_init_code", 803);
    let text = fake.open(0).unwrap_err().to_string();
    assert!(text.contains("code 803: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{text}");
    assert!(text.contains("install one, or reboot"), "{text}");
    assert_eq!(fake.retained(), 0);
}

const CHILD: &str = "NPU_SYS_CUDA_LOAD_CHILD";

#[test]
fn the_environment_names_the_library() {
    let fake = Fake::whole();
    let counts = |library: &Path| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "cuda::tests::load::child", "--nocapture"]);
        let output =
            command.env(CHILD, "1").env("SMARTSWAP_CUDA_LIBRARY", library).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let told = counts(&fake.path());
    assert!(told.contains("count Ok(1)") && told.contains("open Ok(\"Fake\")"), "{told}");
    let told = counts(Path::new("/nowhere/libcuda.so.1"));
    assert!(told.contains("count Err(NoLibrary") && told.contains("open Err(NoLib"), "{told}");
}

/// The other process of the test above. On its own it has nothing to do.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("count {:?}", CudaDriver::device_count());
        println!("open {:?}", CudaDriver::open(0).map(|driver| driver.properties.name.clone()));
    }
}
