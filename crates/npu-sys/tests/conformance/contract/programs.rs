//! Random programs against models that are too simple to be wrong.

use std::cell::Cell;

use npu_sys::{
    AccessMode, ChunkHandle, Copy, DevicePtr, EventHandle, EventKind, HostMapping, HostPtr,
    StreamHandle, VaRange,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::drivers::{on_all_drivers, with_virtual_memory};
use crate::rig::{Buffer, Rig};

// --- Streams: a random program with just the waits that it needs ends as if run in sequence. ---

const BUFFER_COUNT: usize = 4;
pub(crate) const STREAM_COUNT: usize = 3;
const SIZE: u64 = 64;

/// The same cases in each run.
pub(crate) fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

/// One step of a program. Buffers `0..2` are device memory, the others pinned memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Fill {
        target: usize,
        value: u8,
    },
    Copy {
        source: usize,
        target: usize,
    },
    /// The target becomes three times itself plus the source. Only where the host can address
    /// the device; a copy elsewhere.
    Mix {
        source: usize,
        target: usize,
    },
}

impl Step {
    fn source(self) -> Option<usize> {
        match self {
            Step::Fill { .. } => None,
            Step::Copy { source, .. } | Step::Mix { source, .. } => Some(source),
        }
    }

    fn target(self) -> usize {
        match self {
            Step::Fill { target, .. } | Step::Copy { target, .. } | Step::Mix { target, .. } => {
                target
            }
        }
    }

    /// What the step is on a driver: what it lacks for it is left out.
    fn on(self, rig: &Rig<'_>) -> Step {
        let reaches =
            |buffer: usize| buffer < 2 || rig.properties.host_mapping != HostMapping::Nothing;
        match self {
            Step::Copy { source, target } | Step::Mix { source, target }
                if source >= 2 && !reaches(target) =>
            {
                Step::Fill { target: target - 2, value: source as u8 }
            }
            Step::Mix { source, target }
                if !rig.properties.is_host_addressable || !reaches(source) || !reaches(target) =>
            {
                Step::Copy { source, target }
            }
            step => step,
        }
    }

    fn apply(self, memory: &mut [Vec<u8>; BUFFER_COUNT]) {
        match self {
            Step::Fill { target, value } => memory[target].fill(value),
            Step::Copy { source, target } => memory[target] = memory[source].clone(),
            Step::Mix { source, target } => {
                let source = memory[source].clone();
                mix(&mut memory[target], &source);
            }
        }
    }
}

fn mix(target: &mut [u8], source: &[u8]) {
    for (target, source) in target.iter_mut().zip(source) {
        *target = target.wrapping_mul(3).wrapping_add(*source);
    }
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let two =
        || (0..BUFFER_COUNT, 1..BUFFER_COUNT).prop_map(|(a, by)| (a, (a + by) % BUFFER_COUNT));
    prop_oneof![
        (0..2_usize, any::<u8>()).prop_map(|(target, value)| Step::Fill { target, value }),
        two().prop_map(|(source, target)| Step::Copy { source, target }),
        two().prop_map(|(source, target)| Step::Mix { source, target }),
    ]
}

/// Which accesses of a buffer later ones must come after.
#[derive(Default)]
struct Uses {
    written: Option<(usize, EventHandle)>,
    read: Vec<(usize, EventHandle)>,
}

struct Run<'a> {
    rig: &'a Rig<'a>,
    device: [Buffer; 2],
    host: [HostPtr; 2],
    streams: [StreamHandle; STREAM_COUNT],
    uses: [Uses; BUFFER_COUNT],
    events: Vec<EventHandle>,
    with_waits: bool,
    wait_count: u64,
}

impl Run<'_> {
    fn address(&self, buffer: usize) -> DevicePtr {
        match buffer {
            0 | 1 => self.device[buffer].start(),
            _ => self.rig.driver.device_pointer(self.host[buffer - 2]).unwrap(),
        }
    }

    fn submit(&mut self, step: Step, stream: usize) {
        let mut after = Vec::new();
        after.extend(step.source().and_then(|source| self.uses[source].written));
        after.extend(self.uses[step.target()].written);
        after.extend(&self.uses[step.target()].read);
        for (other, event) in after {
            if other != stream && self.with_waits {
                self.rig.driver.wait_event(self.streams[stream], event).unwrap();
                self.wait_count += 1;
            }
        }
        self.launch(step, self.streams[stream]);
        let event = self.rig.recorded(EventKind::Order, self.streams[stream]);
        self.events.push(event);
        let target = &mut self.uses[step.target()];
        *target = Uses { written: Some((stream, event)), read: vec![] };
        if let Some(source) = step.source() {
            self.uses[source].read.push((stream, event));
        }
    }

    fn launch(&self, step: Step, stream: StreamHandle) {
        match step {
            Step::Fill { target, value } => {
                self.rig.fill(self.address(target), SIZE, value, stream).unwrap();
            }
            Step::Copy { source: from, target: to } => {
                let size_bytes = SIZE;
                let copy = match (from < 2, to < 2) {
                    (true, false) => {
                        let (source, target) = (self.address(from), self.host[to - 2]);
                        Copy::DeviceToHost { source, target, size_bytes }
                    }
                    (false, true) => {
                        let (source, target) = (self.host[from - 2], self.address(to));
                        Copy::HostToDevice { source, target, size_bytes }
                    }
                    _ => {
                        let (source, target) = (self.address(from), self.address(to));
                        Copy::DeviceToDevice { source, target, size_bytes }
                    }
                };
                self.rig.copy(copy, stream).unwrap();
            }
            Step::Mix { source, target } => {
                let access = |start, mode| npu_sys::Access { start, size_bytes: SIZE, mode };
                let accesses = vec![
                    access(self.address(target), AccessMode::ReadWrite),
                    access(self.address(source), AccessMode::Read),
                ];
                self.rig.run(stream, accesses, 3.0, |operands| {
                    mix(operands.write(0), operands.read(1));
                });
            }
        }
    }
}

