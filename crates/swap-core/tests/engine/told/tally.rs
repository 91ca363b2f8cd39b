//! What happened over many trainings, to show that something did.

/// What happened over a run.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    pub(super) kernels: u64,
    pub(super) out_of_memory: u64,
    pub(super) beside: u64,
    pub(super) freed_in_use: u64,
    pub(super) untold: u64,
    pub(super) moved_bytes: u64,
    pub(super) clean: u64,
    pub(super) replays: u64,
    pub(super) memory_calls: u64,
    pub(super) strayed: u64,
    pub(super) waited: u64,
}

impl Tally {
    pub(super) fn counts(&self) -> [(&'static str, u64); 11] {
        [
            ("kernels", self.kernels),
            ("out of memory", self.out_of_memory),
            ("ops of two threads at once", self.beside),
            ("frees of what another stream uses", self.freed_in_use),
            ("uses that nobody told of", self.untold),
            ("bytes brought back", self.moved_bytes),
            ("clean swap outs", self.clean),
            ("replays", self.replays),
            ("memory calls", self.memory_calls),
            ("strayed ops", self.strayed),
            ("waits between the framework's streams", self.waited),
        ]
    }

    pub(super) fn add(&mut self, other: &Tally) {
        self.kernels += other.kernels;
        self.out_of_memory += other.out_of_memory;
        self.beside += other.beside;
        self.freed_in_use += other.freed_in_use;
        self.untold += other.untold;
        self.moved_bytes += other.moved_bytes;
        self.clean += other.clean;
        self.replays += other.replays;
        self.memory_calls += other.memory_calls;
        self.strayed += other.strayed;
        self.waited += other.waited;
    }
}
