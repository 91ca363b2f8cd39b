//! Copies between tensors: any place, any strides, any types.
//!
//! Neighbouring elements of one type that the driver can reach on both sides are copied by the
//! driver, in stream order. All else goes by the host in *tiles*: boxes of elements so small that
//! what they span on the device fits into a stage, a slot of the arena. So no copy takes device
//! memory, and all of them take little on the host.
//!
//! ```text
//!   device span -> stage -> packed elements -> converted -> stage -> device span
//!   slot, swapped or host memory --^               '------> slot, swapped or host memory
//! ```
//!
//! Where a tile leaves gaps in its span on the device, the span is read, filled and written back.
//! So a call on a view counts as a use of its whole storage.

use npu_sys::{Copy, DevicePtr, HostPtr};

use crate::memory::DeviceMemory;
use crate::point::{Site, StreamId, Uses};
use crate::tensor::bytes::{HostBytes, Pinned, submit_copy, submit_fill};
use crate::tensor::dtype::{Dtype, convert};
use crate::tensor::error::TensorError;
use crate::tensor::layout::{Layout, Side, Walk};
use crate::tensor::stage::Stages;
use crate::tensor::storage::{State, Storage, order, submitted};

/// Shorter rows go by tiles: the driver takes longer to begin a copy than to make it.
const ROW_BYTES: usize = 4096;

/// One side of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct End<'a> {
    pub(super) storage: &'a Storage,
    pub(super) dtype: Dtype,
    pub(super) layout: &'a Layout,
}

impl End<'_> {
    fn item(&self) -> usize {
        self.dtype.size_bytes()
    }
}

/// How the driver reaches the first byte of a storage.
#[derive(Clone, Copy, Debug)]
enum Reach {
    Device(DevicePtr),
    Host(HostPtr),
    Both(HostPtr, DevicePtr),
    Nowhere,
}

/// Copies all elements of `source` to `target`. Both are on one device and of one shape, do not
/// overlap, and `target` does not repeat elements.
///
/// On failure some elements of the target may have been overwritten; nothing else has changed.
pub(super) fn copy(target: End<'_>, source: End<'_>) -> Result<(), TensorError> {
    if target.layout.element_count() == 0 {
        return Ok(());
    }
    let walk = Walk::new(target.layout, source.layout);
    let device = &target.storage.device;
    let memory = &mut *device.lock();
    let stream = device.stream_id();
    memory.pool.poll(&mut memory.streams)?;
    let row_bytes = walk.run() * target.item();
    let in_rows = walk.run() == walk.element_count() || row_bytes >= ROW_BYTES;
    if target.dtype == source.dtype && in_rows {
        let from = reach(source.storage, memory);
        let to = reach(target.storage, memory);
        if driver_copy(from, to, 0, 0, 0).is_some() {
            return copy_rows(memory, stream, &walk, (target, to), (source, from));
        }
    }
    let tile_bytes = device.stage_bytes();
    let mut tiles = Tiles { memory, stream, target, source, tile_bytes, stages: None };
    let result = tiles.copy(walk);
    tiles.finish();
    result
}

fn reach(storage: &Storage, memory: &DeviceMemory) -> Reach {
    match &*storage.state() {
        State::Device { block } => Reach::Device(memory.pool.address(*block)),
        State::Away { slot, .. } => Reach::Host(slot.start()),
        State::Swapped { block, .. } => Reach::Both(block.host(), block.address()),
        State::Host(_) => Reach::Nowhere,
    }
}

