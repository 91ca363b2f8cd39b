//! What swapping asks of a device, tried one step after the other on the device itself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use npu_sys::devices::{MeterDriver, pattern_word};
use npu_sys::{
    ChunkHandle, Copy, Driver, DriverError, HostFunction, HostMapping, HostPtr, StreamHandle,
    VaRange,
};

use super::{Bench, Lane, Taken, mean_us};

/// Copies to the host that are under way while memory is mapped.
const COPIES_BESIDE: u32 = 16;
const FILLED_BYTE: u8 = 0xa5;

/// One step of [`check_device`].
#[derive(Clone, PartialEq, Debug)]
pub struct CheckedStep {
    /// What has to hold, in words.
    pub name: &'static str,
    /// What was seen, which may be nothing to tell, or what went wrong.
    pub outcome: Result<String, String>,
}

/// Why a step failed.
struct Fault(String);

impl From<DriverError> for Fault {
    fn from(error: DriverError) -> Fault {
        Fault(error.to_string())
    }
}

impl From<fmt::Arguments<'_>> for Fault {
    fn from(text: fmt::Arguments<'_>) -> Fault {
        Fault(text.to_string())
    }
}

type Step = fn(&mut Bench, u64) -> Result<String, Fault>;

const STEPS: [(&str, Step); 9] = [
    ("copies bring back what they took", copies),
    ("two addresses show one chunk", two_addresses),
    ("an address shows the chunk that is put behind it", another_chunk),
    ("a stream waits for an event of another", events),
    ("events tell the device's time", times),
    ("fills set each byte", fills),
    ("host functions run in stream order", host_functions),
    ("the device addresses host memory", host_memory),
    ("memory is mapped while copies run", mapping_beside_copies),
];

/// Tries what swapping asks of a device with virtual memory, and says how each step went.
///
/// `piece_bytes` is a multiple of the granularity. It takes three times that much device memory
/// and pinned memory while it runs, and gives all of it back after each step.
pub fn check_device(driver: &Arc<dyn Driver>, piece_bytes: u64) -> Vec<CheckedStep> {
    let run = |&(name, step): &(&'static str, Step)| {
        let mut bench = Bench::new(Arc::clone(driver));
        let seen = step(&mut bench, piece_bytes);
        let outcome = seen.and_then(|seen| Ok(bench.close().map(|()| seen)?));
        CheckedStep { name, outcome: outcome.map_err(|Fault(text)| text) }
    };
    STEPS.iter().map(run).collect()
}

/// A stream, and pinned memory for what is sent and what comes back.
struct Ends {
    stream: StreamHandle,
    sent: HostPtr,
    received: HostPtr,
    size_bytes: u64,
}

impl Ends {
    fn new(bench: &mut Bench, size_bytes: u64) -> Result<Ends, DriverError> {
        let (sent, received) = (bench.pinned(size_bytes)?, bench.pinned(size_bytes)?);
        Ok(Ends { stream: bench.stream()?, sent, received, size_bytes })
    }

    /// Writes the pattern of `seed` behind a range, on a stream.
    fn send(
        &self,
        bench: &Bench,
        target: VaRange,
        seed: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        for (index, word) in (0..).zip(words(self.sent, self.size_bytes)) {
            *word = pattern_word(seed, index);
        }
        let (source, size_bytes) = (self.sent, self.size_bytes);
        let copy = Copy::HostToDevice { source, target: target.start, size_bytes };
        // SAFETY: the memory lives until `close`, which waits for the streams; each step orders
        // its own copies.
        unsafe { bench.driver.copy(copy, stream) }
    }

    /// Compares what is behind a range with the pattern of `seed`, once `stream` is done.
    fn expect(
        &self,
        bench: &Bench,
        source: VaRange,
        seed: u64,
        stream: StreamHandle,
    ) -> Result<(), Fault> {
        self.compare(bench, source, stream, |at| pattern_word(seed, at))
    }

    /// Checks that each byte behind a range is `FILLED_BYTE`, once the stream is done.
    fn expect_filled(&self, bench: &Bench, source: VaRange) -> Result<(), Fault> {
        self.compare(bench, source, self.stream, |_| u64::from_ne_bytes([FILLED_BYTE; 8]))
    }

    /// Copies what is behind a range to the host, waits for it, and compares it.
    fn compare(
        &self,
        bench: &Bench,
        source: VaRange,
        stream: StreamHandle,
        due: impl Fn(u64) -> u64,
    ) -> Result<(), Fault> {
        words(self.received, self.size_bytes).fill(0);
        let (target, size_bytes) = (self.received, self.size_bytes);
        let copy = Copy::DeviceToHost { source: source.start, target, size_bytes };
        // SAFETY: as in `send`.
        unsafe { bench.driver.copy(copy, stream) }?;
        bench.driver.synchronize_stream(stream)?;
        let received = words(self.received, self.size_bytes);
        match (0..).zip(received).filter(|(at, word)| **word != due(*at)).count() {
            0 => Ok(()),
            wrong => Err(format_args!("{wrong} of {} words differ", self.size_bytes / 8).into()),
        }
    }
}

