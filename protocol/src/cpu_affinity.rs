//! CPU affinity: threads of a device run on the processors of its memory node, so that copies do not cross the host.

use rustix::thread::CpuSet;

/// Keeps this thread, and those it starts, on the processors of a memory node. What the host does not tell
/// or allow is left as it is.
pub fn pin_to_numa_node(numa_node: Option<u32>) {
    let Some(node) = numa_node else { return };
    let list = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"));
    if let Some(processors) = list.ok().and_then(|list| processors(&list)) {
        let _ = rustix::thread::sched_setaffinity(None, &processors);
    }
}

/// Processors of a list of the kernel's, such as `0-3,8`; none if the list is empty.
fn processors(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (first..=last).filter(|&cpu| cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    }
    (set.count() > 0).then_some(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_read_as_the_kernel_writes_them() {
        let set = processors("0-2,8\n").unwrap();
        let members: Vec<_> = (0..16).filter(|&cpu| set.is_set(cpu)).collect();
        assert_eq!(members, [0, 1, 2, 8]);
        for nothing in ["", "\n", "x", "3-y"] {
            assert!(processors(nothing).is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn a_node_that_is_not_there_changes_nothing() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        pin_to_numa_node(None);
        pin_to_numa_node(Some(u32::MAX));
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), before.count());
    }
}
