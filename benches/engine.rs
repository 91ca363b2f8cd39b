//! The engine's hot paths: what each operator of a training step pays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adaptive::devices::{HostConfig, HostDriver};
use adaptive::{AccessMode, ArenaConfig, BlockId, Compute, Config, Engine, OpName, PoolConfig};
use benches::time_in_batches;
use criterion::{Criterion, criterion_group, criterion_main};

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 64 << 10;
const LIVE_BLOCKS: usize = 10_000;
const OP: OpName = OpName::new("op");

fn engine() -> Engine {
    let device = HostDriver::new(HostConfig::threads(4096 * MIB)).expect("the host has memory");
    let config = Config {
        pool: PoolConfig {
            limit_bytes: 4096 * MIB,
            swap_threshold_bytes: BLOCK_BYTES,
            segment_bytes: MIB,
        },
        arena: ArenaConfig { region_bytes: MIB, ..ArenaConfig::new(64 * MIB) },
        compute: Compute::Own,
        record: false,
    };
    let device: Arc<HostDriver> = device;
    Engine::new(device, config).expect("the settings are good")
}

fn blocks(engine: &Engine, count: usize) -> Vec<BlockId> {
    let allocate = |_| engine.allocate(BLOCK_BYTES, "").expect("they fit");
    (0..count).map(allocate).collect()
}

fn resident_touch(bench: &mut Criterion) {
    let engine = engine();
    let blocks = blocks(&engine, 64);
    let mut ops = engine.op_stack();
    bench.bench_function("resident_touch", |bencher| {
        bencher.iter_custom(|touches| {
            time_in_batches(touches, 64, |batch| {
                ops.begin(OP).expect("the engine works");
                let start = now();
                for &block in &blocks[..batch] {
                    ops.touch(block, AccessMode::Read).expect("it is resident");
                }
                let elapsed = start.elapsed();
                ops.end().expect("the engine works");
                elapsed
            })
        });
    });
}

fn op_with_three_touches(bench: &mut Criterion) {
    let engine = engine();
    let blocks = blocks(&engine, 3);
    let mut ops = engine.op_stack();
    bench.bench_function("op_with_three_touches", |bencher| {
        bencher.iter(|| {
            ops.begin(OP).expect("the engine works");
            ops.touch(blocks[0], AccessMode::Read).expect("it is resident");
            ops.touch(blocks[1], AccessMode::Read).expect("it is resident");
            ops.touch(blocks[2], AccessMode::Write).expect("it is resident");
            ops.end().expect("the engine works");
        });
    });
}

fn cached_allocate_free(bench: &mut Criterion) {
    let engine = engine();
    let _live = blocks(&engine, LIVE_BLOCKS);
    let warm = blocks(&engine, 1);
    engine.free(warm[0]).expect("it is live");
    let mut ops = engine.op_stack();
    // A step is a few thousand allocations long; its record of them starts anew with the next.
    bench.bench_function("cached_allocate_free", |bencher| {
        bencher.iter_custom(|allocations| {
            time_in_batches(allocations, 4096, |batch| {
                ops.begin(OP).expect("the engine works");
                ops.end().expect("the engine works");
                let start = now();
                for _ in 0..batch {
                    let block = engine.allocate(BLOCK_BYTES, "").expect("one is cached");
                    engine.free(block).expect("it is live");
                }
                let elapsed = start.elapsed();
                engine.end_step().expect("the engine works");
                elapsed
            })
        });
    });
}

#[allow(clippy::disallowed_methods)] // A benchmark measures time.
fn now() -> Instant {
    Instant::now()
}

fn configured() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30)
}

criterion_group! {
    name = hot_paths;
    config = configured();
    targets = resident_touch, op_with_three_touches, cached_allocate_free
}
criterion_main!(hot_paths);
