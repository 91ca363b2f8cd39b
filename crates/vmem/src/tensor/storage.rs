//! The bytes of a tensor and of all its views: where they are, and how they move.

use std::sync::{Mutex, MutexGuard, PoisonError};

use npu_sys::{Copy, DevicePtr, DriverError};

use crate::arena::Slot;
use crate::block::BlockId;
use crate::error::MemoryError;
use crate::memory::DeviceMemory;
use crate::point::{Point, Site, StreamId, Uses};
use crate::swapped::SwappedBlock;
use crate::tensor::bytes::submit_copy;
use crate::tensor::device::TensorDevice;
use crate::tensor::error::TensorError;

/// Where a tensor's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// In device memory.
    Device,
    /// In the pinned host arena; the device cannot reach them until they are swapped in.
    Away,
    /// In host memory that the device addresses.
    Swapped,
    /// In plain host memory.
    Host,
}

impl Place {
    /// All places.
    pub const ALL: [Place; 4] = [Place::Device, Place::Away, Place::Swapped, Place::Host];
}

/// The bytes of a tensor and of all its views.
#[derive(Debug)]
pub(super) struct Storage {
    pub(super) device: TensorDevice,
    pub(super) size_bytes: usize,
    /// Changed only under the lock of the device's memory, which is always taken first.
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) enum State {
    /// The pool knows the uses.
    Device { block: BlockId },
    /// A tensor that was never on the device has no block, and so no address yet.
    Away { block: Option<BlockId>, slot: Slot, uses: Uses },
    /// In swapped memory.
    Swapped { block: SwappedBlock, uses: Uses },
    /// In plain host memory, which no stream uses.
    Host(Vec<u8>),
}

impl Storage {
    /// Takes memory in `place`. Its bytes are undefined.
    pub(super) fn new(
        device: &TensorDevice,
        place: Place,
        size_bytes: usize,
    ) -> Result<Storage, TensorError> {
        let bytes = size_bytes as u64;
        let memory = &mut *device.lock();
        let state = match place {
            Place::Device => {
                let DeviceMemory { pool, streams, .. } = memory;
                State::Device { block: pool.allocate(streams, bytes, device.stream_id())? }
            }
            Place::Away => {
                let (slot, uses) = memory.arena.take(bytes)?;
                State::Away { block: None, slot, uses }
            }
            Place::Swapped => {
                let (block, uses) = memory.swapped.take(&mut memory.arena, bytes)?;
                State::Swapped { block, uses }
            }
            Place::Host => {
                let mut host = Vec::new();
                host.try_reserve_exact(size_bytes)
                    .map_err(|_| MemoryError::BadSize { requested_bytes: bytes })?;
                host.resize(size_bytes, 0);
                State::Host(host)
            }
        };
        Ok(Storage { device: device.clone(), size_bytes, state: Mutex::new(state) })
    }

    /// Plain host memory with these bytes.
    pub(super) fn of_bytes(device: &TensorDevice, bytes: Vec<u8>) -> Storage {
        let size_bytes = bytes.len();
        Storage { device: device.clone(), size_bytes, state: Mutex::new(State::Host(bytes)) }
    }

