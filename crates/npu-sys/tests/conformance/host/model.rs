//! Random programs against models, where the host driver's ledger and seeds say more.

use std::cell::Cell;
use std::collections::BTreeMap;

use npu_sys::devices::{HostConfig, HostDriver};
use npu_sys::{ChunkHandle, DevicePtr, ErrorKind, HostPtr, VaRange};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{CAPACITY, HostRig, UNIT};
use crate::contract::programs::{STREAM_COUNT, in_sequence, run, runner, step};

#[test]
fn the_waits_of_a_program_matter() {
    let differing = Cell::new(0);
    let program = vec((step(), 0..STREAM_COUNT), 1..60);
    runner(150)
        .run(&(program, any::<u64>()), |(program, seed)| {
            let driver = HostDriver::new(HostConfig::lockstep(CAPACITY, seed)).unwrap();
            let rig = HostRig::new(&driver);
            let expect = in_sequence(&rig, &program);
            prop_assert_eq!(&run(&rig, &program, true).0, &expect);
            // Without the waits the seeded device finds a wrong result soon. It runs on one
            // thread, so even the wrong order is not a data race.
            differing.set(differing.get() + u64::from(run(&rig, &program, false).0 != expect));
            Ok(())
        })
        .unwrap();
    assert!(differing.get() > 20, "only {} programs needed their waits", differing.get());
}

// --- Memory: random calls, right and wrong, against a table of what should be there. ---

#[derive(Clone, Copy, Debug)]
enum Call {
    Create(u64),
    Release(usize),
    Reserve(u64),
    FreeRange(usize),
    /// Maps a chunk into a range, so many units from its start.
    Map(usize, usize, u64),
    Unmap(usize),
    Pin(u64),
    FreePinned(usize),
}

fn call() -> impl Strategy<Value = Call> {
    // Few sizes and few of each kind, so that many calls are right.
    let index = || 0..7_usize;
    let size = || prop_oneof![4 => 1..4_u64, 1 => 10..40_u64];
    prop_oneof![
        3 => size().prop_map(Call::Create),
        1 => index().prop_map(Call::Release),
        3 => size().prop_map(Call::Reserve),
        1 => index().prop_map(Call::FreeRange),
        5 => (index(), index(), 0..2_u64)
            .prop_map(|(range, chunk, at)| Call::Map(range, chunk, at)),
        1 => index().prop_map(Call::Unmap),
        1 => (1..9_u64).prop_map(Call::Pin),
        1 => index().prop_map(Call::FreePinned),
    ]
}

/// What should be there.
#[derive(Default)]
struct Table {
    chunks: BTreeMap<u64, u64>,
    ranges: Vec<VaRange>,
    mappings: Vec<(VaRange, u64)>,
    pinned: Vec<(HostPtr, u64)>,
    succeeded: u64,
    refused: u64,
    out_of_memory: u64,
}

/// Checks a result against what was due, and passes on the value of a success.
fn judge<T>(
    table: &mut Table,
    result: Result<T, npu_sys::DriverError>,
    due: Result<(), ErrorKind>,
) -> Option<T> {
    match &due {
        Ok(()) => table.succeeded += 1,
        Err(ErrorKind::OutOfMemory) => table.out_of_memory += 1,
        Err(_) => table.refused += 1,
    }
    assert_eq!(result.as_ref().map(drop).map_err(|error| error.kind), due);
    result.ok()
}

const HOST_LIMIT: u64 = 16 * UNIT;

fn due(valid: bool) -> Result<(), ErrorKind> {
    if valid { Ok(()) } else { Err(ErrorKind::Invalid) }
}

fn touches(a: VaRange, b: VaRange) -> bool {
    a.start < b.end() && b.start < a.end()
}

