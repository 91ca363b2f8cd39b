//! The rules of device memory, one at a time.

use super::*;

const UNIT: u64 = 1 << 21;
const CODE: i64 = 77;

type Table = DeviceTable<&'static str, char, u8>;

fn table() -> Table {
    Table::new(Rules { granularity_bytes: UNIT, invalid_code: CODE })
}

fn range(start: u64, units: u64) -> VaRange {
    VaRange { start: DevicePtr(start * UNIT), size_bytes: units * UNIT }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, DriverError>, call: &str, text: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind, error.code, error.call), (ErrorKind::Invalid, CODE, call));
    assert!(error.text.contains(text), "{error} lacks '{text}'");
}

/// A range of four units from the tenth on, and a chunk of two.
fn range_and_chunk() -> (Table, ChunkHandle) {
    let mut table = table();
    table.reserved(range(10, 4), "range");
    let chunk = table.created(2 * UNIT, 'a');
    (table, chunk)
}

fn map(table: &mut Table, range: VaRange, chunk: ChunkHandle) {
    table.check_map(range, chunk).unwrap();
    table.mapped(range, chunk, 0);
}

#[test]
fn sizes_are_positive_multiples_of_the_granularity() {
    let (table, chunk) = range_and_chunk();
    let why = "is not a positive multiple of 2097152";
    for size_bytes in [0, 1, UNIT - 1, UNIT + 1] {
        refused(table.rules.check_size("reserve", size_bytes), "reserve", why);
        let range = VaRange { size_bytes, ..range(10, 1) };
        refused(table.check_map(range, chunk), "map", why);
        refused(table.check_access(range), "set_access", why);
    }
    table.rules.check_size("reserve", 3 * UNIT).unwrap();
}

#[test]
fn a_range_is_freed_whole_and_once() {
    let (mut table, _) = range_and_chunk();
    for wrong in [range(10, 3), range(11, 3), range(9, 4)] {
        refused(table.check_free_range(wrong), "free_range", "was not reserved");
    }
    table.check_free_range(range(10, 4)).unwrap();
    assert_eq!(table.freed(range(10, 4)), "range");
    refused(table.check_free_range(range(10, 4)), "free_range", "was not reserved");
}

#[test]
fn a_range_stays_while_anything_is_mapped_in_it() {
    let (mut table, chunk) = range_and_chunk();
    map(&mut table, range(12, 2), chunk);
    refused(table.check_free_range(range(10, 4)), "free_range", "device:0x1800000 is mapped");
    table.unmapped(range(12, 2));
    table.check_free_range(range(10, 4)).unwrap();
}

#[test]
fn a_chunk_is_released_once_and_its_number_never_returns() {
    let (mut table, chunk) = range_and_chunk();
    refused(table.check_release(ChunkHandle(999)), "release_chunk", "does not exist");
    assert_eq!(table.check_release(chunk).unwrap().held, 'a');
    assert_eq!(table.released(chunk).size_bytes, 2 * UNIT);
    refused(table.check_release(chunk), "release_chunk", "does not exist");
    refused(table.check_map(range(10, 2), chunk), "map", "does not exist");
    assert_ne!(table.created(2 * UNIT, 'b'), chunk);
}

#[test]
fn a_chunk_that_could_not_be_released_is_there_again() {
    let (mut table, chunk) = range_and_chunk();
    let taken = table.released(chunk);
    refused(table.check_map(range(10, 2), chunk), "map", "does not exist");
    table.kept(chunk, taken);
    assert_eq!(table.check_map(range(10, 2), chunk), Ok(&'a'));
}

#[test]
fn a_chunk_stays_while_it_is_mapped_anywhere() {
    let (mut table, chunk) = range_and_chunk();
    map(&mut table, range(10, 2), chunk);
    map(&mut table, range(12, 2), chunk);
    refused(table.check_release(chunk), "release_chunk", "is mapped at 2 addresses");
    table.unmapped(range(10, 2));
    refused(table.check_release(chunk), "release_chunk", "is mapped at 1 addresses");
    table.unmapped(range(12, 2));
    table.check_release(chunk).unwrap();
}

#[test]
fn a_mapping_is_aligned_inside_one_range_and_as_long_as_its_chunk() {
    let (mut table, chunk) = range_and_chunk();
    table.reserved(range(14, 4), "neighbour");
    let mut shifted = range(10, 2);
    shifted.start.0 += 1;
    refused(table.check_map(shifted, chunk), "map", "is not aligned");
    for outside in [range(9, 2), range(13, 2), range(18, 2), range(0, 2)] {
        refused(table.check_map(outside, chunk), "map", "is not in a reserved range");
    }
    let endless = VaRange { start: DevicePtr(u64::MAX - UNIT + 1), size_bytes: 2 * UNIT };
    refused(table.check_map(endless, chunk), "map", "is not in a reserved range");
    refused(table.check_map(range(10, 1), chunk), "map", "has 4194304 bytes, the range 2097152");
    assert_eq!(table.check_map(range(10, 2), chunk), Ok(&'a'));
    assert_eq!(table.check_map(range(12, 2), chunk), Ok(&'a'));
}

#[test]
fn addresses_are_mapped_once() {
    let (mut table, chunk) = range_and_chunk();
    map(&mut table, range(11, 2), chunk);
    let other = table.created(UNIT, 'b');
    for taken in [range(10, 2), range(11, 2), range(12, 2)] {
        refused(table.check_map(taken, chunk), "map", "device:0x1600000 is mapped already");
    }
    refused(table.check_map(range(12, 1), other), "map", "is mapped already");
    table.check_map(range(10, 1), other).unwrap();
    table.check_map(range(13, 1), other).unwrap();
}

#[test]
fn access_is_to_whole_mappings_without_a_gap() {
    let (mut table, chunk) = range_and_chunk();
    let other = table.created(UNIT, 'b');
    map(&mut table, range(11, 2), chunk);
    map(&mut table, range(10, 1), other);
    for whole in [range(10, 3), range(11, 2), range(10, 1)] {
        table.check_access(whole).unwrap();
    }
    for part in [range(10, 2), range(12, 1), range(10, 4), range(13, 1)] {
        refused(table.check_access(part), "set_access", "is not whole mappings");
    }
    refused(table.check_access(range(13, 2)), "set_access", "is not in a reserved range");
}

#[test]
fn a_mapping_is_taken_away_whole_and_once() {
    let (mut table, chunk) = range_and_chunk();
    map(&mut table, range(10, 2), chunk);
    map(&mut table, range(12, 2), chunk);
    for part in [range(10, 1), range(11, 1), range(10, 4), range(20, 2)] {
        refused(table.check_unmap(part), "unmap", "is not one whole mapping");
    }
    assert_eq!(table.check_unmap(range(12, 2)).unwrap().chunk, chunk);
    table.unmapped(range(12, 2));
    refused(table.check_unmap(range(12, 2)), "unmap", "is not one whole mapping");
    table.check_map(range(12, 2), chunk).unwrap();
}

#[test]
fn memory_with_its_address_is_freed_by_its_start() {
    let mut table = table();
    table.allocations.insert(7 * UNIT, 2 * UNIT, ());
    assert_eq!(table.check_free_device(DevicePtr(7 * UNIT)), Ok(2 * UNIT));
    let inside = table.check_free_device(DevicePtr(8 * UNIT));
    refused(inside, "free_device", "was not allocated");
}
