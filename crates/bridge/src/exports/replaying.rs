//! Replays: how a caller lets the engine run one of its ops again.

use std::ffi::{CStr, c_char, c_int, c_void};

use adaptive::RecipeUse;

use super::memory::address_of;
use crate::context::Context;
use crate::failure::{Failure, code, guard};
use crate::local::{self, Replay, with_context};

type Run = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_char, u64) -> c_int;

/// `smartswap_replay`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SmartswapReplay {
    run: Option<Run>,
    release: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
    outputs: *const *const c_void,
    output_count: u32,
    inputs: *const *const c_void,
    input_count: u32,
    at_any_size: c_int,
}

/// A caller's replay, released when nobody needs it any more.
struct Owned(SmartswapReplay);

// SAFETY: the interface lets the engine run and release a replay on any thread.
unsafe impl Send for Owned {}
// SAFETY: as for `Send`; one op is replayed by one thread at a time.
unsafe impl Sync for Owned {}

impl Replay for Owned {
    fn is_at_any_size(&self) -> bool {
        self.0.at_any_size != 0
    }

    fn run(&self, output: u64) -> Result<(), String> {
        let Some(run) = self.0.run else { return Err("its function is NULL".to_owned()) };
        let mut why: [c_char; 512] = [0; 512];
        let output = output as *mut c_void;
        // SAFETY: the caller of `smartswap_offer_replay` promises that it may be called so until
        // it is released.
        let code = unsafe { run(self.0.data, output, why.as_mut_ptr(), why.len() as u64) };
        if code == 0 {
            return Ok(());
        }
        let why = why.map(|letter| letter as u8);
        let why = CStr::from_bytes_until_nul(&why).unwrap_or_default().to_string_lossy();
        let unsaid = "its owner could not run it again";
        Err(if why.is_empty() { unsaid.to_owned() } else { why.into_owned() })
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
/// `replay` is null or points to one whose functions may be called with its data, and whose lists
/// are as long as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_offer_replay(replay: *const SmartswapReplay) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a pointer to one.
        let replay = unsafe { replay.as_ref() };
        let replay = replay.ok_or_else(|| Failure::usage("the replay is NULL"))?;
        let owned = Owned(*replay);
        // SAFETY: the caller promises lists of these lengths.
        let outputs = unsafe { addresses(replay.outputs, replay.output_count) };
        // SAFETY: as above.
        let inputs = unsafe { addresses(replay.inputs, replay.input_count) };
        local::with(|local| local.offer_replay(owned, &outputs, &inputs))
    })
}

/// # Safety
/// `list` holds `count` addresses, or is null and `count` is 0.
unsafe fn addresses(list: *const *const c_void, count: u32) -> Vec<u64> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, so the caller promises so many.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    list.iter().map(|&address| address_of(address)).collect()
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_replay_use() -> c_int {
    match guard(|| local::with(|local| local.replay_use())) {
        Err(_) | Ok(RecipeUse::None) => 0,
        Ok(RecipeUse::Planned) => 1,
        Ok(RecipeUse::Recorded) => 2,
        Ok(RecipeUse::RecordedForSizes) => 3,
    }
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_discard(address: *const c_void) -> c_int {
    let discarded = guard(|| {
        with_context(|context| {
            let live = context.blocks.find_swappable(address_of(address));
            live.map_or(Ok(false), |live| Ok(context.engine.discard(live.id)?))
        })
    });
    c_int::from(discarded.unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_moves(address: *const c_void) -> c_int {
    let moves = guard(|| {
        with_context(|context| Ok(context.blocks.find_swappable(address_of(address)).is_some()))
    });
    c_int::from(moves.unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_least_bytes() -> u64 {
    let bytes = |context: &Context| Ok(context.settings.engine.pool.swap_threshold_bytes);
    guard(|| with_context(bytes)).unwrap_or(u64::MAX)
}