    /// The state, which stays as it is while the memory's lock is held.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn place(&self) -> Place {
        self.state().place()
    }

    /// Where the device reaches the first byte, if it does.
    pub(super) fn address(&self) -> Option<DevicePtr> {
        let memory = self.device.lock();
        self.state().address(&memory)
    }

    /// Counts work that others submitted to `stream` as a use.
    pub(super) fn record_use(&self, stream: npu_sys::StreamHandle) {
        let memory = &mut *self.device.lock();
        let stream = memory.streams.adopt(stream);
        let point = memory.streams.advance(stream);
        self.state().note(memory, point);
    }

    /// Moves the bytes from the device to the arena. Whether they are there now.
    pub(super) fn swap_out(&self) -> Result<bool, TensorError> {
        let memory = &mut *self.device.lock();
        let mut state = self.state();
        let block = match &*state {
            State::Device { block } if memory.pool.is_swappable(*block) => *block,
            State::Away { .. } => return Ok(true),
            State::Device { .. } | State::Swapped { .. } | State::Host(_) => return Ok(false),
        };
        memory.pool.poll(&mut memory.streams)?;
        let (slot, slot_uses) = memory.arena.take(self.size_bytes as u64)?;
        match self.copy_out(memory, block, &slot, &slot_uses) {
            Ok(copied) => {
                memory.pool.note_use(block, copied);
                memory.pool.detach(block, Uses::of(copied));
                *state = State::Away { block: Some(block), slot, uses: Uses::of(copied) };
                Ok(true)
            }
            Err(error) => {
                memory.arena.give_back(slot, slot_uses);
                Err(error.into())
            }
        }
    }

    fn copy_out(
        &self,
        memory: &mut DeviceMemory,
        block: BlockId,
        slot: &Slot,
        slot_uses: &Uses,
    ) -> Result<Point, DriverError> {
        let stream = self.device.stream_id();
        let block_uses = memory.pool.uses(block).clone();
        order(memory, stream, &block_uses, Site::CopyOutAfterUse)?;
        order(memory, stream, slot_uses, Site::CopyOutAfterSlot)?;
        let copy = Copy::DeviceToHost {
            source: memory.pool.home(block),
            target: slot.start(),
            size_bytes: self.size_bytes as u64,
        };
        // SAFETY: the storage's block and its slot, whose uses were waited for; the caller notes
        // the point that is returned.
        unsafe { submit_copy(&memory.streams, copy, stream) }?;
        Ok(submitted(memory, stream))
    }

    /// Moves the bytes from the arena to the device. Whether they are there now.
    pub(super) fn swap_in(&self) -> Result<bool, TensorError> {
        let memory = &mut *self.device.lock();
        let mut state = self.state();
        let (known, slot, uses) = match &mut *state {
            State::Away { block, slot, uses } => (*block, slot, uses),
            State::Device { .. } => return Ok(true),
            State::Swapped { .. } | State::Host(_) => return Ok(false),
        };
        memory.pool.poll(&mut memory.streams)?;
        let block = match known {
            Some(block) => self.return_to(memory, block, slot, uses)?,
            None => self.arrive_first(memory, slot, uses)?,
        };
        let away = std::mem::replace(&mut *state, State::Device { block });
        if let State::Away { slot, uses, .. } = away {
            memory.arena.give_back(slot, uses);
        }
        Ok(true)
    }

    /// Gives the block memory again, with the slot's bytes. On failure it is away as before.
    fn return_to(
        &self,
        memory: &mut DeviceMemory,
        block: BlockId,
        slot: &Slot,
        slot_uses: &mut Uses,
    ) -> Result<BlockId, TensorError> {
        let DeviceMemory { pool, streams, .. } = memory;
        let mut chunk_uses = pool.attach(streams, block)?;
        let stream = self.device.stream_id();
        let target = memory.pool.home(block);
        let arrived = order(memory, stream, &chunk_uses, Site::CopyInAfterRelease)
            .and_then(|()| self.copy_in(memory, target, slot, slot_uses))
            .and_then(|copied| {
                chunk_uses.add(copied);
                memory.pool.note_use(block, copied);
                memory.pool.map_block(&mut memory.streams, block)
            });
        match arrived {
            Ok(()) => Ok(block),
            Err(error) => {
                memory.pool.detach(block, chunk_uses);
                Err(error.into())
            }
        }
    }

    /// Makes a block for bytes that were never on the device.
    fn arrive_first(
        &self,
        memory: &mut DeviceMemory,
        slot: &Slot,
        slot_uses: &mut Uses,
    ) -> Result<BlockId, TensorError> {
        let DeviceMemory { pool, streams, .. } = memory;
        let stream = self.device.stream_id();
        let block = pool.allocate(streams, self.size_bytes as u64, stream)?;
        let target = pool.address(block);
        match self.copy_in(memory, target, slot, slot_uses) {
            Ok(copied) => {
                memory.pool.note_use(block, copied);
                Ok(block)
            }
            Err(error) => {
                memory.pool.free(block);
                Err(error.into())
            }
        }
    }

    fn copy_in(
        &self,
        memory: &mut DeviceMemory,
        target: DevicePtr,
        slot: &Slot,
        slot_uses: &mut Uses,
    ) -> Result<Point, DriverError> {
        let stream = self.device.stream_id();
        order(memory, stream, slot_uses, Site::CopyInAfterCopyOut)?;
        let size_bytes = self.size_bytes as u64;
        if size_bytes > 0 {
            let copy = Copy::HostToDevice { source: slot.start(), target, size_bytes };
            // SAFETY: the slot's uses were waited for, those of `target` by the pool as it gave
            // the chunk; `copied` is noted for both.
            unsafe { submit_copy(&memory.streams, copy, stream) }?;
        }
        let copied = submitted(memory, stream);
        slot_uses.add(copied);
        Ok(copied)
    }
}

/// Makes `stream` wait for `uses`.
pub(super) fn order(
    memory: &mut DeviceMemory,
    stream: StreamId,
    uses: &Uses,
    site: Site,
) -> Result<(), DriverError> {
    uses.points().iter().try_for_each(|&point| memory.streams.order_after(stream, point, site))
}

/// Counts what was just submitted, and marks its end so that later waits cover no more.
pub(super) fn submitted(memory: &mut DeviceMemory, stream: StreamId) -> Point {
    let point = memory.streams.advance(stream);
    // Without the mark a wait is longer than need be, or reports the failure itself.
    let _ = memory.streams.mark(stream);
    point
}

impl State {
    pub(super) fn place(&self) -> Place {
        match self {
            State::Device { .. } => Place::Device,
            State::Away { .. } => Place::Away,
            State::Swapped { .. } => Place::Swapped,
            State::Host(_) => Place::Host,
        }
    }

    pub(super) fn address(&self, memory: &DeviceMemory) -> Option<DevicePtr> {
        match self {
            State::Device { block } => Some(memory.pool.address(*block)),
            State::Swapped { block, .. } => Some(block.address()),
            State::Away { .. } | State::Host(_) => None,
        }
    }

    /// All work that uses the bytes and may not be complete.
    pub(super) fn uses(&self, memory: &DeviceMemory) -> Uses {
        match self {
            State::Device { block } => memory.pool.uses(*block).clone(),
            State::Away { uses, .. } | State::Swapped { uses, .. } => uses.clone(),
            State::Host(_) => Uses::default(),
        }
    }

    /// Counts work as a use.
    pub(super) fn note(&mut self, memory: &mut DeviceMemory, point: Point) {
        match self {
            State::Device { block } => memory.pool.note_use(*block, point),
            State::Away { uses, .. } | State::Swapped { uses, .. } => uses.add(point),
            State::Host(_) => {}
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let memory = &mut *self.device.lock();
        match std::mem::replace(&mut *self.state(), State::Host(Vec::new())) {
            State::Device { block } => memory.pool.free(block),
            State::Away { block, slot, uses } => {
                if let Some(block) = block {
                    memory.pool.free(block);
                }
                memory.arena.give_back(slot, uses);
            }
            State::Swapped { block, uses } => memory.free_swapped(block, uses),
            State::Host(_) => {}
        }
    }
}
