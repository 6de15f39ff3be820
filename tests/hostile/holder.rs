//! Keeps the inode of a file locked, which comes as its standard input, for as long as it lives: it writes to the file from a
//! page that is never there, and says `held`. The kernel takes the inode's lock, faults the page in with it held, and asks this program for the
//! content (`userfaultfd`), which does not answer. A tenant needs no privilege for the same where it may mount a file system of
//! its own (FUSE) and maps a file of that.

use std::io::{Error, Write};

/// The protocol's version, and its two requests on x86-64 and ARM: `UFFDIO_API`, `UFFDIO_REGISTER`.
const API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
/// Pages that are not there are asked for.
const MISSING: u64 = 1;
const PAGE: usize = 4096;
/// Bytes in which the kernel asks for a page.
const MESSAGE: usize = 32;

fn main() -> Result<(), Error> {
    // SAFETY: takes flags only.
    let asked = unsafe { libc::syscall(libc::SYS_userfaultfd, 0) };
    let asked = i32::try_from(done(asked)?).map_err(Error::other)?;
    // SAFETY: a new private mapping where the kernel has room; nothing else is unmapped for it.
    let page = unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    let mut api = [API, 0, 0];
    // SAFETY: the kernel reads and writes three words, which is what there is.
    done(unsafe { libc::ioctl(asked, UFFDIO_API as _, &mut api) }.into())?;
    let mut register = [page as u64, PAGE as u64, MISSING, 0];
    // SAFETY: the kernel reads and writes four words, which is what there is, and watches the mapping made above.
    done(unsafe { libc::ioctl(asked, UFFDIO_REGISTER as _, &mut register) }.into())?;
    let address = page as usize;
    let writing = std::thread::spawn(move || {
        // SAFETY: the kernel reads from a mapping of so many bytes, which lives as long as this process.
        unsafe { libc::write(libc::STDIN_FILENO, address as *const _, PAGE) }
    });
    let mut message = [0; MESSAGE];
    // SAFETY: the kernel writes as many bytes as there are at most.
    done(unsafe { libc::read(asked, message.as_mut_ptr().cast(), MESSAGE) } as i64)?;
    // The other thread asked for the page, so it has the lock.
    println!("held");
    std::io::stdout().flush()?;
    let written = writing.join().map_err(|_| Error::other("the writing thread panicked"))?;
    Err(Error::other(format!("the page came: {written} bytes are written")))
}

fn done(result: i64) -> Result<i64, Error> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}
