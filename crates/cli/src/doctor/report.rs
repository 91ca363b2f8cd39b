//! What `doctor` found: as text, and as one JSON object.

use std::fmt::Write as _;

use adaptive::devices::{GroupMemory, HostMemory, LinkRates, MapCosts, OpenError};
use adaptive::{Bytes, DeviceProperties, HostMapping};
use serde::Serialize;

use super::software::Software;
use super::steps::Step;

/// A device that pins less than this cannot hold what training moves.
const LOCK_ENOUGH_BYTES: u64 = 1 << 30;

/// The machine without its devices.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) memory: HostMemory,
    /// NUMA nodes; 0 where the system does not say.
    pub(super) nodes: usize,
    pub(super) cores: usize,
}

/// All findings.
#[derive(Clone, Debug)]
pub(super) struct Report {
    pub(super) software: Software,
    pub(super) machine: Machine,
    pub(super) drivers: Vec<DriverReport>,
    pub(super) is_of_one_device: bool,
}

/// One kind of device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DriverReport {
    name: &'static str,
    /// Whether the driver is there and sees a device.
    ready: bool,
    verdict: String,
    devices: Vec<Device>,
}

/// One device.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Device {
    name: String,
    model: Option<String>,
    driver_version: Option<String>,
    total_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    granularity_bytes: Option<u64>,
    has_virtual_memory: Option<bool>,
    can_map_host: Option<bool>,
    numa_node: Option<u32>,
    pub(super) link: Option<LinkSpeed>,
    pub(super) map_calls: Option<MapCalls>,
    /// What was tried on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<Step>,
    /// Whether training can run on it under a cap.
    ready: bool,
    verdict: String,
}

/// Decimal gigabytes a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LinkSpeed {
    out_gb_per_s: f64,
    in_gb_per_s: f64,
    both_gb_per_s: f64,
}

/// Host time of memory calls, for chunks of one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct MapCalls {
    size_bytes: u64,
    reserve_us: f64,
    create_us: f64,
    map_us: f64,
    set_access_us: f64,
    unmap_us: f64,
    release_us: f64,
}

impl LinkSpeed {
    pub(super) fn new(rates: LinkRates) -> LinkSpeed {
        LinkSpeed {
            out_gb_per_s: rates.out_bytes_per_s / 1e9,
            in_gb_per_s: rates.in_bytes_per_s / 1e9,
            both_gb_per_s: rates.both_bytes_per_s / 1e9,
        }
    }
}

impl MapCalls {
    pub(super) fn new(size_bytes: u64, costs: MapCosts) -> MapCalls {
        let MapCosts { reserve_us, create_us, map_us, set_access_us, unmap_us, release_us } = costs;
        MapCalls { size_bytes, reserve_us, create_us, map_us, set_access_us, unmap_us, release_us }
    }
}

impl DriverReport {
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    pub(super) fn new(name: &'static str, devices: Result<Vec<Device>, OpenError>) -> DriverReport {
        match devices {
            Ok(devices) => {
                let ready = devices.iter().any(|device| device.ready);
                let verdict = match devices.len() {
                    0 => "the driver is there, but it sees no device".to_owned(),
                    1 => "1 device".to_owned(),
                    count => format!("{count} devices"),
                };
                DriverReport { name, ready, verdict, devices }
            }
            Err(error) => {
                let verdict = error.to_string();
                DriverReport { name, ready: false, verdict, devices: Vec::new() }
            }
        }
    }
}

impl Device {
    pub(super) fn new(name: String, properties: &DeviceProperties) -> Device {
        Device {
            name,
            model: Some(properties.name.clone()),
            driver_version: Some(properties.driver_version.clone()),
            total_bytes: Some(properties.total_bytes),
            free_bytes: None,
            granularity_bytes: Some(properties.granularity_bytes),
            has_virtual_memory: Some(properties.has_virtual_memory),
            can_map_host: Some(properties.host_mapping != HostMapping::Nothing),
            numa_node: properties.numa_node,
            link: None,
            map_calls: None,
            steps: Vec::new(),
            ready: false,
            verdict: String::new(),
        }
    }

