//! The interface declared anew, after `include/smartswap.h`, with safe functions around it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

pub(crate) const OK: c_int = 0;
pub(crate) const OUT_OF_MEMORY: c_int = 1;
pub(crate) const USAGE: c_int = 2;
pub(crate) const BROKEN: c_int = 5;
pub(crate) const SETTINGS: c_int = 3;

pub(crate) const READ: c_int = 0;
pub(crate) const WRITE: c_int = 1;
pub(crate) const READ_WRITE: c_int = 2;
pub(crate) const UNKNOWN: c_int = 3;
pub(crate) const OUTPUT: c_int = 4;
pub(crate) const STEP: c_int = 0;
pub(crate) const ASIDE: c_int = 1;
pub(crate) const FIGURES: u32 = 25;
pub(crate) const ALONE: c_int = 0;
pub(crate) const LEADS: c_int = 2;
pub(crate) const LATER: c_int = 0;
pub(crate) const NEXT_STEP: c_int = 1;
pub(crate) const AT_ONCE: c_int = 2;
pub(crate) const TIMES: c_int = 3;

/// `smartswap_settings`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Settings {
    pub(crate) struct_size: u32,
    pub(crate) device: *const c_char,
    pub(crate) memory_bytes: u64,
    pub(crate) host_memory_bytes: u64,
    pub(crate) min_block_bytes: u64,
    pub(crate) compute_stream: u64,
    pub(crate) prefer: *const c_char,
    pub(crate) strategy: *const c_char,
    pub(crate) config_file: *const c_char,
    pub(crate) record_file: *const c_char,
}

/// `smartswap_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub(crate) struct Counter {
    pub(crate) current: u64,
    pub(crate) peak: u64,
}

/// `smartswap_stats`.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
#[repr(C)]
pub(crate) struct Stats {
    pub(crate) struct_size: u32,
    pub(crate) stage: u32,
    pub(crate) steps: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) requested: Counter,
    pub(crate) allocated: Counter,
    pub(crate) active: Counter,
    pub(crate) reserved: Counter,
    pub(crate) pinned_host: Counter,
    pub(crate) used_host: Counter,
    pub(crate) allocations: u64,
    pub(crate) swapped_out_bytes: u64,
    pub(crate) swapped_in_bytes: u64,
    pub(crate) recomputed_ops: u64,
    pub(crate) kept_bytes: u64,
    pub(crate) misses: u64,
    pub(crate) rescues: u64,
    pub(crate) recalls: u64,
    pub(crate) host_waits: u64,
    pub(crate) stall_us: f64,
    pub(crate) last_step_us: f64,
    pub(crate) plan: u64,
    pub(crate) steps_by_stage: [u64; 3],
    pub(crate) memory_calls: [u64; 4],
    pub(crate) last_memory_calls: [u64; 4],
    pub(crate) branches: u64,
    pub(crate) unlimited_us: f64,
    pub(crate) search_steps: u64,
    pub(crate) reported_steps: u64,
}

/// `smartswap_replay`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Replay {
    pub(crate) run: extern "C" fn(*mut c_void, *mut c_void, *mut c_char, u64) -> c_int,
    pub(crate) release: extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
    pub(crate) outputs: *const *const c_void,
    pub(crate) output_count: u32,
    pub(crate) inputs: *const *const c_void,
    pub(crate) input_count: u32,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Touched {
    pub(crate) address: *const c_void,
    pub(crate) access: c_int,
}

/// `smartswap_lister`.
pub(crate) type Lister = extern "C" fn(*mut c_void, *mut c_void, u64, c_int);

/// `smartswap_visitor`.
pub(crate) type Visitor = extern "C" fn(*mut c_void, *mut c_void, u64);

