//! How much may be touched at once without using up the machine.

use super::touch::{self, Touching};
use super::{HostPages, LARGE_BYTES, PagesError};
use crate::system::{GroupMemory, HostMemory};

/// Most bytes that are left to the rest of the machine.
const MARGIN_BYTES_MAX: u64 = 512 << 20;

/// Touches all of `pages`, never more at once than the machine has to spare. `memory` is how
/// things are now.
pub(super) fn touch(
    pages: &HostPages,
    touching: Touching,
    memory: &HostMemory,
) -> Result<(), PagesError> {
    let size_bytes = pages.size_bytes();
    let mut now = memory.clone();
    let mut touched_bytes = 0;
    while touched_bytes < size_bytes {
        let Some(step_bytes) = next_step(size_bytes - touched_bytes, &now) else {
            let left_bytes = now.room_bytes().unwrap_or(0);
            return Err(PagesError::MachineFull { size_bytes, touched_bytes, left_bytes });
        };
        let end_bytes = touched_bytes + step_bytes;
        touch::part(pages, touched_bytes as usize..end_bytes as usize, touching)?;
        touched_bytes = end_bytes;
        if touched_bytes < size_bytes {
            now = HostMemory::read();
        }
    }
    Ok(())
}

/// How much of the rest may be touched now: all of it if that leaves a margin, else at most half
/// of what is there. `None` if that is too little to go on.
fn next_step(rest_bytes: u64, now: &HostMemory) -> Option<u64> {
    let machine_bytes = now.available_bytes.filter(|_| now.is_measured).map(|available_bytes| {
        let total_bytes = now.total_bytes.unwrap_or(available_bytes);
        available_bytes.saturating_sub((total_bytes / 64).min(MARGIN_BYTES_MAX))
    });
    // Others of the group may have grown since the first look.
    let group_bytes = now.group.as_ref().map(GroupMemory::room_bytes);
    let Some(spare_bytes) = [machine_bytes, group_bytes].into_iter().flatten().min() else {
        return Some(rest_bytes);
    };
    if rest_bytes <= spare_bytes {
        return Some(rest_bytes);
    }
    let step_bytes = spare_bytes / 2 / LARGE_BYTES * LARGE_BYTES;
    (step_bytes > 0).then_some(step_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(total_bytes: u64, available_bytes: u64) -> HostMemory {
        HostMemory {
            total_bytes: Some(total_bytes),
            available_bytes: Some(available_bytes),
            is_measured: true,
            ..HostMemory::default()
        }
    }

    /// Plays the steps on a machine of `total_bytes` that grows by `growth_bytes` at each step.
    /// Returns what was touched and the least that was ever left.
    fn play(size_bytes: u64, mut total_bytes: u64, growth_bytes: u64) -> (u64, u64) {
        let (mut touched_bytes, mut least_bytes) = (0, total_bytes);
        for _ in 0..10_000 {
            let now = machine(total_bytes, total_bytes - touched_bytes);
            match next_step(size_bytes - touched_bytes, &now) {
                Some(step_bytes) => touched_bytes += step_bytes,
                None => break,
            }
            assert!(touched_bytes <= total_bytes, "the machine would end the process");
            least_bytes = least_bytes.min(total_bytes - touched_bytes);
            if touched_bytes == size_bytes {
                return (touched_bytes, least_bytes);
            }
            total_bytes += growth_bytes;
        }
        (touched_bytes, least_bytes)
    }

    #[test]
    fn what_fits_is_touched_at_once() {
        assert_eq!(next_step(32 * GIB, &machine(128 * GIB, 100 * GIB)), Some(32 * GIB));
        assert_eq!(next_step(3 << 20, &machine(128 * GIB, GIB)), Some(3 << 20));
    }

    #[test]
    fn a_machine_that_does_not_grow_keeps_its_margin() {
        let (touched_bytes, least_bytes) = play(200 * GIB, 128 * GIB, 0);
        assert!(touched_bytes < 128 * GIB);
        assert!(least_bytes >= MARGIN_BYTES_MAX);
        let (touched_bytes, least_bytes) = play(64 << 20, 64 << 20, 0);
        assert!(touched_bytes < 64 << 20);
        assert!(least_bytes >= 1 << 20);
    }

    #[test]
    fn a_machine_that_grows_with_its_use_serves_more_than_it_had() {
        assert_eq!(play(32 * GIB, 8 * GIB, 2 * GIB).0, 32 * GIB);
    }

    #[test]
    fn a_control_group_that_fills_up_meanwhile_is_not_exceeded() {
        let group = |used_bytes| GroupMemory {
            path: String::new(),
            limit_bytes: 8 * GIB,
            used_bytes,
            reclaimable_bytes: 0,
        };
        let now = |used_bytes| HostMemory {
            group: Some(group(used_bytes)),
            ..machine(128 * GIB, 100 * GIB)
        };
        assert_eq!(next_step(6 * GIB, &now(2 * GIB)), Some(6 * GIB));
        assert_eq!(next_step(6 * GIB, &now(4 * GIB)), Some(2 * GIB));
        assert_eq!(next_step(6 * GIB, &now(8 * GIB)), None);
    }

    #[test]
    fn an_estimate_refuses_nothing() {
        let now = HostMemory { is_measured: false, ..machine(2 * GIB, GIB) };
        assert_eq!(next_step(8 * GIB, &now), Some(8 * GIB));
        assert_eq!(next_step(8 * GIB, &HostMemory::default()), Some(8 * GIB));
    }
}
