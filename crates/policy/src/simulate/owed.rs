//! Memory that went back to the device while a copy still read it, and that nobody has used since.
//!
//! Who gives a chunk back for a smaller one of its own waits for the chunk's copy. The rest of the
//! chunk is free by the bytes alone; who uses it next waits for the same copy.

use std::collections::VecDeque;

use super::memory::latest;
use super::state::Ready;

#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Bytes and what they wait for, those that went back first in front.
    parts: VecDeque<(u64, Ready)>,
    bytes: u64,
}

impl Owed {
    /// Uses some bytes: of what has just been given back for them, else of the `free_bytes` that
    /// were there before, what waits for nothing first. Says what they wait for.
    pub(super) fn take(
        &mut self,
        size_bytes: u64,
        given_back: Vec<(u64, Ready)>,
        free_bytes: u64,
    ) -> Ready {
        let given_bytes: u64 = given_back.iter().map(|&(bytes, _)| bytes).sum();
        let mut ready = latest(given_back.into_iter().map(|(_, ready)| ready));
        if given_bytes > size_bytes {
            self.bytes += given_bytes - size_bytes;
            self.parts.push_back((given_bytes - size_bytes, ready));
            return ready;
        }
        let mut missing_bytes = (size_bytes - given_bytes).saturating_sub(free_bytes - self.bytes);
        while missing_bytes > 0 {
            let (bytes, after) = self.parts.front_mut().expect("all that is free is there");
            let used_bytes = missing_bytes.min(*bytes);
            ready = latest([ready, *after].into_iter());
            *bytes -= used_bytes;
            self.bytes -= used_bytes;
            missing_bytes -= used_bytes;
            if *bytes == 0 {
                self.parts.pop_front();
            }
        }
        ready
    }
}