// SAFETY: the declarations follow the header. Safe are those that take any address whatever, as
// they only look it up.
unsafe extern "C" {
    pub(crate) safe fn smartswap_abi_version() -> u32;
    safe fn smartswap_last_error() -> *const c_char;
    pub(crate) fn smartswap_default_settings(settings: *mut Settings);
    pub(crate) fn smartswap_open(settings: *const Settings) -> c_int;
    pub(crate) safe fn smartswap_close() -> c_int;
    pub(crate) safe fn smartswap_is_open() -> c_int;
    pub(crate) safe fn smartswap_compute_stream() -> u64;
    pub(crate) safe fn smartswap_bring_home() -> c_int;
    pub(crate) safe fn smartswap_allocate(size_bytes: u64, stream: u64) -> *mut c_void;
    pub(crate) safe fn smartswap_free(address: *mut c_void) -> c_int;
    pub(crate) safe fn smartswap_use_on(address: *const c_void, stream: u64) -> c_int;
    fn smartswap_hold(address: *const c_void, stream: u64, by: *const c_char) -> c_int;
    fn smartswap_lend(address: *const c_void, stream: u64, by: *const c_char) -> c_int;
    safe fn smartswap_held() -> *mut c_char;
    fn smartswap_find(
        address: *const c_void,
        start: *mut *mut c_void,
        size_bytes: *mut u64,
    ) -> c_int;
    pub(crate) safe fn smartswap_trim() -> c_int;
    pub(crate) safe fn smartswap_set_outside(size_bytes: u64) -> c_int;
    pub(crate) safe fn smartswap_suspend() -> c_int;
    pub(crate) safe fn smartswap_resume() -> c_int;
    pub(crate) fn smartswap_visit(visitor: Option<Visitor>, argument: *mut c_void) -> c_int;
    pub(crate) fn smartswap_list(lister: Option<Lister>, argument: *mut c_void) -> c_int;
    fn smartswap_describe_fault(
        address: *const c_void,
        text: *mut c_char,
        size_bytes: u64,
    ) -> c_int;
    pub(crate) safe fn smartswap_has_swapped() -> c_int;
    pub(crate) safe fn smartswap_allocate_swapped(size_bytes: u64, stream: u64) -> *mut c_void;
    pub(crate) safe fn smartswap_free_swapped(address: *mut c_void, stream: u64) -> c_int;
    pub(crate) safe fn smartswap_is_swapped(address: *const c_void) -> c_int;
    fn smartswap_begin(name: *const c_char, stream: u64, part: c_int) -> c_int;
    pub(crate) safe fn smartswap_touch(address: *const c_void, access: c_int) -> c_int;
    pub(crate) fn smartswap_touch_all(touched: *const Touched, count: u32) -> c_int;
    pub(crate) safe fn smartswap_moves(address: *const c_void) -> c_int;
    pub(crate) safe fn smartswap_least_bytes() -> u64;
    pub(crate) safe fn smartswap_replay_use() -> c_int;
    fn smartswap_offer_replay(replay: *const Replay) -> c_int;
    pub(crate) safe fn smartswap_discard(address: *const c_void) -> c_int;
    pub(crate) safe fn smartswap_end() -> c_int;
    pub(crate) safe fn smartswap_depth() -> u32;
    pub(crate) safe fn smartswap_graph_make() -> u64;
    pub(crate) safe fn smartswap_graph_forget(graph: u64) -> c_int;
    pub(crate) safe fn smartswap_capture_begins() -> c_int;
    pub(crate) safe fn smartswap_capture_ended() -> c_int;
    pub(crate) fn smartswap_graph_note(graph: u64, touched: *const Touched, count: u32) -> c_int;
    pub(crate) safe fn smartswap_graph_include(graph: u64, inner: u64) -> c_int;
    pub(crate) safe fn smartswap_graph_touch(graph: u64) -> c_int;
    pub(crate) safe fn smartswap_stays(address: *const c_void) -> c_int;
    pub(crate) safe fn smartswap_step() -> c_int;
    pub(crate) safe fn smartswap_step_begun() -> c_int;
    pub(crate) safe fn smartswap_may_sleep() -> c_int;
    pub(crate) safe fn smartswap_sleep() -> c_int;
    pub(crate) safe fn smartswap_should_wake(size_bytes: u64) -> c_int;
    pub(crate) safe fn smartswap_wake() -> c_int;
    pub(crate) safe fn smartswap_awake() -> c_int;
    pub(crate) safe fn smartswap_checks_order() -> c_int;
    pub(crate) safe fn smartswap_note_order(call: c_int, event: u64, stream: u64) -> c_int;
    pub(crate) safe fn smartswap_share(role: c_int) -> c_int;
    fn smartswap_get_figures(figures: *mut f64, n_figures: u32) -> c_int;
    fn smartswap_agree(
        worst: *const f64,
        n_figures: u32,
        round: *mut c_int,
        n_times: *mut u32,
    ) -> c_int;
    fn smartswap_get_times(times: *mut f64, n_times: u32) -> c_int;
    fn smartswap_agree_times(times: *const f64, n_times: u32, round: *mut c_int) -> c_int;
    fn smartswap_get_stats(stats: *mut Stats) -> c_int;
    pub(crate) safe fn smartswap_reset_peaks() -> c_int;
    safe fn smartswap_explain() -> *mut c_char;
    safe fn smartswap_deferral() -> *mut c_char;
    safe fn smartswap_take_news() -> *mut c_char;
    fn smartswap_free_text(text: *mut c_char);
    fn smartswap_save_trace(path: *const c_char) -> c_int;
    fn smartswap_save_report(folder: *const c_char) -> c_int;

    pub(crate) safe fn smartswap_malloc(
        size_bytes: usize,
        device: c_int,
        stream: *mut c_void,
    ) -> *mut c_void;
    pub(crate) safe fn smartswap_delete(
        address: *mut c_void,
        size_bytes: usize,
        device: c_int,
        stream: *mut c_void,
    );
    pub(crate) safe fn smartswap_init(device_count: c_int);
    pub(crate) safe fn smartswap_reset();
    pub(crate) safe fn smartswap_memory_fraction(fraction: f64, device: c_int);
    fn smartswap_base_alloc(address: *mut c_void, size_bytes: *mut usize) -> *mut c_void;
    pub(crate) safe fn smartswap_record_stream(address: *mut c_void, stream: *mut c_void);
    pub(crate) safe fn smartswap_reset_peak_status(device: c_int);
}