/// Pinned memory of a bench, whose streams are idle or do not use it.
fn words<'a>(start: HostPtr, size_bytes: u64) -> &'a mut [u64] {
    let address = usize::try_from(start.0).expect("host addresses fit");
    let count = usize::try_from(size_bytes / 8).expect("it was allocated");
    // SAFETY: page aligned, so long, and the bench's own until `close`; a step uses one such slice
    // of it at a time, and no copy meanwhile.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), count) }
}

impl Bench {
    fn chunk(&mut self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        let chunk = self.driver.create_chunk(size_bytes)?;
        self.taken.push(Taken::Chunk(chunk));
        Ok(chunk)
    }

    fn range(&mut self, size_bytes: u64) -> Result<VaRange, DriverError> {
        let range = self.driver.reserve(size_bytes)?;
        self.taken.push(Taken::Range(range));
        Ok(range)
    }

    fn map(&mut self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.driver.map(range, chunk)?;
        self.taken.push(Taken::Mapping(range));
        self.driver.set_access(range)
    }

    /// Takes away what was mapped last. Work that uses it is complete.
    fn unmap_last(&mut self) -> Result<(), DriverError> {
        let Some(&Taken::Mapping(range)) = self.taken.last() else {
            unreachable!("a step unmaps what it has just mapped")
        };
        // SAFETY: the step has waited for the stream of its copies.
        unsafe { self.driver.unmap(range) }?;
        self.taken.pop();
        Ok(())
    }
}

fn copies(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let range = bench.memory(size_bytes)?;
    let ends = Ends::new(bench, size_bytes)?;
    ends.send(bench, range, 1, ends.stream)?;
    ends.expect(bench, range, 1, ends.stream)?;
    Ok(String::new())
}

fn two_addresses(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let ends = Ends::new(bench, size_bytes)?;
    let (first, second) = (bench.range(size_bytes)?, bench.range(size_bytes)?);
    let chunk = bench.chunk(size_bytes)?;
    bench.map(first, chunk)?;
    bench.map(second, chunk)?;
    ends.send(bench, first, 2, ends.stream)?;
    ends.expect(bench, second, 2, ends.stream)?;
    Ok(String::new())
}

fn another_chunk(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let ends = Ends::new(bench, size_bytes)?;
    let range = bench.range(size_bytes)?;
    let chunks = [bench.chunk(size_bytes)?, bench.chunk(size_bytes)?];
    for (seed, chunk) in (3..).zip(chunks) {
        bench.map(range, chunk)?;
        ends.send(bench, range, seed, ends.stream)?;
        ends.expect(bench, range, seed, ends.stream)?;
        bench.unmap_last()?;
    }
    for (seed, chunk) in (3..).zip(chunks) {
        bench.map(range, chunk)?;
        ends.expect(bench, range, seed, ends.stream)?;
        bench.unmap_last()?;
    }
    Ok(String::new())
}

fn events(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let range = bench.memory(size_bytes)?;
    let ends = Ends::new(bench, size_bytes)?;
    let (other, event) = (bench.stream()?, bench.event()?);
    ends.send(bench, range, 5, ends.stream)?;
    bench.driver.record_event(event, ends.stream)?;
    bench.driver.wait_event(other, event)?;
    ends.expect(bench, range, 5, other)?;
    Ok(String::new())
}

fn times(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let lane = Lane::new(bench, size_bytes, true)?;
    let us = bench.time(&[&lane], 1)?;
    match us > 0.0 {
        true => Ok(format!("a copy took {us:.0} us")),
        false => Err(format_args!("a copy took {us} us").into()),
    }
}

fn fills(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let range = bench.memory(size_bytes)?;
    let ends = Ends::new(bench, size_bytes)?;
    // SAFETY: as in `Ends::send`.
    unsafe { bench.driver.fill(range.start, size_bytes, FILLED_BYTE, ends.stream) }?;
    ends.expect_filled(bench, range)?;
    Ok(String::new())
}

