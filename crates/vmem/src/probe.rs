//! What a device's link and its memory calls cost, measured on the device itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use npu_sys::devices::{CallCost, MeterDriver};
use npu_sys::{Copy, Driver, DriverError, EventHandle, EventKind, HostPtr, StreamHandle, VaRange};

mod checks;

pub use checks::{CheckedStep, check_device};

/// Speeds of the link between device and host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkRates {
    /// Device to host, while nothing comes in.
    pub out_bytes_per_s: f64,
    /// Host to device, while nothing goes out.
    pub in_bytes_per_s: f64,
    /// Each way while both are busy.
    pub both_bytes_per_s: f64,
}

/// Host time of one memory call each, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MapCosts {
    /// Reserving addresses.
    pub reserve_us: f64,
    /// Taking physical memory.
    pub create_us: f64,
    /// Putting it behind an address.
    pub map_us: f64,
    /// Letting the device use it.
    pub set_access_us: f64,
    /// Taking it from behind an address.
    pub unmap_us: f64,
    /// Giving it back.
    pub release_us: f64,
}

/// Times `count` copies of `piece_bytes` each way alone, then both ways at once.
///
/// `piece_bytes` is a multiple of the granularity. It takes twice that much device memory and
/// twice that much pinned memory while it runs.
///
/// # Errors
/// If the driver fails; all it took is given back.
pub fn measure_link(
    driver: &Arc<dyn Driver>,
    piece_bytes: u64,
    count: u32,
) -> Result<LinkRates, DriverError> {
    let mut bench = Bench::new(Arc::clone(driver));
    let out = Lane::new(&mut bench, piece_bytes, true)?;
    let back = Lane::new(&mut bench, piece_bytes, false)?;
    // The first copies bring both engines up to speed.
    bench.time(&[&out, &back], 2)?;
    let rate = |us: f64| f64::from(count) * piece_bytes as f64 / us * 1e6;
    let rates = LinkRates {
        out_bytes_per_s: rate(bench.time(&[&out], count)?),
        in_bytes_per_s: rate(bench.time(&[&back], count)?),
        both_bytes_per_s: rate(bench.time(&[&out, &back], count)?),
    };
    bench.close()?;
    Ok(rates)
}

/// Times the memory calls on chunks of `size_bytes`, a multiple of the granularity: the mean of
/// `count` calls each.
///
/// # Errors
/// If the driver fails; all it took is given back.
pub fn measure_map(
    driver: &Arc<dyn Driver>,
    size_bytes: u64,
    count: u32,
) -> Result<MapCosts, DriverError> {
    let meter = Arc::new(MeterDriver::new(Arc::clone(driver)));
    // The first of each call pays for what the driver sets up once.
    for times in [1, count] {
        meter.clear();
        for _ in 0..times {
            let mut bench = Bench::new(meter.clone());
            bench.memory(size_bytes)?;
            bench.close()?;
        }
    }
    let costs = meter.costs();
    let mean_us = |name| mean_us(&costs, name);
    Ok(MapCosts {
        reserve_us: mean_us("reserve"),
        create_us: mean_us("create_chunk"),
        map_us: mean_us("map"),
        set_access_us: mean_us("set_access"),
        unmap_us: mean_us("unmap"),
        release_us: mean_us("release_chunk"),
    })
}

fn mean_us(costs: &BTreeMap<&'static str, CallCost>, name: &str) -> f64 {
    costs.get(name).map_or(0.0, |cost| cost.total_us / cost.count as f64)
}

/// One direction of the link: its stream, and the copy that it does over and over.
struct Lane {
    stream: StreamHandle,
    copy: Copy,
}

impl Lane {
    fn new(bench: &mut Bench, size_bytes: u64, outward: bool) -> Result<Lane, DriverError> {
        let device = bench.memory(size_bytes)?.start;
        let host = bench.pinned(size_bytes)?;
        let stream = bench.stream()?;
        let copy = if outward {
            Copy::DeviceToHost { source: device, target: host, size_bytes }
        } else {
            Copy::HostToDevice { source: host, target: device, size_bytes }
        };
        Ok(Lane { stream, copy })
    }
}

