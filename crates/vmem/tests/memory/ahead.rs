//! Mapping on another thread: it happens ahead of need, and its failures are found by the call
//! that needs the memory.

use std::sync::Arc;
use std::thread;

use vmem::devices::{FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{ArenaConfig, DeviceMemory, ErrorKind, MemoryError, PoolConfig, StreamId, Uses};

const BLOCK: u64 = 64 << 10;

struct Bench {
    host: Arc<HostDriver>,
    fault: Arc<FaultDriver>,
    /// Behind the other, for a second fault.
    second: Arc<FaultDriver>,
    memory: DeviceMemory,
    stream: StreamId,
}

impl Bench {
    fn new() -> Bench {
        let settings = HostConfig { map_waits_for_copies: true, ..HostConfig::threads(4 * BLOCK) };
        let host = HostDriver::new(settings).expect("opens");
        let second = Arc::new(FaultDriver::new(host.clone()));
        let fault = Arc::new(FaultDriver::new(second.clone()));
        let pool =
            PoolConfig { limit_bytes: BLOCK, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK };
        let mut memory =
            DeviceMemory::new(fault.clone(), pool, ArenaConfig::new(0)).expect("opens");
        let stream = memory.streams.create().expect("a stream");
        Bench { host, fault, second, memory, stream }
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

    /// A block whose chunk will be mapped ahead of need when it is given away.
    fn expected(&mut self) -> vmem::BlockId {
        let before = self.allocate().expect("room");
        self.memory.pool.detach(before, Uses::default());
        self.allocate().expect("the chunk")
    }

    fn wait_for_fault(fault: &FaultDriver) {
        for _ in 0..5_000_000_u64 {
            if fault.injected() > 0 {
                return;
            }
            thread::yield_now();
        }
        panic!("the other thread makes no such call");
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
        let first = bench.expected();
        let plan = match lasting {
            true => FaultPlan::for_good(1, ErrorKind::Failed),
            false => FaultPlan::once(1, ErrorKind::Failed),
        };
        bench.fault.arm(plan.only(name));
        let departure = bench.memory.pool.detach(first, Uses::default());
        Bench::wait_for_fault(&bench.fault);
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

#[test]
fn addresses_that_the_other_thread_left_half_mapped_are_not_given_to_a_block() {
    let mut bench = Bench::new();
    let first = bench.expected();
    bench.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("set_access"));
    bench.second.arm(FaultPlan::once(1, ErrorKind::Failed).only("unmap"));
    bench.memory.pool.detach(first, Uses::default());
    Bench::wait_for_fault(&bench.second);
    let second = bench.allocate().expect("other addresses");
    assert_ne!(bench.memory.pool.address(first), bench.memory.pool.address(second));
    bench.close();
}

#[test]
fn addresses_that_the_other_thread_could_not_map_are_given_back() {
    let mut bench = Bench::new();
    let first = bench.expected();
    bench.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("map"));
    let departure = bench.memory.pool.detach(first, Uses::default());
    Bench::wait_for_fault(&bench.fault);
    assert!(bench.memory.pool.retake(first, departure), "nobody had it");
    // Until the failure is known.
    for _ in 0..10_000 {
        bench.poll();
        thread::yield_now();
    }
    bench.close();
}

#[test]
fn the_other_thread_is_gone_when_its_pool_is() {
    for _ in 0..200 {
        let mut bench = Bench::new();
        let first = bench.expected();
        bench.memory.pool.detach(first, Uses::default());
        let Bench { host, memory, fault, second, .. } = bench;
        drop(memory);
        assert_eq!(Arc::strong_count(&fault), 1);
        drop((fault, second));
        assert_eq!(Arc::strong_count(&host), 1);
    }
}
