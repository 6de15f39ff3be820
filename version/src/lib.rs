//! Which version and which build of Pappus this is. A crate of its own: a new commit rebuilds only this crate and
//! the programs linked to it.

#![forbid(unsafe_code)]

/// `0.1.0 (5e140e1ab123 2026-11-22, release)`: what every program answers to `--version`.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("PAPPUS_BUILD"), ")");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_says_which_build_it_is() {
        let (version, build) = VERSION.split_once(" (").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let (commit, profile) = build.strip_suffix(')').unwrap().split_once(", ").unwrap();
        assert!(!commit.is_empty() && ["debug", "release", "demo"].contains(&profile), "{VERSION}");
    }
}
