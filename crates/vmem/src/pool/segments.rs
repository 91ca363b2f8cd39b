//! Segments, from which small blocks are carved.
//!
//! One that holds no block is idle memory, as a cached chunk is: it serves small blocks again, and
//! goes back to the driver where others find no room.

use super::*;

use self::plain::PlainSegment;

mod plain;

/// Memory of small blocks, and how it is cut into pieces.
#[derive(Debug, Default)]
pub(super) struct Segments {
    chunks: Vec<Chunk>,
    /// On a device without virtual memory.
    plain: Vec<PlainSegment>,
    /// Each segment is a region of it.
    carver: Carver,
}

impl Segments {
    /// Takes a piece back, whose next user waits for `uses`.
    pub(super) fn give_back(&mut self, piece: PieceId, uses: Uses) {
        self.carver.give_back(piece, uses);
    }
}

impl Pool {
    /// Physical bytes of the segments that hold blocks.
    pub fn segment_bytes(&self) -> u64 {
        self.stats.segment_bytes.current - self.empty_segment_bytes()
    }

    /// Physical bytes of segments that hold no blocks.
    pub(super) fn empty_segment_bytes(&self) -> u64 {
        self.segments.carver.empty_bytes()
    }

    pub(super) fn place_small(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<(BlockMemory, Uses), MemoryError> {
        let (piece, start, mut uses) = match self.segments.carver.carve(stream.0, size_bytes) {
            Some(carved) => carved,
            None => {
                if self.has_virtual_memory {
                    self.add_segment(streams, stream)?;
                } else {
                    self.add_plain_segment(streams, stream, size_bytes)?;
                }
                self.segments
                    .carver
                    .carve(stream.0, size_bytes)
                    .expect("a new segment holds the block")
            }
        };
        uses.prune(streams);
        for &point in uses.points() {
            if let Err(error) = streams.order_after(stream, point, Site::CarveAfterRelease) {
                self.segments.carver.give_back(piece, uses);
                return Err(error.into());
            }
        }
        Ok((BlockMemory::Piece { piece, start: DevicePtr(start) }, uses))
    }

    fn add_segment(&mut self, streams: &mut Streams, stream: StreamId) -> Result<(), MemoryError> {
        let size_bytes = self.config.segment_bytes.next_multiple_of(self.granularity_bytes);
        let chunk = self.create(streams, Fit::exact(size_bytes))?;
        self.segments.carver.add_region(stream.0, chunk.home.start.0, size_bytes);
        self.stats.segment_bytes.grow(size_bytes);
        self.segments.chunks.push(chunk);
        Ok(())
    }

    /// Gives a segment that holds no block back to the driver; the host waits for its stream.
    /// Returns whether there was one.
    pub(super) fn release_empty_segment(
        &mut self,
        streams: &mut Streams,
    ) -> Result<bool, DriverError> {
        if !self.has_virtual_memory {
            return Ok(false);
        }
        let Some(mut region) = self.segments.carver.remove_empty_region() else { return Ok(false) };
        put_behind_its_stream(&mut region, streams);
        self.release_segment(streams, region).map(|()| true)
    }

    /// Gives all segments that hold no block back to the driver.
    pub(super) fn release_empty_segments(
        &mut self,
        streams: &mut Streams,
    ) -> Result<(), DriverError> {
        if !self.has_virtual_memory {
            return self.free_empty_segments(streams);
        }
        let mut first_error = Ok(());
        for region in self.take_empty_segments(streams) {
            let result = self.release_segment(streams, region);
            first_error = first_error.and(result);
        }
        first_error
    }

    /// Takes out the segments that hold no block, each behind all that its stream was given.
    pub(super) fn take_empty_segments(&mut self, streams: &mut Streams) -> Vec<EmptyRegion> {
        let mut empty = self.segments.carver.remove_empty_regions();
        empty.iter_mut().for_each(|region| put_behind_its_stream(region, streams));
        empty
    }

    /// Gives a segment back whose region the carver has no more. On failure its chunk is kept.
    fn release_segment(
        &mut self,
        streams: &mut Streams,
        EmptyRegion { start, size_bytes, uses, .. }: EmptyRegion,
    ) -> Result<(), DriverError> {
        let home = |segment: &Chunk| segment.home.start == DevicePtr(start);
        let index = self.segments.chunks.iter().position(home).expect("a region is a segment");
        let chunk = self.segments.chunks.swap_remove(index);
        self.stats.segment_bytes.shrink(size_bytes);
        self.cache.refund(size_bytes);
        self.release(streams, Spare { chunk, range: None, ready: uses, departure: None })
    }
}

/// Small blocks come to the next of their stream in its own order, so that callers need not note
/// what else uses them there. Who else gets the memory waits for all that the stream was given.
fn put_behind_its_stream(region: &mut EmptyRegion, streams: &mut Streams) {
    region.uses.add(streams.advance(StreamId(region.group)));
}
