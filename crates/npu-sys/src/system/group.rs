//! The memory limits of this process's control groups, versions 1 and 2.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::types::Bytes;

/// Version 1 writes "no limit" as the largest number of whole pages.
const NO_LIMIT_BYTES: u64 = 1 << 62;

/// A control group with a memory limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupMemory {
    /// Its folder.
    pub path: String,
    /// Beyond this the system ends processes of the group.
    pub limit_bytes: u64,
    /// What its processes and their files hold.
    pub used_bytes: u64,
    /// What of that are files that nobody used lately, which make room.
    pub reclaimable_bytes: u64,
}

impl GroupMemory {
    /// Bytes that processes of the group can still take.
    pub fn room_bytes(&self) -> u64 {
        let held_bytes = self.used_bytes.saturating_sub(self.reclaimable_bytes);
        self.limit_bytes.saturating_sub(held_bytes)
    }
}

impl fmt::Display for GroupMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, used) = (Bytes(self.limit_bytes), Bytes(self.used_bytes));
        write!(f, "its control group is limited to {limit}, of which {used} are used")
    }
}

/// The files of one version.
struct Version {
    /// Where its groups are.
    roots: &'static [&'static str],
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static str,
}

const FIRST: Version = Version {
    roots: &["/sys/fs/cgroup/memory"],
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

const SECOND: Version = Version {
    roots: &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file",
};

/// The group with the least room, of those that hold this process.
pub(super) fn tightest() -> Option<GroupMemory> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths = memberships(&text);
    let groups =
        [(FIRST, paths.first), (SECOND, paths.second)].into_iter().flat_map(|(version, path)| {
            // In a container the path may be the host's, and only the root is to be seen.
            let path = path.unwrap_or_default();
            let folders: Vec<PathBuf> =
                version.roots.iter().flat_map(|root| ancestors(Path::new(root), &path)).collect();
            folders.into_iter().filter_map(move |folder| read(&version, &folder))
        });
    groups.min_by_key(GroupMemory::room_bytes)
}

fn read(version: &Version, folder: &Path) -> Option<GroupMemory> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let limit_bytes = limit(&text(version.limit)?)?;
    let used_bytes = text(version.used)?.trim().parse().ok()?;
    let reclaimable_bytes =
        text("memory.stat").and_then(|stat| stat_bytes(&stat, version.reclaimable)).unwrap_or(0);
    let path = folder.display().to_string();
    Some(GroupMemory { path, limit_bytes, used_bytes, reclaimable_bytes })
}

/// The groups of a process, from the root of their version.
#[derive(PartialEq, Eq, Default, Debug)]
struct Memberships {
    first: Option<String>,
    second: Option<String>,
}

/// Reads `/proc/self/cgroup`: lines of number, controllers and path.
fn memberships(text: &str) -> Memberships {
    let mut found = Memberships::default();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            found.second = Some(path.to_owned());
        } else if controllers.split(',').any(|name| name == "memory") {
            found.first = Some(path.to_owned());
        }
    }
    found
}

/// The group's folder and all above it, down from the root: each may have a limit.
fn ancestors(root: &Path, path: &str) -> Vec<PathBuf> {
    let mut folder = root.to_owned();
    let mut found = vec![folder.clone()];
    for name in path.split('/').filter(|name| !name.is_empty()) {
        folder.push(name);
        found.push(folder.clone());
    }
    found
}

/// A limit in bytes; `None` for no limit.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|&bytes| bytes < NO_LIMIT_BYTES)
}

/// A figure of `memory.stat`: lines of name and bytes.
fn stat_bytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_both_versions_are_found() {
        let text = "9:name=systemd:/\n4:cpu,memory:/jobs/7\n3:cpuset:/\n0::/user.slice\n";
        let some = |path: &str| Some(path.to_owned());
        let expect = Memberships { first: some("/jobs/7"), second: some("/user.slice") };
        assert_eq!(memberships(text), expect);
        assert_eq!(memberships("0::/\n").second, some("/"));
        assert_eq!(memberships("what is this"), Memberships::default());
    }

    #[test]
    fn every_group_above_counts_and_the_tightest_wins() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let inner = root.join("outer/inner");
        fs::create_dir_all(&inner).expect("folders");
        let write = |folder: &Path, name: &str, text: &str| {
            fs::write(folder.join(name), text).expect("writes");
        };
        write(&root.join("outer"), "memory.max", "1000\n");
        write(&root.join("outer"), "memory.current", "900\n");
        write(&root.join("outer"), "memory.stat", "anon 5\ninactive_file 300\n");
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "1\n");
        let folders = ancestors(root, "/outer/inner");
        assert_eq!(folders.len(), 3);
        let groups: Vec<_> = folders.iter().filter_map(|folder| read(&SECOND, folder)).collect();
        assert_eq!(groups.len(), 1, "no limit is no group: {groups:?}");
        assert_eq!((groups[0].limit_bytes, groups[0].used_bytes), (1000, 900));
        assert_eq!(groups[0].room_bytes(), 400);
    }

    #[test]
    fn no_limit_is_written_in_two_ways() {
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("4096\n"), Some(4096));
        let full = GroupMemory {
            path: String::new(),
            limit_bytes: 5,
            used_bytes: 9,
            reclaimable_bytes: 1,
        };
        assert_eq!(full.room_bytes(), 0);
    }

    #[test]
    fn figures_of_the_group_are_found_by_whole_name() {
        let text = "inactive_file_extra 1\ntotal_inactive_file 2\ninactive_file 3\n";
        assert_eq!(stat_bytes(text, "inactive_file"), Some(3));
        assert_eq!(stat_bytes(text, "total_inactive_file"), Some(2));
        assert_eq!(stat_bytes(text, "active_file"), None);
    }
}
