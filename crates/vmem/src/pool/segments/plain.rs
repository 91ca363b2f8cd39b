//! Segments on devices without virtual memory: addresses and memory come and go as one.

use super::*;

/// Memory from `allocate_device`, of which all blocks are pieces.
#[derive(Debug)]
pub(super) struct PlainSegment {
    start: DevicePtr,
}

impl Pool {
    /// Takes a segment that holds a block of `size_bytes`. Where the cap or the device has no room
    /// for a whole one, empty segments are given back, and a shorter one does.
    pub(super) fn add_plain_segment(
        &mut self,
        streams: &mut Streams,
        stream: StreamId,
        size_bytes: u64,
    ) -> Result<(), MemoryError> {
        let limit_bytes = self.config.limit_bytes;
        let granularity_bytes = self.granularity_bytes;
        let Some(least_bytes) = size_bytes.checked_next_multiple_of(granularity_bytes) else {
            return Err(MemoryError::BadSize { requested_bytes: size_bytes });
        };
        let full = |missing_bytes| MemoryError::DeviceFull { missing_bytes, limit_bytes };
        let most_bytes =
            self.config.segment_bytes.next_multiple_of(granularity_bytes).max(least_bytes);
        if most_bytes > self.room_bytes() {
            self.free_empty_segments(streams)?;
        }
        let room_bytes = self.room_bytes();
        if least_bytes > room_bytes {
            return Err(full(least_bytes - room_bytes));
        }
        let room_bytes = room_bytes / granularity_bytes * granularity_bytes;
        let mut segment_bytes = most_bytes.min(room_bytes);
        let mut taken = self.driver.allocate_device(segment_bytes);
        if taken.as_ref().is_err_and(is_out_of_memory) {
            // The device has other users: the cap promised more than there is.
            self.free_empty_segments(streams)?;
            segment_bytes = least_bytes;
            taken = self.driver.allocate_device(segment_bytes);
        }
        let start = match taken {
            Err(error) if is_out_of_memory(&error) => return Err(full(least_bytes)),
            taken => taken?,
        };
        self.cache.charge(Fit::exact(segment_bytes));
        self.note_held();
        self.stats.segment_bytes.grow(segment_bytes);
        self.segments.carver.add_region(stream.0, start.0, segment_bytes);
        self.segments.plain.push(PlainSegment { start });
        Ok(())
    }

    /// Gives all empty segments back to the driver, waiting on the host for their last uses.
    /// Those that could not be given back stay, and stay counted.
    pub(in crate::pool) fn free_empty_segments(
        &mut self,
        streams: &mut Streams,
    ) -> Result<(), DriverError> {
        let mut first_error = Ok(());
        for EmptyRegion { group, start, size_bytes, uses } in self.take_empty_segments(streams) {
            let at_start = |segment: &PlainSegment| segment.start == DevicePtr(start);
            let index = self.segments.plain.iter().position(at_start);
            let index = index.expect("a region is a segment");
            let waited = streams.wait_host(&uses, Site::FreeSegmentAfterUse);
            // SAFETY: they are complete where `waited` is not an error.
            match waited.and_then(|()| unsafe { self.free_plain(DevicePtr(start)) }) {
                Ok(()) => {
                    self.segments.plain.swap_remove(index);
                    self.stats.segment_bytes.shrink(size_bytes);
                    self.cache.refund(size_bytes);
                }
                Err(error) => {
                    self.segments.carver.put_back_region(group, start, size_bytes, uses);
                    first_error = first_error.and(Err(error));
                }
            }
        }
        first_error
    }

    /// Bytes that the cap leaves.
    fn room_bytes(&self) -> u64 {
        self.config.limit_bytes - self.cache.held_bytes()
    }
}

fn is_out_of_memory(error: &DriverError) -> bool {
    error.kind == ErrorKind::OutOfMemory
}
