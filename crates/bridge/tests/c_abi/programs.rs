//! C++ programs that link with the library: the example, and the hooks at their edges.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::rig::Turn;

const BRIDGE: &str = env!("CARGO_MANIFEST_DIR");

/// The folder of libsmartswap.so: cargo lays it beside this program or one above.
fn library_folder() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let folders = program.ancestors().skip(1).take(2);
    let folder = folders.into_iter().find(|folder| folder.join("libsmartswap.so").is_file());
    folder.expect("libsmartswap.so was built with this test").to_owned()
}

/// Compiles a program against the headers and the library. Nothing if there is no such compiler.
pub(super) fn compile(
    compiler: &str,
    flags: &[&str],
    source: &Path,
    folder: &Path,
) -> Option<PathBuf> {
    if Command::new(compiler).arg("--version").output().is_err() {
        eprintln!("skipped: there is no {compiler}");
        return None;
    }
    let library = library_folder();
    let program = folder.join("program");
    let built = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-pthread"])
        .args(flags)
        .arg(source)
        .arg(format!("-I{BRIDGE}/include"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", library.display()))
        .args(["-lsmartswap", &format!("-Wl,-rpath,{}", library.display())])
        .output()
        .expect("it runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// What a program prints; it must end well.
pub(super) fn run(program: &Path) -> String {
    let ran = Command::new(program).output().expect("it runs");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{:?}: {errors}", ran.status);
    String::from_utf8(ran.stdout).expect("UTF-8")
}

fn compile_and_run(source: &str, standard: &str) -> Option<String> {
    // Engines in other processes are no hindrance, but their memory might be.
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(BRIDGE).join(source);
    let program = compile("c++", &[standard], &source, folder.path())?;
    Some(run(&program))
}

#[test]
fn a_program_without_pytorch_works_in_a_quarter_of_its_memory() {
    let Some(printed) = compile_and_run("examples/hooks.cpp", "-std=c++17") else { return };
    assert!(printed.starts_with("70 MiB in 16 MiB: "), "{printed}");
}

#[test]
fn hooks_fail_as_they_say() {
    let Some(printed) = compile_and_run("tests/c_abi/hooks.cpp", "-std=c++20") else { return };
    assert_eq!(printed, "the hooks hold\n");
}
