//! Beginning and end, version, name, errors.

use std::ffi::{CStr, CString, c_char};
use std::sync::LazyLock;

use crate::abi::Out;
use crate::entry::{self, exports};
use crate::failure::{INVALID_PARAM, refuse};
use crate::runtime;

/// The version of the headers that this library follows.
const VERSION: (i32, i32, i32) = (1, 17, 0);
/// The device's name, by which the engine knows that the host can address its memory. Frameworks
/// want the name of a chip.
const NAME: &CStr = c"SmartSwap stand-in";
const NAME_VARIABLE: &str = "ACL_STANDIN_NAME";

exports! {
    /// Begins. The path of a settings file is not read.
    fn aclInit(_config_path: *const c_char) {
        runtime::initialise()
    }

    /// Ends, if nothing is held.
    fn aclFinalize() {
        runtime::finalise()
    }

    /// Ends, as [`aclFinalize`]: there is one reference.
    fn aclFinalizeReference(reference_count: Out<u64>) {
        reference_count.check("refCount")?;
        runtime::finalise()?;
        reference_count.put(0);
        Ok(())
    }

    /// The version of the runtime.
    fn aclrtGetVersion(major: Out<i32>, minor: Out<i32>, patch: Out<i32>) {
        major.check("majorVersion")?;
        minor.check("minorVersion")?;
        patch.check("patchVersion")?;
        major.put(VERSION.0);
        minor.put(VERSION.1);
        patch.put(VERSION.2);
        Ok(())
    }
}

/// The text of this thread's latest error, or null. Reading clears it; the text stays good until
/// the next reading.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    entry::guard(std::ptr::null(), entry::take_message)
}

/// The name of the chip. It needs no initialised library.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    static WISH: LazyLock<Option<CString>> = LazyLock::new(|| {
        let wish = std::env::var_os(NAME_VARIABLE)?;
        CString::new(wish.into_encoded_bytes()).ok()
    });
    WISH.as_deref().unwrap_or(NAME).as_ptr()
}

/// The code of this thread's latest error. Only level 0, the thread, is known.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclrtPeekAtLastError(level: i32) -> i32 {
    match level {
        0 => entry::last_code(),
        _ => entry::run("aclrtPeekAtLastError", || refuse(INVALID_PARAM, "the level is not 0")),
    }
}

/// The code of this thread's latest error, which it clears.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclrtGetLastError(level: i32) -> i32 {
    match level {
        0 => entry::take_last_code(),
        _ => entry::run("aclrtGetLastError", || refuse(INVALID_PARAM, "the level is not 0")),
    }
}
