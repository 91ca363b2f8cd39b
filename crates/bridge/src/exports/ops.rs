//! Ops and steps.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use adaptive::AccessMode;

use super::memory::address_of;
use crate::context;
use crate::failure::{Failure, code, guard};
use crate::local::{self, Use};

/// `smartswap_part`.
const STEP: c_int = 0;
const ASIDE: c_int = 1;

/// See `smartswap.h`.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_begin(name: *const c_char, stream: u64, part: c_int) -> c_int {
    code(|| {
        if name.is_null() {
            return Err(Failure::usage("the name of an op is NULL"));
        }
        // SAFETY: not null, so the caller promises a zero at the end.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| Failure::usage("an op's name is not UTF-8"))?;
        let aside = match part {
            STEP => false,
            ASIDE => true,
            _ => return Err(Failure::usage(format!("{part} is not a smartswap_part"))),
        };
        local::with_op(|local| local.begin(name, stream, aside))
    })
}

/// `smartswap_touched`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SmartswapTouched {
    address: *const c_void,
    access: c_int,
}

impl SmartswapTouched {
    /// A list that C gave.
    ///
    /// # Safety
    /// `touched` points to `count` of them, which live as long as the result is used, or is null
    /// and `count` is 0.
    pub(super) unsafe fn all<'a>(
        touched: *const SmartswapTouched,
        count: u32,
    ) -> Result<&'a [SmartswapTouched], Failure> {
        if count == 0 {
            return Ok(&[]);
        }
        if touched.is_null() {
            return Err(Failure::usage("the list of what is touched is NULL"));
        }
        // SAFETY: not null, so the caller promises so many.
        Ok(unsafe { std::slice::from_raw_parts(touched, count as usize) })
    }

    /// The addresses and what is done there, if all of it makes sense.
    pub(super) fn uses(
        touched: &[SmartswapTouched],
    ) -> Result<impl Iterator<Item = (u64, Use)> + Clone, Failure> {
        touched.iter().try_for_each(|one| one.how().map(drop))?;
        Ok(touched.iter().filter_map(|one| Some((address_of(one.address), one.how().ok()?))))
    }

    fn how(&self) -> Result<Use, Failure> {
        Ok(match self.access {
            0 => Use::Known(AccessMode::Read),
            1 => Use::Known(AccessMode::Write),
            2 => Use::Known(AccessMode::ReadWrite),
            3 => Use::Unknown,
            4 => Use::Output,
            other => return Err(Failure::usage(format!("{other} is not a smartswap_access"))),
        })
    }
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_touch(address: *const c_void, access: c_int) -> c_int {
    code(|| touch(&[SmartswapTouched { address, access }]))
}

/// See `smartswap.h`.
///
/// # Safety
/// `touched` points to `count` of them, or is null and `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_touch_all(
    touched: *const SmartswapTouched,
    count: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    code(|| touch(unsafe { SmartswapTouched::all(touched, count) }?))
}

fn touch(touched: &[SmartswapTouched]) -> Result<(), Failure> {
    let uses = SmartswapTouched::uses(touched)?;
    local::with_op(|local| local.touch(uses))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_end() -> c_int {
    code(|| local::with_op(local::Local::end))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_depth() -> u32 {
    guard(|| local::with(|local| Ok(local.depth()))).unwrap_or(0)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_step() -> c_int {
    code(|| {
        let context = local::with(|local| {
            if local.depth() > 0 {
                return Err(Failure::usage("a step cannot end inside an op: end the op first"));
            }
            Ok(local.context.clone())
        })?;
        context.step()
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_step_begun() -> c_int {
    let begun = guard(|| Ok(context::current()?.step_has_begun.load(Ordering::Relaxed)));
    c_int::from(begun.unwrap_or(false))
}