/// The driver's copy between two places, if it has one.
fn driver_copy(
    from: Reach,
    to: Reach,
    from_bytes: u64,
    to_bytes: u64,
    size_bytes: u64,
) -> Option<Copy> {
    let inward = |source: HostPtr, target: DevicePtr| Copy::HostToDevice {
        source: source.offset(from_bytes),
        target: target.offset(to_bytes),
        size_bytes,
    };
    let outward = |source: DevicePtr, target: HostPtr| Copy::DeviceToHost {
        source: source.offset(from_bytes),
        target: target.offset(to_bytes),
        size_bytes,
    };
    let within = |source: DevicePtr, target: DevicePtr| Copy::DeviceToDevice {
        source: source.offset(from_bytes),
        target: target.offset(to_bytes),
        size_bytes,
    };
    match (from, to) {
        (Reach::Device(source), Reach::Device(target))
        | (Reach::Both(_, source), Reach::Both(_, target)) => Some(within(source, target)),
        (Reach::Device(source), Reach::Host(target) | Reach::Both(target, _)) => {
            Some(outward(source, target))
        }
        (Reach::Host(source) | Reach::Both(source, _), Reach::Device(target)) => {
            Some(inward(source, target))
        }
        // One of them is plain host memory, or both are pinned and the host copies.
        _ => None,
    }
}

