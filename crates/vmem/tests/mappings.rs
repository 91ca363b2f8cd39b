//! More blocks than a process may have mappings: an error, and all of them can be given back.
//!
//! In a process of its own, which has few mappings to spare meanwhile.

use vmem::devices::{HostConfig, HostDriver};
use vmem::{ArenaConfig, BlockId, DeviceMemory, MemoryError, PoolConfig};

const UNIT: u64 = 4096;

/// Where a system allows more mappings than these blocks take, there is room for all.
const BLOCKS: usize = 60_000;

#[test]
fn blocks_beyond_the_mappings_of_a_process_are_refused_and_the_others_can_be_freed() {
    let settings = HostConfig { granularity_bytes: UNIT, ..HostConfig::by_time(1 << 32) };
    let host = HostDriver::new(settings).expect("opens");
    let pool = PoolConfig { limit_bytes: 1 << 32, swap_threshold_bytes: UNIT, segment_bytes: UNIT };
    let mut memory = DeviceMemory::new(host.clone(), pool, ArenaConfig::new(0)).expect("opens");
    let stream = memory.streams.create().expect("a stream");
    for _ in 0..2 {
        let mut blocks: Vec<BlockId> = Vec::new();
        while blocks.len() < BLOCKS {
            match memory.pool.allocate(&mut memory.streams, UNIT, stream) {
                Ok(block) => blocks.push(block),
                Err(MemoryError::DeviceFull { .. }) => break,
                Err(MemoryError::Driver(error)) => {
                    assert!(error.text.contains("vm.max_map_count"), "{error}");
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        println!("{} blocks", blocks.len());
        assert!(blocks.len() > 10_000);
        // Every second one first, so that many have no free neighbour.
        let (even, odd): (Vec<_>, Vec<_>) =
            blocks.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        even.into_iter().chain(odd).for_each(|(_, block)| memory.pool.free(block));
        memory.pool.trim(&mut memory.streams).expect("gives back");
        assert_eq!(host.ledger().chunk_count, 0);
    }
    memory.close().expect("closes");
    drop(memory);
    assert!(host.ledger().is_empty(), "{:?}", host.ledger());
}