pub(crate) fn last_error() -> String {
    // SAFETY: never null, ends with a zero, and stays until this thread's next failure.
    let text = unsafe { CStr::from_ptr(smartswap_last_error()) };
    text.to_str().expect("UTF-8").to_owned()
}

pub(crate) fn default_settings() -> Settings {
    let mut settings = std::mem::MaybeUninit::uninit();
    // SAFETY: there is memory for one.
    unsafe { smartswap_default_settings(settings.as_mut_ptr()) };
    // SAFETY: the call has filled all of it.
    unsafe { settings.assume_init() }
}

/// The texts behind `settings` live as long as the call.
pub(crate) fn open(settings: Option<&Settings>) -> c_int {
    // SAFETY: null, or one whose texts are null or end with a zero: the tests make them from
    // `CStr`s that outlive the call.
    unsafe { smartswap_open(settings.map_or(std::ptr::null(), std::ptr::from_ref)) }
}

pub(crate) fn begin_named(name: Option<&CStr>, part: c_int) -> c_int {
    // SAFETY: null, or a text that ends with a zero.
    unsafe { smartswap_begin(name.map_or(std::ptr::null(), CStr::as_ptr), 0, part) }
}

pub(crate) fn begin(name: &str) -> c_int {
    begin_named(Some(&CString::new(name).expect("no zero inside")), STEP)
}