/// Lets the driver copy row by row.
fn copy_rows(
    memory: &mut DeviceMemory,
    stream: StreamId,
    walk: &Walk,
    (target, to): (End<'_>, Reach),
    (source, from): (End<'_>, Reach),
) -> Result<(), TensorError> {
    let uses = source.storage.state().uses(memory);
    order(memory, stream, &uses, Site::CopyOutAfterUse)?;
    let uses = target.storage.state().uses(memory);
    order(memory, stream, &uses, Site::CopyInAfterRelease)?;
    let mut target_rows = Vec::new();
    walk.target.rows(&walk.shape, |at| target_rows.push(at));
    let mut target_rows = target_rows.into_iter();
    let item = target.item();
    let mut result = Ok(());
    walk.source.rows(&walk.shape, |at| {
        let target_at = target_rows.next().expect("both sides have as many rows");
        if result.is_err() {
            return;
        }
        let from_bytes = (walk.source.start + at) * item;
        let to_bytes = (walk.target.start + target_at) * item;
        let (from_bytes, to_bytes) = (from_bytes as u64, to_bytes as u64);
        let copy = driver_copy(from, to, from_bytes, to_bytes, (walk.run() * item) as u64);
        let copy = copy.expect("the caller saw that there is one");
        // SAFETY: both storages' uses were waited for, and `point` is noted for both; ends that
        // overlap were sent another way.
        result = unsafe { submit_copy(&memory.streams, copy, stream) };
    });
    // After a failure, too: some rows may have been submitted.
    let point = submitted(memory, stream);
    source.storage.state().note(memory, point);
    target.storage.state().note(memory, point);
    Ok(result?)
}

/// Sets all bytes of `target` to `value`, if the driver can reach them in long enough rows.
/// Whether it did.
pub(super) fn fill(target: End<'_>, value: u8) -> Result<bool, TensorError> {
    if target.layout.element_count() == 0 {
        return Ok(true);
    }
    let walk = Walk::new(target.layout, target.layout);
    let row_bytes = walk.run() * target.item();
    let device = &target.storage.device;
    let memory = &mut *device.lock();
    let Some(start) = target.storage.state().address(memory) else { return Ok(false) };
    if walk.run() < walk.element_count() && row_bytes < ROW_BYTES {
        return Ok(false);
    }
    let stream = device.stream_id();
    let uses = target.storage.state().uses(memory);
    order(memory, stream, &uses, Site::CopyInAfterRelease)?;
    let mut result = Ok(());
    walk.target.rows(&walk.shape, |at| {
        if result.is_ok() {
            let row = start.offset(((walk.target.start + at) * target.item()) as u64);
            // SAFETY: the storage's uses were waited for, and `point` is noted for it.
            result = unsafe { submit_fill(&memory.streams, row, row_bytes as u64, value, stream) };
        }
    });
    let point = submitted(memory, stream);
    target.storage.state().note(memory, point);
    result.map(|()| true).map_err(TensorError::from)
}

/// A copy that goes by the host.
struct Tiles<'a> {
    memory: &'a mut DeviceMemory,
    stream: StreamId,
    target: End<'a>,
    source: End<'a>,
    /// The most that a tile spans on the device, and the most that it holds.
    tile_bytes: usize,
    stages: Option<Stages>,
}

impl Tiles<'_> {
    fn copy(&mut self, walk: Walk) -> Result<(), TensorError> {
        let on_device = |end: &End<'_>| matches!(&*end.storage.state(), State::Device { .. });
        let (from_device, to_device) = (on_device(&self.source), on_device(&self.target));
        if from_device || to_device {
            let mut span_bytes = 0;
            if from_device {
                span_bytes = walk.source.span(&walk.shape) * self.source.item();
            }
            if to_device {
                let target_bytes = walk.target.span(&walk.shape) * self.target.item();
                span_bytes = span_bytes.max(target_bytes);
            }
            let stages = Stages::take(self.memory, span_bytes.min(self.tile_bytes), to_device)?;
            self.tile_bytes = self.tile_bytes.min(stages.size_bytes());
            self.stages = Some(stages);
        }
        let mut left = vec![walk];
        while let Some(walk) = left.pop() {
            match self.cut(&walk, from_device, to_device) {
                Some(dim) => {
                    let (low, high) = walk.halve(dim);
                    left.extend([high, low]);
                }
                None => self.copy_tile(&walk)?,
            }
        }
        Ok(())
    }

    /// Where to cut the walk, unless it is a tile.
    fn cut(&self, walk: &Walk, from_device: bool, to_device: bool) -> Option<usize> {
        let (shape, most) = (&walk.shape, self.tile_bytes);
        let spans_more = |side: &Side, end: &End<'_>| side.span(shape) * end.item() > most;
        let item = self.source.item().max(self.target.item());
        if from_device && spans_more(&walk.source, &self.source) {
            Some(walk.source.longest(shape))
        } else if to_device && spans_more(&walk.target, &self.target)
            || walk.element_count() * item > most
        {
            Some(walk.target.longest(shape))
        } else {
            None
        }
    }

    fn copy_tile(&mut self, walk: &Walk) -> Result<(), TensorError> {
        let packed = self.gather(walk)?;
        let packed = convert(packed, self.source.dtype, self.target.dtype);
        self.scatter(walk, &packed)
    }

    /// The elements of a tile of the source, packed.
    fn gather(&mut self, walk: &Walk) -> Result<Vec<u8>, TensorError> {
        let (side, item) = (&walk.source, self.source.item());
        let start = side.start * item;
        let storage = self.source.storage;
        let uses = storage.state().uses(self.memory);
        if let State::Device { block } = &*storage.state() {
            let span_bytes = side.span(&walk.shape) * item;
            let source = self.memory.pool.address(*block).offset(start as u64);
            order(self.memory, self.stream, &uses, Site::CopyOutAfterUse)?;
            let stages = self.stages.as_mut().expect("taken for a side on the device");
            let slot = stages.next(self.memory, Site::HostAfterUse)?;
            let copy = Copy::DeviceToHost {
                source,
                target: stages.slot(slot).start(),
                size_bytes: span_bytes as u64,
            };
            // SAFETY: uses of block and slot were waited for, and `copied` is noted for both.
            unsafe { submit_copy(&self.memory.streams, copy, self.stream) }?;
            let copied = submitted(self.memory, self.stream);
            self.memory.pool.note_use(*block, copied);
            stages.note(slot, copied);
            self.memory.streams.wait_host(&Uses::of(copied), Site::HostAfterUse)?;
            return Ok(read_rows(&Pinned::slot(stages.slot(slot)), 0, side, &walk.shape, item));
        }
        self.memory.streams.wait_host(&uses, Site::HostAfterUse)?;
        Ok(match &*storage.state() {
            State::Device { .. } => unreachable!("handled above"),
            State::Away { slot, .. } => {
                read_rows(&Pinned::slot(slot), start, side, &walk.shape, item)
            }
            State::Swapped { block, .. } => {
                read_rows(&Pinned::swapped(block), start, side, &walk.shape, item)
            }
            State::Host(bytes) => read_rows(&bytes[..], start, side, &walk.shape, item),
        })
    }

    /// Puts packed elements into a tile of the target.
    fn scatter(&mut self, walk: &Walk, packed: &[u8]) -> Result<(), TensorError> {
        let (side, item) = (&walk.target, self.target.item());
        let start = side.start * item;
        let storage = self.target.storage;
        if matches!(&*storage.state(), State::Device { .. }) {
            return self.scatter_on_device(walk, packed);
        }
        let uses = storage.state().uses(self.memory);
        self.memory.streams.wait_host(&uses, Site::HostAfterUse)?;
        match &mut *storage.state() {
            State::Device { .. } => unreachable!("handled above"),
            State::Away { slot, .. } => {
                write_rows(&mut Pinned::slot(slot), start, side, &walk.shape, packed, item);
            }
            State::Swapped { block, .. } => {
                write_rows(&mut Pinned::swapped(block), start, side, &walk.shape, packed, item);
            }
            State::Host(bytes) => {
                write_rows(&mut bytes[..], start, side, &walk.shape, packed, item);
            }
        }
        Ok(())
    }

    fn scatter_on_device(&mut self, walk: &Walk, packed: &[u8]) -> Result<(), TensorError> {
        let (side, item) = (&walk.target, self.target.item());
        let storage = self.target.storage;
        let State::Device { block } = &*storage.state() else {
            unreachable!("the caller saw a block")
        };
        let span_bytes = side.span(&walk.shape) * item;
        let place = self.memory.pool.address(*block).offset((side.start * item) as u64);
        let uses = self.memory.pool.uses(*block).clone();
        order(self.memory, self.stream, &uses, Site::CopyInAfterRelease)?;
        let stages = self.stages.as_mut().expect("taken for a side on the device");
        let slot = stages.next(self.memory, Site::HostAfterUse)?;
        let (start, size_bytes) = (stages.slot(slot).start(), span_bytes as u64);
        if packed.len() < span_bytes {
            let copy = Copy::DeviceToHost { source: place, target: start, size_bytes };
            // SAFETY: uses of block and slot were waited for, and `copied` is noted for both.
            unsafe { submit_copy(&self.memory.streams, copy, self.stream) }?;
            let copied = submitted(self.memory, self.stream);
            self.memory.pool.note_use(*block, copied);
            stages.note(slot, copied);
            self.memory.streams.wait_host(&Uses::of(copied), Site::HostAfterUse)?;
        }
        let mut pinned = Pinned::slot(stages.slot(slot));
        write_rows(&mut pinned, 0, side, &walk.shape, packed, item);
        let copy = Copy::HostToDevice { source: start, target: place, size_bytes };
        // SAFETY: uses of block and slot were waited for, and `copied` is noted for both.
        unsafe { submit_copy(&self.memory.streams, copy, self.stream) }?;
        let copied = submitted(self.memory, self.stream);
        self.memory.pool.note_use(*block, copied);
        stages.note(slot, copied);
        Ok(())
    }

    fn finish(self) {
        if let Some(stages) = self.stages {
            stages.give_back(self.memory);
        }
    }
}

