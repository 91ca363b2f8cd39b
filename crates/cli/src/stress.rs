//! The command `stress`: more data than fits is moved out and in through the engine, and each
//! word is compared after each round trip. It shows what swapping does on a device.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use adaptive::devices::{HostConfig, HostDriver, MeterDriver};
use adaptive::{
    ArenaConfig, BlockId, Bytes, Compute, Config, Driver, Engine, OpStack, Orders, Plan,
    PoolConfig, StepReport,
};
use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::StressArgs;
use crate::open::Accelerator;
use crate::train::say;

mod pattern;
mod plan;
mod report;

use pattern::{Patterns, Use};
use report::{Phase, Pinned, Stress};

/// Fewer blocks than this leave no room for some to come while others are in use.
const FITS_MIN: u64 = 4;
/// A block comes at most so many ops ahead of its use: more would not hide more.
const AHEAD_MAX: u64 = 16;

/// Runs the command. Exit code 1 says that a word was wrong, or that memory was held above the
/// cap.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &StressArgs) -> anyhow::Result<ExitCode> {
    let accelerator = Accelerator::open(args.device)?;
    let stress = examine(args, accelerator.as_ref())?;
    let text = if args.json { report::json(&stress)? + "\n" } else { report::table(&stress) };
    say(&text)?;
    if let Some(fault) = stress.fault() {
        eprintln!("error: {fault}");
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves the data on an open device, or on the software one.
///
/// # Errors
/// As for [`run`].
pub(crate) fn examine(
    args: &StressArgs,
    accelerator: Option<&Accelerator>,
) -> anyhow::Result<Stress> {
    let driver: Arc<dyn Driver> = match accelerator {
        Some(accelerator) => accelerator.driver(),
        None => HostDriver::new(HostConfig::threads(args.memory))?,
    };
    let sizes = Sizes::new(args, &*driver)?;
    Rig::open(driver, accelerator, sizes)?.run(args)
}

/// What is moved, in bytes and blocks.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    block_bytes: u64,
    /// Blocks in all.
    count: u64,
    /// Blocks that the first pass leaves on the device: as many as the cap has room for beside
    /// those that come ahead of their use.
    first: u64,
    /// Ops by which a block comes ahead of its use.
    ahead: u64,
    limit_bytes: u64,
}

impl Sizes {
    fn new(args: &StressArgs, driver: &dyn Driver) -> anyhow::Result<Sizes> {
        let properties = driver.properties();
        if !properties.has_virtual_memory {
            bail!(
                "{} (driver {}) cannot move memory under an address, so nothing can be swapped \
                 there: update its driver",
                properties.name,
                properties.driver_version
            );
        }
        let unit = properties.granularity_bytes;
        let block_bytes = args.block.next_multiple_of(unit);
        let (count, fits) = (args.data / block_bytes, args.memory / block_bytes);
        if fits < FITS_MIN {
            bail!(
                "--memory {} has no room for {FITS_MIN} blocks of {}: make --memory larger or \
                 --block smaller",
                Bytes(args.memory),
                Bytes(block_bytes)
            );
        }
        if count <= fits {
            bail!(
                "--data {} fits into --memory {}, so nothing would move: make --data larger",
                Bytes(args.data),
                Bytes(args.memory)
            );
        }
        let info = driver.memory_info()?;
        if args.memory > info.free_bytes {
            bail!(
                "--memory {} is more than the {} that are free on {}",
                Bytes(args.memory),
                Bytes(info.free_bytes),
                properties.name
            );
        }
        let ahead = (fits / 4).min(AHEAD_MAX);
        let first = fits - ahead - 2;
        Ok(Sizes { block_bytes, count, first, ahead, limit_bytes: args.memory })
    }

    fn data_bytes(self) -> u64 {
        self.count * self.block_bytes
    }
}

/// A device with blocks whose bytes are known.
#[derive(Debug)]
struct Rig {
    driver: Arc<dyn Driver>,
    meter: Arc<MeterDriver>,
    patterns: Patterns,
    engine: Engine,
    ops: OpStack,
    sizes: Sizes,
    blocks: Vec<BlockId>,
    /// Free bytes of the device before the engine took any.
    free_before_bytes: u64,
    pinned: Pinned,
    phases: Vec<Phase>,
}

