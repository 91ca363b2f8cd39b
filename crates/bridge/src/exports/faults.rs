//! Faults: words for an access to memory that is away.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write as _;

use adaptive::Bytes;

use super::memory::address_of;
use crate::context;
use crate::failure::guard;

/// See `smartswap.h`.
///
/// # Safety
/// `text` is null or has room for `size_bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_describe_fault(
    address: *const c_void,
    text: *mut c_char,
    size_bytes: u64,
) -> c_int {
    let found = guard(|| {
        let address = address_of(address);
        // The thread may be anywhere, with anything locked.
        let Some(live) = context::try_find(address) else { return Ok(false) };
        if text.is_null() || size_bytes == 0 {
            return Ok(false);
        }
        let room = text.cast::<u8>();
        // SAFETY: the caller promises the room, which nobody else uses meanwhile.
        let room = unsafe { std::slice::from_raw_parts_mut(room, size_bytes as usize) };
        describe(address - live.start, live.size_bytes, room);
        Ok(true)
    });
    c_int::from(found.unwrap_or(false))
}

/// Words that end with a zero. What does not fit is left out.
fn describe(offset: u64, size_bytes: u64, room: &mut [u8]) {
    room.fill(0);
    let (_, mut room) = room.split_last_mut().expect("not empty");
    let _ = writeln!(
        room,
        "SmartSwap: something used byte {offset} of a tensor of {} outside PyTorch's operators, \
         while the tensor was not on the device. Call the function through \
         smartswap.adapt_mem_func_wrapper, or take data_ptr() in the step that uses it; see \
         python/README.md",
        Bytes(size_bytes)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_with_a_zero_whatever_the_room() {
        for room_bytes in 1..400 {
            let mut room = vec![7; room_bytes];
            describe(5, 4 << 20, &mut room);
            assert_eq!(room[room_bytes - 1], 0);
            let text = std::str::from_utf8(&room).expect("UTF-8");
            let text = text.trim_end_matches('\0');
            let begin = "SmartSwap: something used byte 5 of a tensor of 4.0 MiB outside";
            assert!(begin.starts_with(text) || text.starts_with(begin), "{text}");
        }
    }
}
