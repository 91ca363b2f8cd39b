//! Mapping on another thread: it happens ahead of need, and its failures are found by the call
//! that needs the memory.

use std::sync::Arc;
use std::thread;

use vmem::{
    ArenaConfig, DeviceMemory, ErrorKind, FaultDriver, FaultPlan, HostConfig, HostDriver,
    MemoryError, PoolConfig, StreamId, Uses,
};

const BLOCK: u64 = 64 << 10;

struct Bench {
    host: Arc<HostDriver>,
    fault: Arc<FaultDriver>,
    memory: DeviceMemory,
    stream: StreamId,
}

impl Bench {
    fn new() -> Bench {
        let settings = HostConfig { map_waits_for_copies: true, ..HostConfig::threads(4 * BLOCK) };
        let host = HostDriver::new(settings).expect("opens");
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let pool =
            PoolConfig { limit_bytes: BLOCK, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK };
        let mut memory =
            DeviceMemory::new(fault.clone(), pool, ArenaConfig::new(0)).expect("opens");
        let stream = memory.streams.create().expect("a stream");
        Bench { host, fault, memory, stream }
    }

    fn allocate(&mut self) -> Result<vmem::BlockId, MemoryError> {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.allocate(streams, BLOCK, self.stream)
    }

    /// Polls until a driver call was made so often; nobody but the other thread makes it.
    fn wait_for_calls(&mut self, name: &str, count: u64) {
        for _ in 0..5_000_000_u64 {
            if self.calls(name) == count {
                return;
            }
            self.poll();
            thread::yield_now();
        }
        panic!("the other thread made {} calls of {name}, not {count}", self.calls(name));
    }

    fn calls(&self, name: &str) -> u64 {
        self.fault.calls_by_name().get(name).copied().unwrap_or(0)
    }

    fn poll(&mut self) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.poll(streams).expect("polls");
    }

    fn close(self) {
        let Bench { host, memory, .. } = self;
        drop(memory);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

#[test]
fn a_chunk_that_was_given_away_is_mapped_before_the_next_allocation_asks() {
    let mut bench = Bench::new();
    let first = bench.allocate().expect("room");
    bench.memory.pool.detach(first, Uses::default());
    // Nobody expected this allocation; from now on they are expected.
    let second = bench.allocate().expect("the same chunk");
    // At home, and at both blocks' addresses.
    assert_eq!(bench.calls("map"), 3);
    bench.memory.pool.detach(second, Uses::default());
    bench.wait_for_calls("set_access", 4);
    let third = bench.allocate().expect("the same chunk");
    assert_eq!(bench.calls("map"), 4, "no call was needed");
    let addresses = [first, second, third].map(|block| bench.memory.pool.address(block));
    assert!(addresses[0] != addresses[1] && addresses[1] != addresses[2], "{addresses:?}");
    bench.close();
}

#[test]
fn a_block_on_its_way_back_is_mapped_before_it_is_touched() {
    let mut bench = Bench::new();
    let block = bench.allocate().expect("room");
    let departure = bench.memory.pool.detach(block, Uses::default());
    let other = bench.allocate().expect("the chunk");
    assert!(!bench.memory.pool.retake(block, departure), "it has another owner");
    bench.wait_for_calls("unmap", 1);
    bench.memory.pool.free(other);
    let DeviceMemory { pool, streams, .. } = &mut bench.memory;
    pool.attach(streams, block).expect("room");
    pool.poll_block(streams, block).expect("asks for it");
    assert!(pool.mapped_address(block).is_none(), "not yet");
    bench.wait_for_calls("set_access", 4);
    let DeviceMemory { pool, streams, .. } = &mut bench.memory;
    pool.map_block(streams, block).expect("is mapped");
    assert_eq!(pool.mapped_address(block), Some(pool.address(block)));
    assert_eq!(bench.calls("map"), 4, "no other call was needed");
    bench.close();
}

#[test]
fn a_failure_of_the_other_thread_is_found_by_the_call_that_needs_the_memory() {
    for (name, lasting) in
        [("map", false), ("map", true), ("set_access", false), ("set_access", true)]
    {
        let mut bench = Bench::new();
        let before = bench.allocate().expect("room");
        bench.memory.pool.detach(before, Uses::default());
        let first = bench.allocate().expect("the chunk");
        let plan = match lasting {
            true => FaultPlan::for_good(1, ErrorKind::Failed),
            false => FaultPlan::once(1, ErrorKind::Failed),
        };
        bench.fault.arm(plan.only(name));
        let departure = bench.memory.pool.detach(first, Uses::default());
        for _ in 0..5_000_000_u64 {
            if bench.fault.injected() > 0 {
                break;
            }
            thread::yield_now();
        }
        assert!(bench.fault.injected() > 0, "the other thread calls {name}");
        match bench.allocate() {
            // The thread that needs it tried again.
            Ok(second) => {
                assert!(!lasting);
                bench.memory.pool.free(second);
            }
            Err(error) => {
                assert!(lasting && matches!(error, MemoryError::Driver(_)), "{error}");
                assert!(bench.memory.pool.retake(first, departure), "nothing was taken");
            }
        }
        bench.fault.disarm();
        bench.close();
    }
}