/// The elements of a box, packed.
fn read_rows(
    bytes: &(impl HostBytes + ?Sized),
    start: usize,
    side: &Side,
    shape: &[usize],
    item: usize,
) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let row_bytes = shape.last().copied().unwrap_or(1) * item;
    let step = side.row_stride() * item;
    let mut packed = vec![0; count * item];
    let mut rows = packed.chunks_exact_mut(row_bytes);
    side.rows(shape, |at| {
        let row = rows.next().expect("as many rows as were counted");
        let from = start + at * item;
        if step == item {
            bytes.read(from, row);
        } else {
            for (index, element) in row.chunks_exact_mut(item).enumerate() {
                bytes.read(from + index * step, element);
            }
        }
    });
    packed
}

/// Puts packed elements into a box.
fn write_rows(
    bytes: &mut (impl HostBytes + ?Sized),
    start: usize,
    side: &Side,
    shape: &[usize],
    packed: &[u8],
    item: usize,
) {
    let row_bytes = shape.last().copied().unwrap_or(1) * item;
    let step = side.row_stride() * item;
    let mut rows = packed.chunks_exact(row_bytes);
    side.rows(shape, |at| {
        let row = rows.next().expect("as many rows as were counted");
        let to = start + at * item;
        if step == item {
            bytes.write(to, row);
        } else {
            for (index, element) in row.chunks_exact(item).enumerate() {
                bytes.write(to + index * step, element);
            }
        }
    });
}
