//! Replays: how a caller lets the engine run one of its ops again.

use std::ffi::{c_int, c_void};

use super::memory::address_of;
use crate::failure::{Failure, code, guard};
use crate::local::{self, Replay, with_context};

/// `smartswap_replay`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SmartswapReplay {
    run: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

/// A caller's replay, released when nobody needs it any more.
struct Owned(SmartswapReplay);

// SAFETY: the interface lets the engine run and release a replay on any thread.
unsafe impl Send for Owned {}
// SAFETY: as for `Send`; one op is replayed by one thread at a time.
unsafe impl Sync for Owned {}

impl Replay for Owned {
    fn run(&self) -> bool {
        let Some(run) = self.0.run else { return false };
        // SAFETY: the caller of `smartswap_offer_replay` promises that it may be called so until
        // it is released.
        unsafe { run(self.0.data) == 0 }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: as above, and it is released once.
            unsafe { release(self.0.data) };
        }
    }
}

/// See `smartswap.h`.
///
/// # Safety
/// `replay` is null or points to one whose functions may be called with its data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_offer_replay(replay: *const SmartswapReplay) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a pointer to one.
        let replay = unsafe { replay.as_ref() };
        let replay = replay.ok_or_else(|| Failure::usage("the replay is NULL"))?;
        let owned = Owned(*replay);
        local::with(|local| local.offer_replay(owned))
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_moves(address: *const c_void) -> c_int {
    let moves = guard(|| {
        with_context(|context| Ok(context.blocks.find_large(address_of(address)).is_some()))
    });
    c_int::from(moves.unwrap_or(false))
}