pub(crate) fn find(address: *const c_void) -> Result<(*mut c_void, u64), c_int> {
    let (mut start, mut size_bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: there is memory for both results.
    match unsafe { smartswap_find(address, &raw mut start, &raw mut size_bytes) } {
        OK => Ok((start, size_bytes)),
        code => Err(code),
    }
}

/// Asks for neither of the results.
pub(crate) fn find_nothing(address: *const c_void) -> c_int {
    // SAFETY: both may be null.
    unsafe { smartswap_find(address, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// The engine owns `data` from then on.
pub(crate) fn offer_replay(replay: Option<&Replay>) -> c_int {
    // SAFETY: null, or one whose functions may be called with its data, as the tests make them.
    unsafe { smartswap_offer_replay(replay.map_or(std::ptr::null(), std::ptr::from_ref)) }
}

/// Says why a replay failed, where the engine wants to know.
pub(crate) fn say(text: &CStr, why: *mut c_char, why_bytes: u64) {
    let text = text.to_bytes_with_nul();
    assert!(text.len() as u64 <= why_bytes);
    // SAFETY: the engine gives so much room.
    unsafe { why.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
}

pub(crate) fn get_stats(stats: Option<&mut Stats>) -> c_int {
    // SAFETY: null, or one that nobody else uses.
    unsafe { smartswap_get_stats(stats.map_or(std::ptr::null_mut(), std::ptr::from_mut)) }
}

pub(crate) fn stats() -> Stats {
    let mut stats = Stats { struct_size: size_of::<Stats>() as u32, ..Stats::default() };
    assert_eq!(get_stats(Some(&mut stats)), OK, "{}", last_error());
    stats
}

pub(crate) fn figures(numbers: &mut [f64]) -> c_int {
    // SAFETY: there is memory for as many.
    unsafe { smartswap_get_figures(numbers.as_mut_ptr(), numbers.len() as u32) }
}

/// The next round and the number of times, or the code.
pub(crate) fn agree(worst: Option<&[f64]>) -> Result<(c_int, u32), c_int> {
    let (mut round, mut n_times) = (-1, u32::MAX);
    let count = worst.map_or(FIGURES, |worst| worst.len() as u32);
    let worst = worst.map_or(std::ptr::null(), <[f64]>::as_ptr);
    // SAFETY: null or as many numbers, and memory for both results.
    match unsafe { smartswap_agree(worst, count, &raw mut round, &raw mut n_times) } {
        OK => Ok((round, n_times)),
        code => Err(code),
    }
}

pub(crate) fn times(numbers: &mut [f64]) -> c_int {
    // SAFETY: there is memory for as many.
    unsafe { smartswap_get_times(numbers.as_mut_ptr(), numbers.len() as u32) }
}

/// The next round, or the code.
pub(crate) fn agree_times(numbers: &[f64]) -> Result<c_int, c_int> {
    let mut round = -1;
    let count = numbers.len() as u32;
    // SAFETY: as many numbers, and memory for the result.
    match unsafe { smartswap_agree_times(numbers.as_ptr(), count, &raw mut round) } {
        OK => Ok(round),
        code => Err(code),
    }
}

pub(crate) fn hold(address: *const c_void) -> c_int {
    // SAFETY: the name ends with a zero.
    unsafe { smartswap_hold(address, 0, c"a test".as_ptr()) }
}

pub(crate) fn lend(address: *const c_void) -> c_int {
    // SAFETY: the name ends with a zero.
    unsafe { smartswap_lend(address, 0, c"a test".as_ptr()) }
}

/// Neither with a name.
pub(crate) fn keep_for_nobody(address: *const c_void) -> [c_int; 2] {
    let nobody = std::ptr::null();
    [
        // SAFETY: the name may be null.
        unsafe { smartswap_hold(address, 0, nobody) },
        // SAFETY: as above.
        unsafe { smartswap_lend(address, 0, nobody) },
    ]
}

/// Words about a fault at `address`, in so much room; `None` if it lies in no memory that moves.
pub(crate) fn describe_fault(address: *const c_void, room_bytes: usize) -> Option<String> {
    let mut room = vec![7_u8; room_bytes];
    // SAFETY: there is so much room.
    let found =
        unsafe { smartswap_describe_fault(address, room.as_mut_ptr().cast(), room_bytes as u64) };
    let text = CStr::from_bytes_until_nul(&room).ok()?;
    (found == 1).then(|| text.to_str().expect("UTF-8").to_owned())
}

pub(crate) fn explain() -> Option<String> {
    text_of(smartswap_explain())
}

pub(crate) fn deferral() -> Option<String> {
    text_of(smartswap_deferral())
}

pub(crate) fn held() -> Option<String> {
    text_of(smartswap_held())
}

pub(crate) fn take_news() -> Option<String> {
    text_of(smartswap_take_news())
}

/// A text that the engine made, which is freed here.
fn text_of(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a text that ends with a zero.
    let result = unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
    // SAFETY: it came from the engine and is freed once.
    unsafe { smartswap_free_text(text) };
    Some(result)
}

pub(crate) fn free_no_text() {
    // SAFETY: null may be freed.
    unsafe { smartswap_free_text(std::ptr::null_mut()) };
}

pub(crate) fn save_trace(path: Option<&CStr>) -> c_int {
    // SAFETY: null, or a text that ends with a zero.
    unsafe { smartswap_save_trace(path.map_or(std::ptr::null(), CStr::as_ptr)) }
}

pub(crate) fn save_report(path: Option<&CStr>) -> c_int {
    // SAFETY: null, or a text that ends with a zero.
    unsafe { smartswap_save_report(path.map_or(std::ptr::null(), CStr::as_ptr)) }
}

pub(crate) fn base_alloc(address: *mut c_void, size_bytes: Option<&mut usize>) -> *mut c_void {
    let size_bytes = size_bytes.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: null, or memory for a number.
    unsafe { smartswap_base_alloc(address, size_bytes) }
}
