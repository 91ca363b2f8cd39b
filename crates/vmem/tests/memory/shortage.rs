//! What the pool does when the driver has less than the cap, or fails while it gives back.

use std::sync::Arc;

use vmem::devices::{FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{
    ArenaConfig, BlockId, DeviceMemory, ErrorKind, MemoryError, PoolConfig, StreamId, Uses,
};

const UNIT: u64 = 64 << 10;

struct Bench {
    host: Arc<HostDriver>,
    fault: Arc<FaultDriver>,
    memory: DeviceMemory,
    stream: StreamId,
}

impl Bench {
    /// A device that may have less memory than the cap allows.
    fn new(device_units: u64, limit_units: u64) -> Bench {
        let host = HostDriver::new(HostConfig::by_time(device_units * UNIT)).expect("opens");
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let pool = PoolConfig {
            limit_bytes: limit_units * UNIT,
            swap_threshold_bytes: UNIT,
            segment_bytes: UNIT,
        };
        let mut memory =
            DeviceMemory::new(fault.clone(), pool, ArenaConfig::new(0)).expect("opens");
        let stream = memory.streams.create().expect("a stream");
        Bench { host, fault, memory, stream }
    }

    fn allocate(&mut self, units: u64) -> Result<BlockId, MemoryError> {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.allocate(streams, units * UNIT, self.stream)
    }

    fn close(self) {
        let Bench { host, memory, .. } = self;
        drop(memory);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

#[test]
fn cached_chunks_go_back_when_the_device_has_less_than_the_cap() {
    let mut bench = Bench::new(4, 16);
    for units in [1, 1, 2] {
        let block = bench.allocate(units).expect("the device has it");
        bench.memory.pool.free(block);
    }
    assert_eq!(bench.memory.pool.stats().cached_bytes, 3 * UNIT);
    let whole = bench.allocate(4).expect("all of the device");
    assert_eq!(bench.memory.pool.stats().cached_bytes, 0);
    assert_eq!(bench.host.ledger().chunk_bytes, 4 * UNIT);
    let error = bench.allocate(1).expect_err("the device is full");
    assert!(
        matches!(error, MemoryError::DeviceFull { missing_bytes: UNIT, .. }),
        "as if the cap were: {error:?}"
    );
    bench.memory.pool.free(whole);
    bench.close();
}

#[test]
fn a_chunk_that_could_not_be_given_back_is_mapped_again_where_it_was_unmapped() {
    let mut bench = Bench::new(4, 4);
    let first = bench.allocate(1).expect("room");
    bench.memory.pool.detach(first, Uses::default());
    // The same chunk, at other addresses; those of the first block show it still.
    let second = bench.allocate(1).expect("room");
    bench.memory.pool.free(second);
    bench.fault.arm(FaultPlan::once(2, ErrorKind::Failed).only("unmap"));
    let DeviceMemory { pool, streams, .. } = &mut bench.memory;
    pool.trim(streams).expect_err("the second address stays");
    assert_eq!(bench.fault.injected(), 1);
    let before = bench.host.ledger();
    assert_eq!((before.chunk_count, before.mapping_count), (1, 2), "home and the first block");
    let third = bench.allocate(1).expect("the cached chunk");
    assert_eq!(bench.host.ledger().mapping_count, 3, "the block's address shows it");
    assert_ne!(bench.memory.pool.address(first), bench.memory.pool.address(third));
    bench.close();
}

#[test]
fn a_poll_maps_a_block_that_came_back_while_it_still_showed_its_former_chunk() {
    let mut bench = Bench::new(4, 2);
    let block = bench.allocate(1).expect("room");
    let departure = bench.memory.pool.detach(block, Uses::default());
    let other = bench.allocate(1).expect("the chunk");
    assert!(!bench.memory.pool.retake(block, departure), "it has another owner");
    let DeviceMemory { pool, streams, .. } = &mut bench.memory;
    pool.attach(streams, block).expect("room");
    assert_eq!(pool.mapped_address(block), None);
    pool.poll(streams).expect("polls");
    assert_eq!(pool.mapped_address(block), Some(pool.address(block)));
    bench.memory.pool.free(other);
    bench.close();
}