fn apply(rig: &HostRig<'_>, table: &mut Table, call: Call) {
    let nth_chunk = |table: &Table, n: usize| match table.chunks.iter().nth(n) {
        Some((&handle, &size_bytes)) => (handle, size_bytes),
        None => (1_000_000, 0),
    };
    let nowhere = VaRange { start: DevicePtr(UNIT), size_bytes: UNIT };
    match call {
        Call::Create(units) => {
            let held: u64 = table.chunks.values().sum();
            let fits = held + units * UNIT <= CAPACITY;
            let due = if fits { Ok(()) } else { Err(ErrorKind::OutOfMemory) };
            let chunk = judge(table, rig.driver.create_chunk(units * UNIT), due);
            table.chunks.extend(chunk.map(|chunk| (chunk.0, units * UNIT)));
        }
        Call::Release(n) => {
            let (chunk, size_bytes) = nth_chunk(table, n);
            let mapped = table.mappings.iter().any(|mapping| mapping.1 == chunk);
            let result = rig.driver.release_chunk(ChunkHandle(chunk));
            if judge(table, result, due(size_bytes > 0 && !mapped)).is_some() {
                table.chunks.remove(&chunk);
            }
        }
        Call::Reserve(units) => {
            let range = judge(table, rig.driver.reserve(units * UNIT), Ok(())).unwrap();
            assert!(range.start.0.is_multiple_of(UNIT));
            assert!(table.ranges.iter().all(|&other| !touches(range, other)));
            table.ranges.push(range);
        }
        Call::FreeRange(n) => {
            let range = table.ranges.get(n).copied().unwrap_or(nowhere);
            let mapped = table.mappings.iter().any(|&(mapping, _)| touches(mapping, range));
            let valid = n < table.ranges.len() && !mapped;
            if judge(table, rig.driver.free_range(range), due(valid)).is_some() {
                table.ranges.remove(n);
            }
        }
        Call::Map(n, chunk, at) => {
            let (chunk, size_bytes) = nth_chunk(table, chunk);
            let range = table.ranges.get(n).copied().unwrap_or(nowhere);
            let part = VaRange { start: range.start.offset(at * UNIT), size_bytes };
            // It may lie behind its range, in a neighbour: what counts is that one holds it all.
            let holds = |range: &VaRange| range.start <= part.start && part.end() <= range.end();
            let inside = table.ranges.iter().any(holds);
            let taken = table.mappings.iter().any(|&(mapping, _)| touches(mapping, part));
            let valid = size_bytes > 0 && inside && !taken;
            let result = rig.driver.map(part, ChunkHandle(chunk));
            if judge(table, result, due(valid)).is_some() {
                rig.driver.set_access(part).unwrap();
                table.mappings.push((part, chunk));
            }
        }
        Call::Unmap(n) => {
            let range = table.mappings.get(n).map_or(nowhere, |mapping| mapping.0);
            if judge(table, rig.unmap(range), due(n < table.mappings.len())).is_some() {
                table.mappings.remove(n);
            }
        }
        Call::Pin(units) => {
            let held: u64 = table.pinned.iter().map(|pinned| pinned.1).sum();
            let fits = held + units * UNIT <= HOST_LIMIT;
            let due = if fits { Ok(()) } else { Err(ErrorKind::OutOfMemory) };
            let start = judge(table, rig.driver.allocate_pinned(units * UNIT), due);
            table.pinned.extend(start.map(|start| (start, units * UNIT)));
        }
        Call::FreePinned(n) => {
            let start = table.pinned.get(n).map_or(HostPtr(UNIT), |pinned| pinned.0);
            if judge(table, rig.free_pinned(start), due(n < table.pinned.len())).is_some() {
                table.pinned.remove(n);
            }
        }
    }
}

fn compare(rig: &HostRig<'_>, table: &Table) {
    let ledger = rig.host.ledger();
    assert_eq!(ledger.chunk_count, table.chunks.len() as u64);
    assert_eq!(ledger.chunk_bytes, table.chunks.values().sum::<u64>());
    assert_eq!(ledger.mapping_count, table.mappings.len() as u64);
    assert_eq!(ledger.mapped_bytes, table.mappings.iter().map(|m| m.0.size_bytes).sum::<u64>());
    assert_eq!(ledger.range_count, table.ranges.len() as u64);
    assert_eq!(ledger.reserved_bytes, table.ranges.iter().map(|r| r.size_bytes).sum::<u64>());
    assert_eq!(ledger.pinned_bytes, table.pinned.iter().map(|pinned| pinned.1).sum::<u64>());
    assert!(ledger.chunk_bytes <= ledger.chunk_bytes_peak && ledger.chunk_bytes_peak <= CAPACITY);
    let info = rig.driver.memory_info().unwrap();
    assert_eq!(info.free_bytes, CAPACITY - ledger.chunk_bytes);
}

/// Every chunk holds its own number, and shows it at each of its addresses.
fn check_bytes(rig: &HostRig<'_>, table: &mut Table) {
    // Makes room for the pinned memory that looking takes.
    table.pinned.drain(..).for_each(|(start, _)| rig.free_pinned(start).unwrap());
    let stream = rig.stream();
    for &(range, chunk) in &table.mappings {
        rig.fill(range.start, range.size_bytes, chunk as u8, stream).unwrap();
    }
    rig.driver.synchronize_stream(stream).unwrap();
    rig.destroy([stream], []);
    for &(range, chunk) in &table.mappings {
        assert_eq!(rig.device_bytes(range.start, 8), [chunk as u8; 8]);
        let last = range.start.offset(range.size_bytes - 8);
        assert_eq!(rig.device_bytes(last, 8), [chunk as u8; 8]);
    }
}

#[test]
fn random_memory_calls_do_what_a_table_says() {
    let totals = Cell::new((0, 0, 0, 0));
    let mut runner = runner(200);
    runner
        .run(&(vec(call(), 1..80), any::<u64>()), |(calls, seed)| {
            let host_limit_bytes = Some(HOST_LIMIT);
            let config = HostConfig { host_limit_bytes, ..HostConfig::lockstep(CAPACITY, seed) };
            let driver = HostDriver::new(config).unwrap();
            let rig = HostRig::new(&driver);
            let mut table = Table::default();
            for &call in &calls {
                apply(&rig, &mut table, call);
                compare(&rig, &table);
            }
            check_bytes(&rig, &mut table);
            let (succeeded, refused, out_of_memory, mapped) = totals.get();
            totals.set((
                succeeded + table.succeeded,
                refused + table.refused,
                out_of_memory + table.out_of_memory,
                mapped + table.mappings.len(),
            ));
            Ok(())
        })
        .unwrap();
    let (succeeded, refused, out_of_memory, mapped) = totals.get();
    println!("{succeeded} done, {refused} refused, {out_of_memory} out of memory, {mapped} mapped");
    assert!(succeeded > 1000 && refused > 500 && out_of_memory > 50 && mapped > 50);
}
