//! What addresses are: whose memory, and what may touch it.

use std::collections::BTreeMap;

use crate::failure::{
    Failure, INVALID_PARAM, Outcome, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, refuse,
};
use crate::runtime::Scope;
use crate::tables::Tables;

/// Which memory some bytes are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryKind {
    /// Device memory.
    Device,
    /// Pinned host memory that the device knows by the same address.
    Shared,
    /// Pinned or registered host memory, by its host address.
    Pinned,
    /// Any other host memory.
    Pageable,
}

/// From where to where a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

impl MemoryKind {
    pub(crate) fn is_device(self) -> bool {
        matches!(self, MemoryKind::Device | MemoryKind::Shared)
    }

    pub(crate) fn is_host(self) -> bool {
        self != MemoryKind::Device
    }
}

impl Direction {
    /// What the kind of a copy says, if the memory on both sides agrees with it.
    pub(crate) fn of(kind: i32, to: MemoryKind, from: MemoryKind) -> Outcome<Direction> {
        use Direction::{DeviceToDevice, DeviceToHost, HostToDevice, HostToHost};
        let direction = match kind {
            0 => HostToHost,
            1 => HostToDevice,
            2 => DeviceToHost,
            3 | 6 => DeviceToDevice,
            4 => match (to == MemoryKind::Device, from == MemoryKind::Device) {
                (false, false) => HostToHost,
                (true, false) => HostToDevice,
                (false, true) => DeviceToHost,
                (true, true) => DeviceToDevice,
            },
            5 | 7 => {
                return refuse(RT_FEATURE_NOT_SUPPORT, format!("copies of kind {kind}"));
            }
            _ => return refuse(RT_PARAM_INVALID, format!("{kind} is not a kind of copy")),
        };
        let (to_fits, from_fits) = match direction {
            HostToHost => (to.is_host(), from.is_host()),
            HostToDevice => (to.is_device(), from.is_host()),
            DeviceToHost => (to.is_host(), from.is_device()),
            DeviceToDevice => (to.is_device(), from.is_device()),
        };
        if !to_fits || !from_fits {
            let text = format!("kind {kind} does not fit a copy to {to:?} from {from:?} memory");
            return refuse(RT_PARAM_INVALID, text);
        }
        Ok(direction)
    }
}

/// The last entry that begins at or before `address`, and how far behind its start that is.
fn before<T>(table: &BTreeMap<u64, T>, address: u64) -> Option<(&T, u64)> {
    let (&start, value) = table.range(..=address).next_back()?;
    Some((value, address - start))
}

impl Tables {
    /// Says which memory `address + size_bytes` is, all of it.
    pub(crate) fn memory_kind(
        &self,
        scope: &Scope,
        address: u64,
        size_bytes: u64,
    ) -> Outcome<MemoryKind> {
        if address == 0 || address.checked_add(size_bytes).is_none() {
            return refuse(INVALID_PARAM, format!("{address:#x} + {size_bytes} is no address"));
        }
        if let Some(kind) = self.device_kind(scope, address, size_bytes)? {
            return Ok(kind);
        }
        self.refuse_alias(address, size_bytes)?;
        let beyond = |known: u64| {
            let text = format!("{address:#x} + {size_bytes} goes {known} bytes past its memory");
            Err(Failure::new(RT_PARAM_INVALID, text))
        };
        if let Some((host, offset)) = before(&self.host, address)
            && offset < host.size_bytes
        {
            let end = offset + size_bytes;
            if end > host.asked_bytes {
                return beyond(end - host.asked_bytes);
            }
            return Ok(if host.is_shared { MemoryKind::Shared } else { MemoryKind::Pinned });
        }
        if let Some((registered, offset)) = before(&self.registered, address)
            && offset < registered.size_bytes
        {
            let end = offset + size_bytes;
            if end > registered.size_bytes {
                return beyond(end - registered.size_bytes);
            }
            return Ok(MemoryKind::Pinned);
        }
        let end = address + size_bytes;
        let runs_into = self.allocations.range(address..end).next().is_some()
            || self.ranges.range(address..end).next().is_some()
            || self.host.range(address..end).next().is_some()
            || self.registered.range(address..end).next().is_some();
        if runs_into {
            let text = format!("{address:#x} + {size_bytes} runs into memory of another kind");
            return refuse(RT_PARAM_INVALID, text);
        }
        Ok(MemoryKind::Pageable)
    }

    /// Device memory, if the address is the device's.
    fn device_kind(
        &self,
        scope: &Scope,
        address: u64,
        size_bytes: u64,
    ) -> Outcome<Option<MemoryKind>> {
        let shown = format!("{address:#x} + {size_bytes}");
        let elsewhere = |device| {
            let text = format!("{shown} is on device {device}, the thread's is {}", scope.device);
            refuse(RT_PARAM_INVALID, text)
        };
        if let Some((allocation, offset)) = before(&self.allocations, address)
            && offset < allocation.range.size_bytes
        {
            if allocation.device != scope.device {
                return elsewhere(allocation.device);
            }
            if offset + size_bytes > allocation.asked_bytes {
                let text = format!("{shown} goes past the {} bytes asked", allocation.asked_bytes);
                return refuse(RT_PARAM_INVALID, text);
            }
            return Ok(Some(MemoryKind::Device));
        }
        let Some((range, offset)) = before(&self.ranges, address) else { return Ok(None) };
        if offset >= range.range.size_bytes {
            return Ok(None);
        }
        if range.device != scope.device {
            return elsewhere(range.device);
        }
        let mut at = address;
        while at < address + size_bytes {
            match before(&self.mappings, at) {
                Some((mapping, offset)) if offset < mapping.size_bytes => {
                    at += mapping.size_bytes - offset;
                }
                _ => return refuse(RT_PARAM_INVALID, format!("{shown} is not all mapped")),
            }
        }
        Ok(Some(MemoryKind::Device))
    }

    /// Refuses the addresses at which the device sees mapped host memory.
    fn refuse_alias(&self, address: u64, size_bytes: u64) -> Outcome {
        for (start, registered) in &self.registered {
            let Some(alias) = registered.alias.as_ref().filter(|alias| alias.is_apart()) else {
                continue;
            };
            let (from, to) = (alias.start(), alias.start() + registered.size_bytes);
            if address < to && address + size_bytes > from {
                let text = format!(
                    "{address:#x} + {size_bytes} is the device's address of the host memory at \
                     {start:#x}: without the VA flag, only kernels may use it"
                );
                return refuse(RT_PARAM_INVALID, text);
            }
        }
        Ok(())
    }
}