/// Runs a program and returns the final memory and the number of waits between streams.
pub(crate) fn run(
    rig: &Rig<'_>,
    program: &[(Step, usize)],
    with_waits: bool,
) -> (Vec<Vec<u8>>, u64) {
    let mut run = Run {
        device: [rig.buffer(rig.unit), rig.buffer(rig.unit)],
        host: [rig.pinned(&[0; SIZE as usize]), rig.pinned(&[0; SIZE as usize])],
        streams: [rig.stream(), rig.stream(), rig.stream()],
        uses: Default::default(),
        events: vec![],
        with_waits,
        wait_count: 0,
        rig,
    };
    for buffer in run.device {
        rig.fill(buffer.start(), SIZE, 0, run.streams[0]).unwrap();
    }
    rig.driver.synchronize_stream(run.streams[0]).unwrap();
    for &(step, stream) in program {
        run.submit(step.on(rig), stream);
    }
    rig.synchronize(run.streams);
    let mut memory: Vec<_> =
        run.device.iter().map(|buffer| rig.device_bytes(buffer.start(), SIZE)).collect();
    memory.extend(run.host.iter().map(|&start| rig.host_bytes(start, SIZE)));
    run.device.iter().for_each(|&buffer| rig.drop_buffer(buffer));
    run.host.iter().for_each(|&start| rig.free_pinned(start).unwrap());
    rig.destroy(run.streams, run.events.iter().copied());
    (memory, run.wait_count)
}

/// What a program leaves in memory.
pub(crate) fn in_sequence(rig: &Rig<'_>, program: &[(Step, usize)]) -> Vec<Vec<u8>> {
    let mut memory: [Vec<u8>; BUFFER_COUNT] = std::array::from_fn(|_| vec![0; SIZE as usize]);
    for (step, _) in program {
        step.on(rig).apply(&mut memory);
    }
    memory.to_vec()
}

#[test]
fn ordered_programs_end_as_if_run_in_sequence() {
    on_all_drivers(|rig| {
        let wait_count = Cell::new(0);
        let result = runner(30).run(&vec((step(), 0..STREAM_COUNT), 1..60), |program| {
            let (memory, waits) = run(rig, &program, true);
            prop_assert_eq!(memory, in_sequence(rig, &program));
            wait_count.set(wait_count.get() + waits);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", rig.properties.name);
        }
        assert!(wait_count.get() > 200, "only {} waits", wait_count.get());
    });
}

// --- Memory: wherever a chunk is mapped, it keeps its bytes and all its addresses show them. ---

#[derive(Clone, Copy, Debug)]
enum Call {
    Create(u64),
    Release(usize),
    Reserve(u64),
    FreeRange(usize),
    /// Maps a chunk into a range, so many units from its start.
    Map(usize, usize, u64),
    Unmap(usize),
    /// Writes a value through a mapping.
    Fill(usize, u8),
}

fn call() -> impl Strategy<Value = Call> {
    let index = || 0..16_usize;
    prop_oneof![
        3 => (1..4_u64).prop_map(Call::Create),
        1 => index().prop_map(Call::Release),
        3 => (1..6_u64).prop_map(Call::Reserve),
        1 => index().prop_map(Call::FreeRange),
        6 => (index(), index(), 0..3_u64)
            .prop_map(|(range, chunk, at)| Call::Map(range, chunk, at)),
        2 => index().prop_map(Call::Unmap),
        5 => (index(), any::<u8>()).prop_map(|(mapping, value)| Call::Fill(mapping, value)),
    ]
}

/// Most units of chunks at once.
const CHUNK_UNITS_MAX: u64 = 24;

#[derive(Clone, Copy)]
struct Chunk {
    handle: ChunkHandle,
    units: u64,
    value: Option<u8>,
}

/// What should be there.
struct Table<'a> {
    rig: &'a Rig<'a>,
    stream: StreamHandle,
    chunks: Vec<Chunk>,
    ranges: Vec<VaRange>,
    mappings: Vec<(VaRange, ChunkHandle)>,
    most_aliases: usize,
}

