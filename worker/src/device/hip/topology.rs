//! Which AMD GPUs there are, as the kernel's own driver (KFD) tells it: what can be known where no library is.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The kernel's list of nodes: processors and GPUs; each partition of a GPU is one.
const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
/// The most nodes that are looked at.
const MAX_NODES: usize = 256;

/// A GPU, or a partition of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    /// Such as `gfx90a`.
    pub(super) arch: String,
    /// Such as `0000:1b:00.0`; partitions of a card have the same.
    pub(super) bus_id: String,
    /// The device file that its memory is reached through, such as `/dev/dri/renderD128`.
    pub(super) render: PathBuf,
}

/// All GPUs, in the kernel's order; none where KFD is not there.
pub(super) fn nodes() -> Vec<Node> {
    nodes_in(Path::new(NODES))
}

fn nodes_in(folder: &Path) -> Vec<Node> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let numbered = entries.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path()))
    });
    let mut numbered: Vec<_> = numbered.take(MAX_NODES).collect();
    numbered.sort();
    numbered
        .iter()
        .filter_map(|(_, path)| node(&std::fs::read_to_string(path.join("properties")).ok()?))
        .collect()
}

/// A node's properties, one `name number` in each line; none if it is no GPU.
fn node(properties: &str) -> Option<Node> {
    let words = properties.lines().filter_map(|line| line.split_once(' '));
    let values: HashMap<&str, u64> =
        words.filter_map(|(name, value)| Some((name, value.trim().parse().ok()?))).collect();
    let value = |name: &str| values.get(name).copied();
    // Processors have the version zero.
    let version = value("gfx_target_version").filter(|&version| version > 0)?;
    let (location, domain) = (value("location_id").unwrap_or(0), value("domain").unwrap_or(0));
    Some(Node {
        arch: arch(version),
        bus_id: format!(
            "{domain:04x}:{:02x}:{:02x}.{:x}",
            location >> 8 & 0xff,
            location >> 3 & 0x1f,
            // Of a partition the function is not the card's but its own number.
            location & 7
        ),
        render: format!("/dev/dri/renderD{}", value("drm_render_minor").unwrap_or(0)).into(),
    })
}

/// `90010` is `gfx90a`: the last two digits are one hexadecimal digit of the name.
fn arch(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

/// What the kernel says is there, for messages of what is missing.
pub(super) fn in_words(nodes: &[Node]) -> String {
    if nodes.is_empty() {
        return match Path::new("/sys/class/kfd/kfd").exists() {
            true => "the kernel's amdgpu driver shows no GPU".to_owned(),
            false => "the kernel shows no AMD GPU (/dev/kfd, of its driver amdgpu, is missing)".to_owned(),
        };
    }
    let named: Vec<_> = nodes.iter().map(|node| format!("{} at {}", node.arch, node.bus_id)).collect();
    format!("the kernel shows {} here", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "cpu_cores_count 0\nsimd_count 416\nsimd_per_cu 4\nlds_size_in_kb 64\n\
        gfx_target_version 90010\nvendor_id 4098\ndevice_id 29711\nlocation_id 6912\ndomain 1\n\
        drm_render_minor 129\nhive_id 0\nnum_xcc 1\nunique_id 5700000000000000001\n";

    #[test]
    fn architectures_are_named_as_compilers_name_them() {
        for (version, name) in [
            (90_010, "gfx90a"),
            (90_402, "gfx942"),
            (90_500, "gfx950"),
            (110_000, "gfx1100"),
            (120_001, "gfx1201"),
            (90_006, "gfx906"),
            (100_302, "gfx1032"),
            (110_501, "gfx1151"),
        ] {
            assert_eq!(arch(version), name);
        }
    }

    #[test]
    fn gpus_are_found_in_the_kernels_order_and_processors_left_out() {
        let folder = tempdir();
        for (number, text) in [
            (0, "cpu_cores_count 64\ngfx_target_version 0\n"),
            (10, GPU),
            (2, &GPU.replace("90010", "90402")),
        ] {
            let node = folder.join(number.to_string());
            std::fs::create_dir_all(&node).unwrap();
            std::fs::write(node.join("properties"), text).unwrap();
        }
        std::fs::create_dir_all(folder.join("no number")).unwrap();
        let found = nodes_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.iter().map(|node| node.arch.as_str()).collect::<Vec<_>>(), ["gfx942", "gfx90a"]);
        assert_eq!(
            (found[1].bus_id.as_str(), &found[1].render),
            ("0001:1b:00.0", &"/dev/dri/renderD129".into())
        );
        assert!(in_words(&found).contains("gfx942 at 0001:1b:00.0, gfx90a at 0001:1b:00.0"));
        assert!(nodes_in(&folder).is_empty());
        assert!(node("gfx_target_version much\n").is_none() && node("").is_none());
    }

    fn tempdir() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("pappus-kfd-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
