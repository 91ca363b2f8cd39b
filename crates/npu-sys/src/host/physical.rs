//! Physical device memory: one sparse file in memory, of which each chunk is a piece.
//!
//! Between two places there is a gap, so that chunks at neighbouring addresses are never
//! neighbours in the file: the system would join their mappings, and could not take one away
//! without another mapping.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, FallocateFlags, MemfdFlags};
use rustix::io::{self, Errno};

/// The file and its free places. A place is used again for chunks of the same size.
#[derive(Debug)]
pub(super) struct Physical {
    file: OwnedFd,
    gap_bytes: u64,
    end: u64,
    free: BTreeMap<u64, Vec<u64>>,
    poison: Option<u64>,
}

impl Physical {
    pub(super) fn new(gap_bytes: u64, poison: Option<u64>) -> Result<Physical, Errno> {
        let file = fs::memfd_create("npu-sys host device", MemfdFlags::CLOEXEC)?;
        Ok(Physical { file, gap_bytes, end: 0, free: BTreeMap::new(), poison })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes a place of `size_bytes` and returns its offset. Its bytes are poison or zeros.
    pub(super) fn take(&mut self, size_bytes: u64) -> Result<u64, Errno> {
        let recycled = self.free.get_mut(&size_bytes).and_then(Vec::pop);
        let offset = match recycled {
            Some(offset) => offset,
            None => {
                let end = self.end.checked_add(size_bytes).ok_or(Errno::NOMEM)?;
                fs::ftruncate(&self.file, end)?;
                std::mem::replace(&mut self.end, end.saturating_add(self.gap_bytes))
            }
        };
        if let Err(errno) = self.fill(offset, size_bytes) {
            self.free.entry(size_bytes).or_default().push(offset);
            return Err(errno);
        }
        Ok(offset)
    }

    /// Gives a place back, and its memory to the system.
    pub(super) fn give_back(&mut self, offset: u64, size_bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fs::fallocate(&self.file, flags, offset, size_bytes)?;
        self.free.entry(size_bytes).or_default().push(offset);
        Ok(())
    }

    fn fill(&self, offset: u64, size_bytes: u64) -> Result<(), Errno> {
        let Some(poison) = self.poison else { return Ok(()) };
        let pattern = poison.to_le_bytes().repeat(8192);
        let mut done = 0;
        while done < size_bytes {
            let piece = usize::try_from(size_bytes - done).unwrap_or(usize::MAX);
            let piece = &pattern[..piece.min(pattern.len())];
            // Whole words only, so that the pattern stays in step after a short write.
            let written = io::pwrite(&self.file, piece, offset + done)? as u64;
            done += written - written % 8;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_back_to_the_system_and_places_serve_again() {
        let size = 1 << 20;
        let mut physical = Physical::new(4096, Some(u64::MAX)).expect("a memory file");
        let blocks = |physical: &Physical| fs::fstat(&physical.file).expect("our file").st_blocks;
        let first = physical.take(size).expect("memory");
        let second = physical.take(2 * size).expect("memory");
        assert_eq!((first, second), (0, size + 4096), "with a gap");
        assert_eq!(blocks(&physical) * 512, 3 << 20);
        physical.give_back(first, size).expect("our place");
        assert_eq!(blocks(&physical) * 512, 2 << 20);
        physical.give_back(second, 2 * size).expect("our place");
        assert_eq!(blocks(&physical), 0);
        assert_eq!(physical.take(2 * size).expect("memory"), second);
        assert_eq!(physical.take(size).expect("memory"), first);
        assert_eq!(physical.take(size).expect("memory"), 3 * size + 2 * 4096);
    }
}