impl Table<'_> {
    fn is_mapped(&self, range: VaRange) -> bool {
        self.mappings.iter().any(|(at, _)| at.start < range.end() && range.start < at.end())
    }

    /// Makes the call if it is legal now.
    fn apply(&mut self, call: Call) {
        let (driver, unit) = (self.rig.driver, self.rig.unit);
        let pick = |n: usize, len: usize| if len == 0 { None } else { Some(n % len) };
        match call {
            Call::Create(units) => {
                let held: u64 = self.chunks.iter().map(|chunk| chunk.units).sum();
                if held + units <= CHUNK_UNITS_MAX {
                    let handle = driver.create_chunk(units * unit).unwrap();
                    assert!(self.chunks.iter().all(|chunk| chunk.handle != handle));
                    self.chunks.push(Chunk { handle, units, value: None });
                }
            }
            Call::Release(n) => {
                let Some(n) = pick(n, self.chunks.len()) else { return };
                let handle = self.chunks[n].handle;
                if self.mappings.iter().all(|mapping| mapping.1 != handle) {
                    driver.release_chunk(handle).unwrap();
                    self.chunks.remove(n);
                }
            }
            Call::Reserve(units) => {
                let range = driver.reserve(units * unit).unwrap();
                let apart =
                    |other: &VaRange| range.end() <= other.start || other.end() <= range.start;
                assert!(range.start.0.is_multiple_of(unit) && self.ranges.iter().all(apart));
                self.ranges.push(range);
            }
            Call::FreeRange(n) => {
                let Some(n) = pick(n, self.ranges.len()) else { return };
                if !self.is_mapped(self.ranges[n]) {
                    driver.free_range(self.ranges.remove(n)).unwrap();
                }
            }
            Call::Map(range, chunk, at) => {
                let Some(range) = pick(range, self.ranges.len()) else { return };
                let Some(chunk) = pick(chunk, self.chunks.len()) else { return };
                let (range, chunk) = (self.ranges[range], self.chunks[chunk]);
                let start = range.start.offset(at * unit);
                let part = VaRange { start, size_bytes: chunk.units * unit };
                if part.end() <= range.end() && !self.is_mapped(part) {
                    self.rig.map(part, chunk.handle);
                    self.mappings.push((part, chunk.handle));
                }
            }
            Call::Unmap(n) => {
                let Some(n) = pick(n, self.mappings.len()) else { return };
                driver.synchronize_stream(self.stream).unwrap();
                self.rig.unmap(self.mappings.remove(n).0).unwrap();
            }
            Call::Fill(n, value) => {
                let Some(n) = pick(n, self.mappings.len()) else { return };
                let (range, handle) = self.mappings[n];
                self.rig.fill(range.start, range.size_bytes, value, self.stream).unwrap();
                let chunk = self.chunks.iter_mut().find(|chunk| chunk.handle == handle);
                chunk.expect("mapped chunks exist").value = Some(value);
            }
        }
        let handles = self.chunks.iter().map(|chunk| chunk.handle);
        let aliases =
            handles.map(|handle| self.mappings.iter().filter(|it| it.1 == handle).count()).max();
        self.most_aliases = self.most_aliases.max(aliases.unwrap_or(0));
    }

    /// Every mapping shows its chunk's value at both ends. Returns how many were looked at.
    fn look(&self) -> u64 {
        self.rig.driver.synchronize_stream(self.stream).unwrap();
        let mut looked = 0;
        for &(range, handle) in &self.mappings {
            let chunk = self.chunks.iter().find(|chunk| chunk.handle == handle);
            let Some(value) = chunk.expect("mapped chunks exist").value else { continue };
            let last = range.start.offset(range.size_bytes - 8);
            for start in [range.start, last] {
                assert_eq!(self.rig.device_bytes(start, 8), [value; 8]);
            }
            looked += 1;
        }
        looked
    }

    fn give_back(self) {
        self.mappings.iter().for_each(|&(range, _)| self.rig.unmap(range).unwrap());
        self.chunks.iter().for_each(|it| self.rig.driver.release_chunk(it.handle).unwrap());
        self.ranges.iter().for_each(|&range| self.rig.driver.free_range(range).unwrap());
        self.rig.destroy([self.stream], []);
    }
}

#[test]
fn chunks_keep_their_bytes_wherever_they_are_mapped() {
    with_virtual_memory(|rig| {
        let (looked, aliased) = (Cell::new(0), Cell::new(0));
        let result = runner(20).run(&vec(call(), 20..80), |calls| {
            let mut table = Table {
                rig,
                stream: rig.stream(),
                chunks: vec![],
                ranges: vec![],
                mappings: vec![],
                most_aliases: 0,
            };
            calls.into_iter().for_each(|call| table.apply(call));
            looked.set(looked.get() + table.look());
            aliased.set(aliased.get() + u64::from(table.most_aliases > 1));
            table.give_back();
            Ok(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", rig.properties.name);
        }
        let (looked, aliased) = (looked.get(), aliased.get());
        assert!(looked > 20 && aliased > 5, "{looked} looked at, {aliased} with aliases");
    });
}