    /// A device that could not be opened.
    pub(super) fn broken(name: String, verdict: String) -> Device {
        Device {
            name,
            model: None,
            driver_version: None,
            total_bytes: None,
            free_bytes: None,
            granularity_bytes: None,
            has_virtual_memory: None,
            can_map_host: None,
            numa_node: None,
            link: None,
            map_calls: None,
            steps: Vec::new(),
            ready: false,
            verdict,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Adds what was tried. A step that failed makes the device one that cannot be used.
    pub(super) fn note_steps(&mut self, steps: Vec<Step>) {
        let failed = steps.iter().filter(|step| !step.passed).count();
        if failed > 0 {
            self.ready = false;
            self.verdict = format!("not ready: {failed} of {} steps failed", steps.len());
        }
        self.steps = steps;
    }

    /// Says in words what the figures mean. `problem` is what kept the measurement from going on.
    pub(super) fn judge(&mut self, problem: Option<String>) {
        if let Some(problem) = problem {
            self.verdict = problem;
            return;
        }
        self.ready = true;
        let mut verdict = "ready".to_owned();
        if let (Some(link), Some(calls)) = (self.link, self.map_calls) {
            let out_ms = calls.size_bytes as f64 / link.out_gb_per_s / 1e6;
            let back_ms = calls.size_bytes as f64 / link.in_gb_per_s / 1e6;
            let host_us = calls.map_us + calls.set_access_us + calls.unmap_us;
            let _ = write!(
                verdict,
                ": a tensor of {} leaves in {out_ms:.1} ms and comes back in {back_ms:.1} ms, for \
                 {host_us:.0} us of the host's time",
                Bytes(calls.size_bytes)
            );
        }
        if self.can_map_host == Some(false) {
            verdict.push_str("; it cannot address host memory, so no swapped memory");
        }
        self.verdict = verdict;
    }
}

impl Machine {
    /// What the limits on pinned memory mean, in words.
    fn pinned_verdict(&self) -> String {
        let room = match self.memory.room_bytes() {
            Some(bytes) => format!("about {} can be pinned", Bytes(bytes)),
            None => "the system does not say how much can be pinned".to_owned(),
        };
        match self.memory.lock_limit_bytes {
            Some(limit_bytes) if limit_bytes < LOCK_ENOUGH_BYTES => format!(
                "{room}, unless the driver is held to ulimit -l, {}: raise it if pinning fails",
                Bytes(limit_bytes)
            ),
            Some(limit_bytes) => format!("{room}; ulimit -l allows {}", Bytes(limit_bytes)),
            None => format!("{room}; ulimit -l sets no limit"),
        }
    }

    fn group_text(&self) -> String {
        match &self.memory.group {
            Some(GroupMemory { path, limit_bytes, used_bytes, .. }) => format!(
                "{} of {} used, by the limit of {path}",
                Bytes(*used_bytes),
                Bytes(*limit_bytes)
            ),
            None => "no limit".to_owned(),
        }
    }

    fn huge_text(&self) -> String {
        let huge = &self.memory.huge;
        let transparent = huge.transparent.as_deref().unwrap_or("unknown");
        format!(
            "transparent: {transparent}; reserved and free: {}",
            Bytes(huge.reserved_free_bytes)
        )
    }
}

/// The findings as text, ending with a line break.
pub(super) fn text(report: &Report) -> String {
    let machine = &report.machine;
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size);
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<15} {value}");
    };
    for (name, value) in report.software.lines() {
        line(name, &value);
    }
    let memory = &machine.memory;
    let (total, free) = (known(memory.total_bytes), known(memory.available_bytes));
    line("memory", &format!("{total}, {free} available"));
    line("control group", &machine.group_text());
    line("pinned memory", &machine.pinned_verdict());
    line("huge pages", &machine.huge_text());
    let nodes = match machine.nodes {
        0 => "unknown number of NUMA nodes".to_owned(),
        1 => "1 NUMA node".to_owned(),
        count => format!("{count} NUMA nodes"),
    };
    line("processor", &format!("{} cores, {nodes}", machine.cores));
    for driver in &report.drivers {
        let state = if driver.ready { "ready" } else { "not ready" };
        line("", "");
        line(driver.name, &format!("{state}: {}", driver.verdict));
        for device in &driver.devices {
            device_lines(device, &mut line);
        }
    }
    let accelerator = report.drivers.iter().any(|driver| driver.name != "host" && driver.ready);
    if !accelerator && !report.is_of_one_device {
        line("", "");
        let advice = "none that can swap; everything runs on the embedded software device";
        line("accelerator", advice);
    }
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn device_lines(device: &Device, line: &mut impl FnMut(&str, &str)) {
    let yes = |value: Option<bool>| if value == Some(true) { "yes" } else { "no" };
    if let (Some(model), Some(version), Some(total_bytes), Some(unit_bytes)) =
        (&device.model, &device.driver_version, device.total_bytes, device.granularity_bytes)
    {
        let free = device.free_bytes.map_or_else(|| "unknown".to_owned(), size);
        line(
            &format!("  {}", device.name),
            &format!("{model}, driver {version}, {}, {free} free", size(total_bytes)),
        );
        let node = device.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
        line(
            "",
            &format!(
                "virtual memory: {}, in units of {}; maps host memory: {}; NUMA node: {node}",
                yes(device.has_virtual_memory),
                size(unit_bytes),
                yes(device.can_map_host)
            ),
        );
    }
    if let Some(LinkSpeed { out_gb_per_s, in_gb_per_s, both_gb_per_s }) = device.link {
        line(
            "    link",
            &format!(
                "out {out_gb_per_s:.1} GB/s, in {in_gb_per_s:.1} GB/s, both at once \
                 {both_gb_per_s:.1} GB/s each way"
            ),
        );
    }
    if let Some(calls) = device.map_calls {
        line(
            "    calls",
            &format!(
                "for {}: map {:.1} us, set access {:.1} us, unmap {:.1} us, create {:.1} us, \
                 release {:.1} us",
                size(calls.size_bytes),
                calls.map_us,
                calls.set_access_us,
                calls.unmap_us,
                calls.create_us,
                calls.release_us
            ),
        );
    }
    for Step { name, passed, detail } in &device.steps {
        let state = if *passed { "pass" } else { "FAIL" };
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        line(&format!("    {state}"), &format!("{name}{detail}"));
    }
    let name = if device.model.is_some() { "    verdict".to_owned() } else { device.name.clone() };
    line(&name, &device.verdict);
}

fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

#[derive(Serialize)]
struct JsonMachine<'a> {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    group_limit_bytes: Option<u64>,
    group_used_bytes: Option<u64>,
    lock_limit_bytes: Option<u64>,
    pinned_verdict: String,
    huge_page_bytes: Option<u64>,
    huge_reserved_free_bytes: u64,
    huge_transparent: Option<&'a str>,
    numa_nodes: usize,
    cores: usize,
}

#[derive(Serialize)]
struct JsonReport<'a> {
    software: &'a Software,
    machine: JsonMachine<'a>,
    drivers: &'a [DriverReport],
}

/// One JSON object.
pub(super) fn json(report: &Report) -> serde_json::Result<String> {
    let Machine { memory, nodes, cores } = &report.machine;
    let machine = JsonMachine {
        total_bytes: memory.total_bytes,
        available_bytes: memory.available_bytes,
        group_limit_bytes: memory.group.as_ref().map(|group| group.limit_bytes),
        group_used_bytes: memory.group.as_ref().map(|group| group.used_bytes),
        lock_limit_bytes: memory.lock_limit_bytes,
        pinned_verdict: report.machine.pinned_verdict(),
        huge_page_bytes: memory.huge.page_bytes,
        huge_reserved_free_bytes: memory.huge.reserved_free_bytes,
        huge_transparent: memory.huge.transparent.as_deref(),
        numa_nodes: *nodes,
        cores: *cores,
    };
    serde_json::to_string_pretty(&JsonReport {
        software: &report.software,
        machine,
        drivers: &report.drivers,
    })
}