impl Rig {
    fn open(
        driver: Arc<dyn Driver>,
        accelerator: Option<&Accelerator>,
        sizes: Sizes,
    ) -> anyhow::Result<Rig> {
        let meter = Arc::new(MeterDriver::new(Arc::clone(&driver)));
        let patterns = Patterns::new(Arc::clone(&driver), accelerator, sizes.block_bytes)
            .context("cannot make patterns on the device")?;
        let config = Config {
            pool: PoolConfig {
                limit_bytes: sizes.limit_bytes,
                swap_threshold_bytes: sizes.block_bytes,
                segment_bytes: sizes.block_bytes,
            },
            // Blocks that came back keep their host copy, so all of them may be there at once.
            arena: ArenaConfig::new(sizes.data_bytes()),
            compute: Compute::Own,
            record: false,
        };
        let free_before_bytes = driver.memory_info()?.free_bytes;
        let engine = Engine::new(meter.clone(), config)?;
        let ops = engine.op_stack();
        let start = now();
        engine.reserve_host(sizes.data_bytes()).context("cannot pin host memory for --data")?;
        let ready_us = micros(start);
        let pinned = Pinned { asked_bytes: sizes.data_bytes(), held_bytes: 0, ready_us };
        Ok(Rig {
            driver,
            meter,
            patterns,
            engine,
            ops,
            sizes,
            blocks: Vec::new(),
            free_before_bytes,
            pinned,
            phases: Vec::new(),
        })
    }

    fn run(mut self, args: &StressArgs) -> anyhow::Result<Stress> {
        let Sizes { count, first, ahead, .. } = self.sizes;
        let total = count + count * (3 + args.rounds);
        let style = ProgressStyle::with_template("{prefix:<22} [{bar:24}] {pos}/{len} blocks")
            .expect("the template is well formed");
        let bar = ProgressBar::new(total).with_style(style);
        let whole = plan::pass(self.sizes.block_bytes, count, ahead);
        let write = |index| Use::Write(seed(index, 0));
        let check = |index| Use::Check(seed(index, 0));
        self.phase("fill", &bar, 0..first, None, &write)?;
        let growing = plan::growing(self.sizes.block_bytes, first, count);
        self.phase("out", &bar, first..count, Some(&growing), &write)?;
        self.phase("check", &bar, 0..count, Some(&whole), &check)?;
        self.phase("in", &bar, 0..count, Some(&whole), &check)?;
        for round in 1..=args.rounds {
            let rewrite = |index| Use::Rewrite(seed(index, round - 1), seed(index, round));
            let name = if round == args.rounds { "out and in" } else { "rewrite" };
            self.phase(name, &bar, 0..count, Some(&whole), &rewrite)?;
        }
        let check = |index| Use::Check(seed(index, args.rounds));
        self.phase("check again", &bar, 0..count, Some(&whole), &check)?;
        bar.finish_and_clear();
        self.finish()
    }

    /// Runs one op on each block of `range` under a plan, allocating those that do not exist, and
    /// waits.
    fn phase(
        &mut self,
        name: &'static str,
        bar: &ProgressBar,
        range: std::ops::Range<u64>,
        plan: Option<&Plan>,
        used: &dyn Fn(u64) -> Use,
    ) -> anyhow::Result<()> {
        bar.set_prefix(name);
        let orders = plan.map(|plan| Arc::new(Orders::new(plan)));
        self.engine.set_orders(false, orders)?;
        self.meter.clear();
        let start = now();
        let op_count = range.end - range.start;
        for index in range {
            let at = usize::try_from(index).expect("blocks are few");
            if self.blocks.len() == at {
                self.blocks.push(self.engine.allocate(self.sizes.block_bytes, "block")?);
            }
            self.patterns.run(&mut self.ops, self.blocks[at], used(index))?;
            bar.inc(1);
        }
        let submit_us = micros(start);
        let mut reports = self.engine.end_step()?;
        reports.extend(self.engine.drain_reports()?);
        let wall_us = micros(start);
        let (costs, costs_elsewhere) = (self.meter.costs(), self.meter.costs_of_others());
        let free_bytes = self.driver.memory_info()?.free_bytes;
        let Some(StepReport { counters, device_us, held_bytes_peak, .. }) = reports.pop() else {
            bail!("the engine did not report");
        };
        self.phases.push(Phase {
            name,
            op_count,
            counters,
            device_us,
            wall_us,
            submit_us,
            held_bytes_peak,
            taken_bytes: self.free_before_bytes.saturating_sub(free_bytes),
            mismatches: self.patterns.mismatches(),
            costs,
            costs_elsewhere,
        });
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<Stress> {
        self.pinned.held_bytes = self.engine.host_stats()?.pinned_bytes.peak;
        let Rig { driver, patterns, engine, ops, sizes, pinned, phases, .. } = self;
        drop(ops);
        drop(engine);
        patterns.close()?;
        let properties = driver.properties();
        Ok(Stress {
            device: properties.name,
            driver_version: properties.driver_version,
            data_bytes: sizes.data_bytes(),
            block_bytes: sizes.block_bytes,
            block_count: sizes.count,
            limit_bytes: sizes.limit_bytes,
            pinned,
            phases,
        })
    }
}

/// A pattern of its own for each block and round.
fn seed(block: u64, round: u64) -> u64 {
    round << 32 | (block + 1)
}

#[allow(clippy::disallowed_methods)] // How long things take is what the command shows.
fn now() -> Instant {
    Instant::now()
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}
