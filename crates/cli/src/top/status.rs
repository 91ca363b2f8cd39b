//! What trainings tell of themselves: a small file of each, which `python/smartswap/status.py`
//! writes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The largest file that is read: a command line may be long.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A counter of bytes.
#[derive(Clone, Copy, Default, Debug, Deserialize, Serialize)]
pub(super) struct Level {
    pub(super) current: u64,
    pub(super) peak: u64,
}

/// The file of one training.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Told {
    /// When the process started, in the system's ticks.
    pub(super) started: Option<u64>,
    pub(super) command: Vec<String>,
    pub(super) device: String,
    pub(super) rank: u32,
    pub(super) n_ranks: u32,
    /// When this was written, in seconds since 1970.
    pub(super) written_s: f64,
    pub(super) stage: String,
    pub(super) steps: u64,
    pub(super) steps_by_stage: BTreeMap<String, u64>,
    pub(super) limit_bytes: u64,
    pub(super) outside_bytes: u64,
    pub(super) requested_bytes: Level,
    pub(super) active_bytes: Level,
    pub(super) reserved_bytes: Level,
    pub(super) pinned_host_bytes: Level,
    pub(super) swapped_out_bytes: u64,
    pub(super) swapped_in_bytes: u64,
    pub(super) recomputed_ops: u64,
    pub(super) misses: u64,
    pub(super) rescues: u64,
    pub(super) stall_us: f64,
    pub(super) last_step_us: f64,
    pub(super) unlimited_us: f64,
}

/// Whether a training's process is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Running,
    /// It ended without a word, and its number may be somebody else's by now.
    Dead,
}

/// A training, as it told last.
#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) pid: u32,
    pub(super) life: Life,
    pub(super) told: Told,
}

/// All trainings of this user that told something, by process.
pub(super) fn all() -> Vec<Status> {
    let files = folders().into_iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let pid_of = |path: &Path| path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok();
    let read_one = |path: PathBuf| read(&path, pid_of(&path)?);
    let mut found: Vec<Status> = files.flatten().filter_map(|file| read_one(file.path())).collect();
    found.sort_by_key(|status| status.pid);
    found
}

/// The training of one process.
pub(super) fn of(pid: u32) -> Option<Status> {
    folders().iter().find_map(|folder| read(&folder.join(format!("{pid}.json")), pid))
}

/// Whether there is a process of this number.
pub(super) fn is_there(pid: u32) -> bool {
    started(pid).is_some()
}

/// Where trainings write: in the folder of the session, or, where they have none, of the user.
fn folders() -> Vec<PathBuf> {
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
    let user = fs::metadata("/proc/self").map(|found| found.uid());
    let of_user = user.ok().map(|user| std::env::temp_dir().join(format!("smartswap-{user}")));
    of_session.map(|path| Path::new(&path).join("smartswap")).into_iter().chain(of_user).collect()
}

fn read(path: &Path, pid: u32) -> Option<Status> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return None;
    }
    let told: Told = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let is_running = told.started.is_some() && told.started == started(pid);
    let life = if is_running { Life::Running } else { Life::Dead };
    Some(Status { pid, life, told })
}

/// When a process started, in the system's ticks.
fn started(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have any characters.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}