fn host_functions(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let range = bench.memory(size_bytes)?;
    let ends = Ends::new(bench, size_bytes)?;
    let seen = Arc::new(AtomicU64::new(0));
    ends.send(bench, range, 6, ends.stream)?;
    let (told, received) = (Arc::clone(&seen), ends.received);
    words(received, size_bytes).fill(0);
    let target = received;
    let copy = Copy::DeviceToHost { source: range.start, target, size_bytes };
    // SAFETY: as in `Ends::send`.
    unsafe { bench.driver.copy(copy, ends.stream) }?;
    let body = move |_: &npu_sys::Operands<'_>| {
        told.store(words(received, size_bytes)[0], Ordering::Release);
    };
    let body = Box::new(body);
    let function = HostFunction { name: "look", accesses: Vec::new(), cost_us: 1.0, body };
    // SAFETY: it declares no access, and what it reads lives until `close`.
    unsafe { bench.driver.launch_host(function, ends.stream) }?;
    bench.driver.synchronize_stream(ends.stream)?;
    match seen.load(Ordering::Acquire) == pattern_word(6, 0) {
        true => Ok(String::new()),
        false => Err(format_args!("it ran before the copy in front of it").into()),
    }
}

fn host_memory(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let for_whom = match bench.driver.properties().host_mapping {
        HostMapping::Nothing => return Ok("not here, so there is no swapped memory".to_owned()),
        HostMapping::Kernels => "for kernels alone, so PyTorch has no swapped memory",
        HostMapping::AllocatedForAll | HostMapping::AllForAll => "for kernels and copies",
    };
    let (start, range) = (bench.pinned(size_bytes)?, bench.memory(size_bytes)?);
    let ends = Ends::new(bench, size_bytes)?;
    let target = bench.driver.device_pointer(start)?;
    let mapped = VaRange { start: target, size_bytes };
    ends.send(bench, mapped, 7, ends.stream)?;
    ends.expect(bench, mapped, 7, ends.stream)?;
    ends.send(bench, range, 8, ends.stream)?;
    let copy = Copy::DeviceToDevice { source: range.start, target, size_bytes };
    // SAFETY: as in `Ends::send`.
    unsafe { bench.driver.copy(copy, ends.stream) }?;
    ends.expect(bench, mapped, 8, ends.stream)?;
    // SAFETY: as in `Ends::send`.
    unsafe { bench.driver.fill(target, size_bytes, FILLED_BYTE, ends.stream) }?;
    ends.expect_filled(bench, mapped)?;
    let whose = if target.0 == start.0 { "the host's own" } else { "another" };
    Ok(format!("at {whose} address, {for_whom}"))
}

fn mapping_beside_copies(bench: &mut Bench, size_bytes: u64) -> Result<String, Fault> {
    let lane = Lane::new(bench, size_bytes, true)?;
    let ended = bench.event()?;
    let meter = Arc::new(MeterDriver::new(Arc::clone(&bench.driver)));
    let tell = |are_copying: bool| {
        for _ in 0..if are_copying { COPIES_BESIDE } else { 0 } {
            // SAFETY: as in `Ends::send`.
            unsafe { bench.driver.copy(lane.copy, lane.stream) }?;
        }
        bench.driver.record_event(ended, lane.stream)?;
        meter.clear();
        let mut beside = Bench::new(meter.clone());
        beside.memory(size_bytes)?;
        beside.close()?;
        let costs = meter.costs();
        let calls = ["map", "set_access", "unmap"].map(|name| mean_us(&costs, name));
        let has_waited = are_copying && bench.driver.query_event(ended)?;
        bench.driver.synchronize_stream(lane.stream)?;
        Ok::<_, Fault>((calls.iter().sum::<f64>(), has_waited))
    };
    // The first pays for what the driver sets up once.
    tell(false)?;
    let ((alone_us, _), (beside_us, has_waited)) = (tell(false)?, tell(true)?);
    let end = if has_waited { ", which had ended by then" } else { "" };
    Ok(format!(
        "map, set access and unmap: {alone_us:.0} us alone, {beside_us:.0} us beside \
         {COPIES_BESIDE} copies{end}"
    ))
}

#[cfg(test)]
mod tests {
    use npu_sys::devices::{HostConfig, HostDriver};

    use super::*;

    const SIZE_BYTES: u64 = 1 << 20;

    #[test]
    fn wrong_bytes_are_told() {
        let driver = HostDriver::new(HostConfig::threads(SIZE_BYTES)).expect("a device");
        let mut bench = Bench::new(driver);
        let range = bench.memory(SIZE_BYTES).expect("memory");
        let ends = Ends::new(&mut bench, SIZE_BYTES).expect("a stream");
        ends.send(&bench, range, 1, ends.stream).expect("it is sent");
        assert!(ends.expect(&bench, range, 1, ends.stream).is_ok());
        let told = ends.expect(&bench, range, 2, ends.stream).expect_err("another pattern").0;
        assert_eq!(told, format!("{0} of {0} words differ", SIZE_BYTES / 8));
    }
}
