//! A page of words that two processes share. Each access is one atomic operation: neither side ever sees half of what
//! the other one writes, and nothing here waits. The two processes say what the words mean.

use std::sync::atomic::AtomicU64;

use crate::{Mapping, MemfdError, ValidatedMemfd, memfd};

/// Bytes of a page.
const BYTES: u64 = 4096;
/// Words of a page.
pub const WORDS: usize = BYTES as usize / size_of::<AtomicU64>();

/// A page mapped into this process. It stays mapped for as long as this value lives, and its memfd can neither grow nor
/// shrink, so that no access faults.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
}

impl SharedWords {
    /// A fresh page of zeros, and what another process opens it by.
    pub fn create(name: &str) -> std::io::Result<(Self, ValidatedMemfd)> {
        let memfd = memfd::arena(name, BYTES).map_err(std::io::Error::other)?;
        let words = Self { mapping: Mapping::writable(&memfd)? };
        Ok((words, memfd))
    }

    /// A page that another process created.
    pub fn open(memfd: &ValidatedMemfd) -> std::io::Result<Self> {
        if memfd.bytes() != BYTES {
            let why = MemfdError::Size { bytes: memfd.bytes(), limit: BYTES };
            return Err(std::io::Error::other(why));
        }
        Ok(Self { mapping: Mapping::writable(memfd)? })
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: the mapping has `BYTES` bytes (both constructors made sure), is aligned to a page, readable and
        // writable, and lives as long as `self`. Any bytes are valid words, and atomics may be changed by others at any
        // time; nothing in this process reaches the mapping in another way, since `self` owns it.
        unsafe { &*self.mapping.base().cast::<[AtomicU64; WORDS]>() }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn both_sides_see_each_others_words() {
        let (ours, memfd) = SharedWords::create("words").unwrap();
        let theirs = SharedWords::open(&memfd).unwrap();
        assert!(theirs.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
        ours.words()[WORDS - 1].store(7, Ordering::Release);
        assert_eq!(theirs.words()[WORDS - 1].swap(8, Ordering::AcqRel), 7);
        assert_eq!(ours.words()[WORDS - 1].load(Ordering::Acquire), 8);
    }

    #[test]
    fn the_page_keeps_its_size() {
        let (_, memfd) = SharedWords::create("words").unwrap();
        for bytes in [0, 2 * BYTES] {
            assert!(rustix::fs::ftruncate(memfd.as_fd(), bytes).is_err());
        }
        assert!(SharedWords::open(&memfd::arena("large", 2 * BYTES).unwrap()).is_err());
    }
}
