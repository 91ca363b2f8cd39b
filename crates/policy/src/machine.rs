//! What the planner and the simulator know about the machine: memory limits and the link.

/// Limits and speeds that plans are made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Physical device bytes that may be held at any moment.
    pub limit_bytes: u64,
    /// Pinned host bytes that swapped blocks may occupy.
    pub host_limit_bytes: u64,
    /// Copy speeds between device and host.
    pub link: Link,
    /// Fixed time of one copy before its bytes move, in microseconds.
    pub copy_submit_us: f64,
}

impl Machine {
    /// [`copy_submit_us`](Machine::copy_submit_us) of an accelerator, as measured over PCIe 5.
    pub const COPY_SUBMIT_US: f64 = 8.0;

    /// The machine as far as the loop knows it: the host has room, and without a link copies take
    /// no time.
    pub(crate) fn of_loop(limit_bytes: u64, link: Option<Link>) -> Machine {
        let link = link.unwrap_or(Link::INSTANT);
        Machine { limit_bytes, host_limit_bytes: u64::MAX, link, copy_submit_us: 0.0 }
    }

    /// This machine with another device limit.
    #[must_use]
    pub fn with_limit(self, limit_bytes: u64) -> Machine {
        Machine { limit_bytes, ..self }
    }

    /// Time of one copy to the host with the link to itself, in microseconds.
    pub fn out_us(&self, size_bytes: u64) -> f64 {
        self.copy_submit_us + size_bytes as f64 / self.link.out_bytes_per_us
    }

    /// Time of one copy from the host with the link to itself, in microseconds.
    pub fn in_us(&self, size_bytes: u64) -> f64 {
        self.copy_submit_us + size_bytes as f64 / self.link.in_bytes_per_us
    }
}

/// Measured link rates, in bytes per microsecond (which is MB/s).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Device to host, alone.
    pub out_bytes_per_us: f64,
    /// Host to device, alone.
    pub in_bytes_per_us: f64,
    /// Each direction while both run.
    pub both_bytes_per_us: f64,
}

impl Link {
    /// Copies take no time.
    pub(crate) const INSTANT: Link =
        Link { out_bytes_per_us: f64::MAX, in_bytes_per_us: f64::MAX, both_bytes_per_us: f64::MAX };

    /// Rate of one direction while the other is busy or not. Never above the rate alone.
    pub(crate) fn rate(&self, outward: bool, other_busy: bool) -> f64 {
        let alone = if outward { self.out_bytes_per_us } else { self.in_bytes_per_us };
        if other_busy { alone.min(self.both_bytes_per_us) } else { alone }
    }
}
