//! Memfds: created sealed here, judged when they come from a client.
//!
//! Seals are what makes mapping a stranger's memory safe: a file that can shrink turns every later
//! access into `SIGBUS`. Punched holes read as zeros and rewritten bytes are the client's own loss.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::fs::{FallocateFlags, FileType, MemfdFlags, OFlags, SealFlags};

/// Why a descriptor is refused, in words for the client that passed it.
#[derive(Debug, thiserror::Error)]
pub enum MemfdError {
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// What the kernel answered.
        source: rustix::io::Errno,
    },
    /// Seals are asked of every descriptor; only memfds have them.
    #[error("the descriptor is no memfd: create it with memfd_create(MFD_ALLOW_SEALING)")]
    NotMemfd,
    /// Memory from hugetlbfs can fault with `SIGBUS` at any touch.
    #[error("the memfd lives in huge pages (MFD_HUGETLB): use ordinary pages")]
    HugePages,
    /// Opened without the access that is needed.
    #[error("the memfd is not open for {0}")]
    Access(&'static str),
    /// A seal is missing.
    #[error("the memfd lacks the seals {missing}: add them with fcntl(F_ADD_SEALS) before passing it")]
    Unsealed {
        /// Names of the missing seals.
        missing: &'static str,
    },
    /// An arena that cannot be written has no use.
    #[error("the memfd is sealed against writing, but an arena must take outputs")]
    WriteSealed,
    /// Empty or too large.
    #[error("the memfd has {bytes} bytes, allowed are 1 to {limit}")]
    Size {
        /// Its size.
        bytes: u64,
        /// The most that is allowed.
        limit: u64,
    },
}

fn sys(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> MemfdError {
    move |source| MemfdError::System { call, source }
}

/// A memfd that passed its checks; its size can no longer change.
#[derive(Debug)]
pub struct ValidatedMemfd {
    fd: OwnedFd,
    bytes: u64,
}

impl ValidatedMemfd {
    /// Size in bytes, fixed by the seals.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the memfd from the start, without mapping. The file's position is neither used nor changed: its sender shares
    /// the position, and could keep it locked by a `read` that does not end.
    pub fn reader(&self) -> MemfdReader<'_> {
        MemfdReader { fd: self.fd.as_fd(), offset: 0, end: self.bytes }
    }

    /// Reads at `offset` without mapping, so that no fault can reach this process.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        read_exact_at(self.fd.as_fd(), offset, out)
    }
}

/// Reads a memfd from its start to its end.
#[derive(Debug)]
pub struct MemfdReader<'a> {
    fd: BorrowedFd<'a>,
    offset: u64,
    end: u64,
}

impl std::io::Read for MemfdReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let most = out.len().min(left);
        let read = rustix::io::pread(self.fd, &mut out[..most], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl AsFd for ValidatedMemfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Fills `out` from `offset`; a short file is an error, never a panic.
pub fn read_exact_at(fd: BorrowedFd<'_>, mut offset: u64, mut out: &mut [u8]) -> std::io::Result<()> {
    while !out.is_empty() {
        match rustix::io::pread(fd, &mut *out, offset) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(fd: BorrowedFd<'_>, mut offset: u64, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, offset) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Gives the memory of a range back: it reads as zeros from now on, also where it is mapped.
///
/// `rustix` declares the system call as one that writes no memory, by which an optimised build could answer a read behind it with
/// what this process wrote before: hence the fence.
pub fn punch_hole(memfd: impl AsFd, offset: u64, bytes: u64) -> std::io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(memfd, flags, offset, bytes)?;
    compiler_fence(Ordering::SeqCst);
    Ok(())
}

/// An arena: a writable memfd of `bytes` zeros whose size is sealed.
pub fn arena(name: &str, bytes: u64) -> Result<ValidatedMemfd, MemfdError> {
    let fd = create(name)?;
    rustix::fs::ftruncate(&fd, bytes).map_err(sys("ftruncate"))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(sys("fcntl(F_ADD_SEALS)"))?;
    Ok(ValidatedMemfd { fd, bytes })
}

/// A memfd that holds `content` and can never change again.
pub fn sealed(name: &str, content: &[u8]) -> Result<ValidatedMemfd, MemfdError> {
    let mut file = File::from(create(name)?);
    file.write_all(content).map_err(io("write"))?;
    seal(file)
}

/// A memfd of `bytes` that `fill` writes and that can never change again.
pub fn sealed_from(
    name: &str,
    bytes: u64,
    fill: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<ValidatedMemfd, MemfdError> {
    let mut file = File::from(create(name)?);
    rustix::fs::ftruncate(&file, bytes).map_err(sys("ftruncate"))?;
    fill(&mut file).map_err(io("fill"))?;
    seal(file)
}

/// Seals a memfd for good once it is complete.
fn seal(mut file: File) -> Result<ValidatedMemfd, MemfdError> {
    let bytes = file.seek(SeekFrom::End(0)).map_err(io("lseek"))?;
    file.rewind().map_err(io("lseek"))?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    )
    .map_err(sys("fcntl(F_ADD_SEALS)"))?;
    Ok(ValidatedMemfd { fd: file.into(), bytes })
}

fn io(call: &'static str) -> impl FnOnce(std::io::Error) -> MemfdError {
    move |e| MemfdError::System {
        call,
        source: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
    }
}

fn create(name: &str) -> Result<OwnedFd, MemfdError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL (Linux 6.3) takes the execute bit away for good; older kernels answer EINVAL.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
    .map_err(sys("memfd_create"))
}

/// A descriptor that is not accepted: whoever got it decides which thread closes it, since that may take long where it
/// is no memfd.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub why: MemfdError,
    /// The descriptor.
    pub fd: OwnedFd,
}

/// Accepts a client's arena: readable, writable, of a size that can no longer change.
pub fn judge_arena(fd: OwnedFd, limit: u64) -> Result<ValidatedMemfd, MemfdError> {
    take_arena(fd, limit).map_err(|rejected| rejected.why)
}

/// As [`judge_arena`]; gives back what it does not accept. No system call here waits for a file system.
pub fn take_arena(fd: OwnedFd, limit: u64) -> Result<ValidatedMemfd, Rejected> {
    accept(fd, |fd| check_arena(fd, limit))
}

fn check_arena(fd: &OwnedFd, limit: u64) -> Result<u64, MemfdError> {
    let seals = seals_of(fd)?;
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(MemfdError::WriteSealed);
    }
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK and F_SEAL_GROW" });
    }
    if access_mode(fd)? != OFlags::RDWR {
        return Err(MemfdError::Access("reading and writing"));
    }
    size_of(fd, limit)
}

