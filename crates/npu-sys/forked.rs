//! A forked child of a test, and what the system says that it got of its parent's memory.

// Each of the tests that include this file uses a part of it.
#![allow(dead_code)]

use std::fs;
use std::ops::Range;

pub(crate) const SIGSEGV: i32 = 11;
const SIGKILL: i32 = 9;
const DEFAULT_ACTION: usize = 0;

// SAFETY: the declarations are those of the C library. The child of `fork` does nothing but wait
// or what its test says.
unsafe extern "C" {
    safe fn fork() -> i32;
    safe fn pause() -> i32;
    safe fn signal(signal: i32, action: usize) -> usize;
    safe fn _exit(code: i32) -> !;
    safe fn kill(process: i32, signal: i32) -> i32;
    safe fn waitpid(process: i32, status: Option<&mut i32>, options: i32) -> i32;
}

/// A child that waits until it is killed, which is when this is dropped.
#[derive(Debug)]
pub(crate) struct Forked(i32);

/// Some addresses of a process.
#[derive(Debug)]
struct Mapping {
    addresses: Range<u64>,
    resident_bytes: u64,
}

impl Forked {
    /// Forks now.
    pub(crate) fn new() -> Forked {
        match fork() {
            0 => loop {
                pause();
            },
            child => {
                assert!(child > 0, "the system gives no process");
                Forked(child)
            }
        }
    }

    /// How many of these addresses the child has.
    pub(crate) fn inherited_bytes(&self, start: u64, size_bytes: u64) -> u64 {
        let end = start + size_bytes;
        let inside = |it: &Range<u64>| it.end.min(end).saturating_sub(it.start.max(start));
        self.mappings().iter().map(|mapping| inside(&mapping.addresses)).sum()
    }

    /// For how much of the mappings at these addresses the child has entries in its page table.
    pub(crate) fn resident_bytes(&self, start: u64, size_bytes: u64) -> u64 {
        let meets = |it: &Range<u64>| it.start < start + size_bytes && start < it.end;
        let mappings = self.mappings();
        let met = mappings.iter().filter(|mapping| meets(&mapping.addresses));
        met.map(|mapping| mapping.resident_bytes).sum()
    }

    /// A line of the child's status, in bytes.
    pub(crate) fn status_bytes(&self, name: &str) -> u64 {
        let status = self.read("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.expect("the system tells it").trim_matches([':', ' ', '\t']);
        kib(value)
    }

    fn mappings(&self) -> Vec<Mapping> {
        let mut mappings: Vec<Mapping> = Vec::new();
        for line in self.read("smaps").lines() {
            if let Some(addresses) = addresses(line) {
                mappings.push(Mapping { addresses, resident_bytes: 0 });
            } else if let Some(value) = line.strip_prefix("Rss:") {
                let mapping = mappings.last_mut().expect("the addresses come first");
                mapping.resident_bytes = kib(value.trim());
            }
        }
        assert!(!mappings.is_empty(), "a process has memory");
        mappings
    }

    fn read(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.0);
        fs::read_to_string(path).expect("the child lives and is ours")
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        kill(self.0, SIGKILL);
        waitpid(self.0, None, 0);
    }
}

/// Runs `body` in a forked child, where it may call nothing that takes a lock, and returns the
/// signal that ended it, if one did.
pub(crate) fn signal_of_child(body: impl FnOnce()) -> Option<i32> {
    let child = fork();
    if child == 0 {
        // The standard library's own handler takes a lock.
        signal(SIGSEGV, DEFAULT_ACTION);
        body();
        _exit(0);
    }
    assert!(child > 0, "the system gives no process");
    let mut status = 0;
    assert_eq!(waitpid(child, Some(&mut status), 0), child);
    Some(status & 0x7f).filter(|signal| *signal != 0)
}

/// The addresses at the head of a mapping's lines.
fn addresses(line: &str) -> Option<Range<u64>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let parse = |text| u64::from_str_radix(text, 16).ok();
    Some(parse(start)?..parse(end)?)
}

fn kib(text: &str) -> u64 {
    let number = text.strip_suffix(" kB").expect("the system counts in kB");
    number.parse::<u64>().expect("a number") << 10
}