/// What has to be undone, latest last.
enum Taken {
    Range(VaRange),
    Chunk(npu_sys::ChunkHandle),
    Mapping(VaRange),
    Pinned(HostPtr),
    Stream(StreamHandle),
    Event(EventHandle),
}

/// Takes from the driver and gives all of it back.
struct Bench {
    driver: Arc<dyn Driver>,
    taken: Vec<Taken>,
}

impl Bench {
    fn new(driver: Arc<dyn Driver>) -> Bench {
        Bench { driver, taken: Vec::new() }
    }

    fn memory(&mut self, size_bytes: u64) -> Result<VaRange, DriverError> {
        let range = self.driver.reserve(size_bytes)?;
        self.taken.push(Taken::Range(range));
        let chunk = self.driver.create_chunk(size_bytes)?;
        self.taken.push(Taken::Chunk(chunk));
        self.driver.map(range, chunk)?;
        self.taken.push(Taken::Mapping(range));
        self.driver.set_access(range)?;
        Ok(range)
    }

    fn pinned(&mut self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        let start = self.driver.allocate_pinned(size_bytes)?;
        self.taken.push(Taken::Pinned(start));
        Ok(start)
    }

    fn stream(&mut self) -> Result<StreamHandle, DriverError> {
        let stream = self.driver.create_stream()?;
        self.taken.push(Taken::Stream(stream));
        Ok(stream)
    }

    fn event(&mut self) -> Result<EventHandle, DriverError> {
        let event = self.driver.create_event(EventKind::Timing)?;
        self.taken.push(Taken::Event(event));
        Ok(event)
    }

    /// Device time until all lanes have done their copy `count` times, starting together.
    fn time(&mut self, lanes: &[&Lane], count: u32) -> Result<f64, DriverError> {
        let start = self.event()?;
        let ends = lanes.iter().map(|_| self.event()).collect::<Result<Vec<_>, _>>()?;
        self.driver.record_event(start, lanes[0].stream)?;
        for lane in &lanes[1..] {
            self.driver.wait_event(lane.stream, start)?;
        }
        for _ in 0..count {
            for lane in lanes {
                // SAFETY: each lane has memory of its own, which lives until `close`, and `close`
                // waits for the streams first.
                unsafe { self.driver.copy(lane.copy, lane.stream) }?;
            }
        }
        for (lane, &end) in lanes.iter().zip(&ends) {
            self.driver.record_event(end, lane.stream)?;
        }
        let mut longest_us: f64 = 0.0;
        for &end in &ends {
            self.driver.synchronize_event(end)?;
            longest_us = longest_us.max(self.driver.elapsed_us(start, end)?);
        }
        Ok(longest_us)
    }

    /// Waits for the streams, then gives everything back, latest first.
    fn close(&mut self) -> Result<(), DriverError> {
        for taken in &self.taken {
            if let Taken::Stream(stream) = *taken {
                self.driver.synchronize_stream(stream)?;
            }
        }
        let mut result = Ok(());
        while let Some(taken) = self.taken.pop() {
            let driver = &self.driver;
            let given_back = match taken {
                Taken::Range(range) => driver.free_range(range),
                Taken::Chunk(chunk) => driver.release_chunk(chunk),
                // SAFETY: the streams were waited for above, and nobody else knows the memory.
                Taken::Mapping(range) => unsafe { driver.unmap(range) },
                // SAFETY: as above.
                Taken::Pinned(start) => unsafe { driver.free_pinned(start) },
                Taken::Stream(stream) => driver.destroy_stream(stream),
                Taken::Event(event) => driver.destroy_event(event),
            };
            result = result.and(given_back);
        }
        result
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // After an error: what the driver does not take now is lost to it.
        let _ = self.close();
    }
}
