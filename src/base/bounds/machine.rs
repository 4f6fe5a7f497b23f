//! Memory limits that the system reports for the machine, the process and its container.

/// Returns the smallest limit that the system reports, in bytes, or `None` if it reports no limit.
pub(super) fn detect_memory_limit() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| parse_mem_total(&text));
    let own = read("/proc/self/cgroup");
    let groups = own.iter().flat_map(|text| list_cgroup_limit_files(text));
    let container = groups
        .filter_map(|folder| read(&folder))
        .filter_map(|text| text.trim().parse().ok());
    let process = read("/proc/self/limits").and_then(|text| parse_address_space_limit(&text));
    machine.into_iter().chain(container).chain(process).min()
}

/// Parses the soft limit on the process's address space, in bytes. Returns `None` if the address space is unlimited.
fn parse_address_space_limit(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix("Max address space"))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Parses the line `MemTotal: 16384 kB`, and returns the memory in bytes.
fn parse_mem_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    // The kernel writes kB but means KiB.
    kilobytes.checked_mul(1024)
}

/// Returns the paths of the files that may contain memory limits, for both versions of cgroups. `text` is the content
/// of `/proc/self/cgroup`. Inside a container, the root of the hierarchy is the container's own cgroup.
fn list_cgroup_limit_files(text: &str) -> Vec<String> {
    const ROOT: &str = "/sys/fs/cgroup";
    let mut found = vec![
        format!("{ROOT}/memory.max"),
        format!("{ROOT}/memory/memory.limit_in_bytes"),
    ];
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        match (parts.next(), parts.next()) {
            (Some(""), Some(group)) => found.push(format!("{ROOT}{group}/memory.max")),
            (Some(kinds), Some(group)) if kinds.split(',').any(|kind| kind == "memory") => {
                found.push(format!("{ROOT}/memory{group}/memory.limit_in_bytes"));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_process_limits_and_cgroup_texts_are_parsed() {
        // 16,384 KiB are 16,384 × 1,024 bytes.
        assert_eq!(
            parse_mem_total("MemFree: 1 kB\nMemTotal:   16384 kB\n"),
            Some(16_777_216)
        );
        assert_eq!(parse_mem_total("MemTotal: many"), None);
        let limits = "Max address space   8589934592  unlimited  bytes\n";
        assert_eq!(parse_address_space_limit(limits), Some(8_589_934_592));
        assert_eq!(
            parse_address_space_limit("Max address space unlimited unlimited"),
            None
        );
        let of = |text| list_cgroup_limit_files(text).split_off(2);
        assert_eq!(of("0::/a/b\n"), ["/sys/fs/cgroup/a/b/memory.max"]);
        let first = of("4:cpu,memory:/a\n3:pids:/b");
        assert_eq!(first, ["/sys/fs/cgroup/memory/a/memory.limit_in_bytes"]);
    }
}
