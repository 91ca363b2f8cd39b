//! Making a device current on the calling thread, and reading what a call answered.

use std::ffi::CStr;

use crate::acl::failure;
use crate::acl::sys::{ACL_SUCCESS, Api, aclError};
use crate::drop_failures;
use crate::error::DriverError;

/// The library, and the device of one driver.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) api: Api,
    pub(super) index: i32,
}

/// One call of the driver: while this lives, its device is the calling thread's.
#[derive(Debug)]
pub(super) struct Current<'a> {
    pub(super) api: &'a Api,
    /// The call of the trait that all this is done for.
    pub(super) call: &'static str,
    pub(super) index: i32,
    /// Another device that was current before, and is to be again.
    previous: Option<i32>,
}

impl Device {
    /// Makes the device current for `call`.
    ///
    /// The library is asked each time which device is current: others in the process change it
    /// as well, and a remembered answer would send calls to the wrong device.
    pub(super) fn enter(&self, call: &'static str) -> Result<Current<'_>, DriverError> {
        let mut before = -1;
        // SAFETY: the library writes one number.
        let code = unsafe { (self.api.aclrtGetDevice)(&mut before) };
        let mut now = Current { api: &self.api, call, index: self.index, previous: None };
        if code == ACL_SUCCESS && before == self.index {
            return Ok(now);
        }
        // SAFETY: it takes a plain number.
        let set = unsafe { (self.api.aclrtSetDevice)(self.index) };
        now.check("aclrtSetDevice", set)?;
        // A thread without a device keeps ours: nothing takes it away again but a reset.
        now.previous = (code == ACL_SUCCESS).then_some(before);
        Ok(now)
    }
}

impl Current<'_> {
    /// What `symbol` answered, as a result.
    pub(super) fn check(&self, symbol: &'static str, code: aclError) -> Result<(), DriverError> {
        match code {
            ACL_SUCCESS => Ok(()),
            code => Err(failure::error(self.call, symbol, code, &recent_text(self.api))),
        }
    }

    /// A function that only some versions of the library have.
    pub(super) fn need<F>(
        &self,
        symbol: &'static str,
        function: Option<F>,
    ) -> Result<F, DriverError> {
        function.ok_or_else(|| failure::missing(self.call, symbol))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(previous) = self.previous {
            // SAFETY: it takes a plain number.
            let code = unsafe { (self.api.aclrtSetDevice)(previous) };
            // It was current a moment ago; if it is gone, its user will be told as well.
            drop_failures::note(self.check("aclrtSetDevice", code));
        }
    }
}

/// The library's own words about the thread's latest failure. Reading clears them.
pub(super) fn recent_text(api: &Api) -> String {
    // SAFETY: it takes nothing.
    let text = unsafe { (api.aclGetRecentErrMsg)() };
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a text of the library's that ends in a zero and is good until the thread's next
    // call.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().trim().to_owned()
}
