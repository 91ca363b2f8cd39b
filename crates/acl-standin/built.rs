//! Builds the stand-in beside the test that includes this file, with the cargo that runs the test.

use std::path::PathBuf;
use std::process::Command;

/// The built library, or why there is none.
pub(super) fn standin() -> Result<PathBuf, String> {
    let Some(cargo) = std::env::var_os("CARGO") else {
        return Err("set SMARTSWAP_ACL_LIBRARY, or run it by cargo to build the stand-in".into());
    };
    let test = std::env::current_exe().map_err(|error| error.to_string())?;
    // This file is <target>/<profile>/deps/<name>.
    let folder = test.ancestors().nth(2).ok_or("this test is not in a target folder")?;
    let target = folder.parent().ok_or("this test is not in a target folder")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "test",
        Some(name) => name,
    };
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--offline", "--package", "acl-standin", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(|error| error.to_string())?;
    if !built.status.success() {
        return Err(format!("no stand-in: {}", String::from_utf8_lossy(&built.stderr)));
    }
    Ok(folder.join("libascendcl.so"))
}