/// Accepts a client's one-off input: readable and sealed against any change.
pub fn judge_sealed(fd: OwnedFd, limit: u64) -> Result<ValidatedMemfd, MemfdError> {
    take_sealed(fd, limit).map_err(|rejected| rejected.why)
}

/// As [`judge_sealed`]; gives back what it does not accept. No system call here waits for a file system.
pub fn take_sealed(fd: OwnedFd, limit: u64) -> Result<ValidatedMemfd, Rejected> {
    accept(fd, |fd| check_sealed(fd, limit))
}

fn accept(
    fd: OwnedFd,
    check: impl FnOnce(&OwnedFd) -> Result<u64, MemfdError>,
) -> Result<ValidatedMemfd, Rejected> {
    match check(&fd) {
        Ok(bytes) => Ok(ValidatedMemfd { fd, bytes }),
        Err(why) => Err(Rejected { why, fd }),
    }
}

fn check_sealed(fd: &OwnedFd, limit: u64) -> Result<u64, MemfdError> {
    if !seals_of(fd)?.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE) {
        return Err(MemfdError::Unsealed { missing: "F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE" });
    }
    if access_mode(fd)? == OFlags::WRONLY {
        return Err(MemfdError::Access("reading"));
    }
    size_of(fd, limit)
}

fn access_mode(fd: &OwnedFd) -> Result<OFlags, MemfdError> {
    Ok(rustix::fs::fcntl_getfl(fd).map_err(sys("fcntl(F_GETFL)"))? & OFlags::RWMODE)
}

fn seals_of(fd: &OwnedFd) -> Result<SealFlags, MemfdError> {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| MemfdError::NotMemfd)?;
    if rustix::fs::fstatfs(fd).map_err(sys("fstatfs"))?.f_type as i64 == HUGETLBFS_MAGIC {
        return Err(MemfdError::HugePages);
    }
    Ok(seals)
}

fn size_of(fd: &OwnedFd, limit: u64) -> Result<u64, MemfdError> {
    let stat = rustix::fs::fstat(fd).map_err(sys("fstat"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(MemfdError::NotMemfd);
    }
    let bytes = stat.st_size as u64;
    if bytes == 0 || bytes > limit {
        return Err(MemfdError::Size { bytes, limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn refused(fd: OwnedFd, words: &str) {
        let why = judge_arena(fd, MIB).expect_err("must be refused").to_string();
        assert!(why.contains(words), "{why}");
    }

    fn plain(flags: MemfdFlags, bytes: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("t", flags | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    #[test]
    fn a_reader_leaves_the_position_alone() {
        let sealed = sealed("s", b"0123456789").unwrap();
        rustix::fs::seek(&sealed, rustix::fs::SeekFrom::Start(3)).unwrap();
        let mut whole = Vec::new();
        std::io::Read::read_to_end(&mut sealed.reader(), &mut whole).unwrap();
        assert_eq!(whole, b"0123456789");
        assert_eq!(rustix::fs::tell(&sealed).unwrap(), 3);
    }

    #[test]
    fn own_arenas_pass_the_check_for_arenas() {
        let arena = arena("a", 4096).unwrap();
        assert_eq!(judge_arena(arena.fd, MIB).unwrap().bytes(), 4096);
    }

    #[test]
    fn each_bad_arena_is_told_what_is_wrong() {
        refused(plain(MemfdFlags::empty(), 4096), "F_SEAL_SHRINK");
        refused(arena("big", 2 * MIB).unwrap().fd, "allowed are 1 to 1048576");
        refused(arena("empty", 0).unwrap().fd, "allowed are 1 to");
        refused(sealed("ro", b"x").unwrap().fd, "sealed against writing");
        refused(File::open("/proc/self/exe").unwrap().into(), "no memfd");
        refused(File::open("/").unwrap().into(), "no memfd");
        refused(std::os::unix::net::UnixStream::pair().unwrap().0.into(), "no memfd");
        let arena = arena("a", 4096).unwrap();
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", arena.fd.as_raw_fd());
        refused(File::open(path).unwrap().into(), "not open for reading and writing");
    }

    #[test]
    fn one_off_inputs_must_be_sealed_against_change() {
        assert_eq!(judge_sealed(sealed("s", b"abc").unwrap().fd, MIB).unwrap().bytes(), 3);
        let why = judge_sealed(arena("a", 4096).unwrap().fd, MIB).unwrap_err().to_string();
        assert!(why.contains("F_SEAL_WRITE"), "{why}");
    }

    #[test]
    fn a_sealed_memfd_cannot_change() {
        let s = sealed("s", b"abc").unwrap();
        assert!(write_all_at(s.as_fd(), 0, b"x").is_err());
        assert!(rustix::fs::ftruncate(&s, 1).is_err());
        let mut out = [0; 3];
        s.read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"abc");
        assert!(s.read_at(1, &mut out).is_err());
    }
}
