//! The memory that this process may still take: what the kernel calls available, and what the
//! control groups above it leave. Functions over text, and one thin reader of the files.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// What holds the memory down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    MemAvailable,
    /// A control group, by its folder.
    Cgroup(PathBuf),
    /// The system tells nothing.
    Unknown,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::MemAvailable => f.write_str("MemAvailable"),
            Bound::Cgroup(folder) => write!(f, "the memory limit of {}", folder.display()),
            Bound::Unknown => f.write_str("the system does not say how much"),
        }
    }
}

/// Limits of this process, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    pub available_bytes: u64,
    pub bound: Bound,
    /// How much it may lock in memory; `None` is everything.
    pub locked_bytes: Option<u64>,
}

/// What the kernel says now.
pub fn limits() -> Limits {
    let (available_bytes, bound) = available_memory();
    Limits { available_bytes, bound, locked_bytes: getrlimit(Resource::Memlock).current }
}

/// The least of MemAvailable and what each control group above this process leaves.
pub fn available_memory() -> (u64, Bound) {
    let read = |path: &Path| fs::read_to_string(path).ok();
    available_by(&read)
}

/// Reads a file of the system; `None` where it is not there.
type ReadText<'a> = &'a dyn Fn(&Path) -> Option<String>;

fn available_by(read: ReadText) -> (u64, Bound) {
    let meminfo = read(Path::new("/proc/meminfo"));
    let mut least = match meminfo.as_deref().and_then(mem_available) {
        Some(bytes) => (bytes, Bound::MemAvailable),
        None => (u64::MAX, Bound::Unknown),
    };
    let membership = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    for group in groups(&membership) {
        for folder in group.folders() {
            if let Some(bytes) = group.left(&folder, read).filter(|bytes| *bytes < least.0) {
                least = (bytes, Bound::Cgroup(folder));
            }
        }
    }
    least
}

/// `MemAvailable` of /proc/meminfo, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A control group that this process is in.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Group {
    /// True for version 1, with one hierarchy for memory.
    v1: bool,
    /// Below the mount point.
    path: PathBuf,
}

/// The groups of /proc/self/cgroup that can limit memory.
fn groups(membership: &str) -> Vec<Group> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = PathBuf::from(path.strip_prefix('/')?);
        if controllers.split(',').any(|c| c == "memory") {
            return Some(Group { v1: true, path });
        }
        (id == "0" && controllers.is_empty()).then_some(Group { v1: false, path })
    };
    membership.lines().filter_map(parse).collect()
}

impl Group {
    /// Its folder and those above it, up to the mount point. In a container the names of the
    /// host may be missing below the mount point, which is then the container's own group.
    fn folders(&self) -> Vec<PathBuf> {
        let mounts: &[&str] = if self.v1 {
            &["/sys/fs/cgroup/memory"]
        } else {
            &["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        };
        let below = |mount: &&str| {
            let mount = Path::new(*mount);
            self.path.ancestors().map(|path| mount.join(path)).collect::<Vec<_>>()
        };
        mounts.iter().flat_map(below).collect()
    }

    /// What the group of that folder leaves; pages of files that can be dropped count as left.
    fn left(&self, folder: &Path, read: ReadText) -> Option<u64> {
        let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
        let (limit, usage, inactive) = if self.v1 {
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        } else {
            ("memory.max", "memory.current", "inactive_file")
        };
        // Version 2 says `max` for no limit, version 1 a number near 2^63: beyond any machine.
        let limit = number(limit)?;
        let used = number(usage)?;
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        let dropped = field(&stat, inactive).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(dropped)))
    }
}

fn field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const MEMINFO: &str = "MemTotal:  64000000 kB\nMemFree: 1 kB\nMemAvailable:   32000000 kB\n";

    fn available(files: &[(&str, &str)]) -> (u64, Bound) {
        let files: HashMap<&Path, &str> =
            files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
        available_by(&|path| files.get(path).map(ToString::to_string))
    }

    #[test]
    fn without_groups_the_kernels_number_counts() {
        let found = available(&[("/proc/meminfo", MEMINFO)]);
        assert_eq!(found, (32_000_000 * 1024, Bound::MemAvailable));
        assert_eq!(available(&[]), (u64::MAX, Bound::Unknown));
    }

    #[test]
    fn a_limit_far_above_binds_in_version_2() {
        let found = available(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/user.slice/session.scope\n"),
            ("/sys/fs/cgroup/user.slice/session.scope/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/session.scope/memory.current", "4000\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "10000\n"),
            ("/sys/fs/cgroup/user.slice/memory.current", "7000\n"),
            ("/sys/fs/cgroup/user.slice/memory.stat", "anon 5\ninactive_file 2500\n"),
        ]);
        assert_eq!(found, (5500, Bound::Cgroup("/sys/fs/cgroup/user.slice".into())));
    }

    #[test]
    fn version_1_has_its_own_names_and_no_limit_is_a_large_number() {
        let cgroup = "12:cpu:/x\n7:memory:/job/a\n0::/other\n";
        let unlimited = "9223372036854771712\n";
        let mut files = vec![
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", cgroup),
            ("/sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "4100000000\n"),
            ("/sys/fs/cgroup/memory/job/a/memory.usage_in_bytes", "600000000\n"),
            ("/sys/fs/cgroup/memory/job/a/memory.stat", "cache 9\ntotal_inactive_file 100000000\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "700000000\n"),
        ];
        let folder = PathBuf::from("/sys/fs/cgroup/memory/job/a");
        assert_eq!(available(&files), (3_600_000_000, Bound::Cgroup(folder)));
        files.retain(|(path, _)| !path.contains("/job/a/"));
        assert_eq!(available(&files), (32_000_000 * 1024, Bound::MemAvailable));
    }

    #[test]
    fn a_container_whose_group_is_named_by_the_host_is_limited_at_the_mount_point() {
        let found = available(&[
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/host/name/of/it\n"),
            ("/sys/fs/cgroup/memory.max", "2000\n"),
            ("/sys/fs/cgroup/memory.current", "2500\n"),
        ]);
        assert_eq!(found, (0, Bound::Cgroup("/sys/fs/cgroup/".into())));
    }

    #[test]
    fn this_machine_has_memory() {
        let found = limits();
        assert!(found.available_bytes > 1 << 20, "{found:?}");
    }
}
