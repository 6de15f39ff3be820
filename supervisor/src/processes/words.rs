//! What workers write to their standard error, such as a panic: a pipe, which the supervisor reads and logs line by line. No process has the log itself, which it could empty, overwrite or fill; nor can a line of it pass for the supervisor's.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;

use rustix::event::Timespec;
use rustix::fs::OFlags;

/// Longer lines are told in pieces.
const MAX_LINE: u64 = 4096;
/// Lines that are read before a pause.
const BURST: u32 = 64;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// A pipe for processes to write to, in which a process loses what finds no room: none waits for what others write. A thread passes
/// each line to `tell` until no process has the pipe.
pub(super) fn listen(tell: impl FnMut(&str) + Send + 'static) -> std::io::Result<OwnedFd> {
    let (read, write) = std::io::pipe()?;
    rustix::fs::fcntl_setfl(&write, OFlags::NONBLOCK)?;
    std::thread::Builder::new().name("words".into()).spawn(move || pass_on(read, tell))?;
    Ok(write.into())
}

fn pass_on(words: impl Read, mut tell: impl FnMut(&str)) {
    let mut words = BufReader::new(words);
    let (mut line, mut burst) = (Vec::new(), 0);
    loop {
        line.clear();
        match words.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => burst += 1,
        }
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        if !text.is_empty() {
            tell(&text.escape_debug().to_string());
        }
        if burst == BURST {
            burst = 0;
            // Whether it ends early does not matter.
            let _ = rustix::event::poll(&mut [], Some(&PAUSE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_told_as_text_and_none_is_long() {
        let mut told = Vec::new();
        let long = "x".repeat(MAX_LINE as usize + 1);
        let words = format!("thread panicked\n\n\u{1b}[2J{long}\nlast");
        pass_on(words.as_bytes(), |line| told.push(line.to_owned()));
        assert_eq!(told[0], "thread panicked");
        assert!(told[1].starts_with("\\u{1b}[2J"), "{}", told[1]);
        assert!(told.iter().all(|line| line.len() <= 2 * MAX_LINE as usize));
        assert_eq!(told.last().unwrap(), "last");
    }

    #[test]
    fn nobody_waits_for_the_reader_who_ends_with_the_last_process() {
        let (to, from) = std::sync::mpsc::channel();
        let pipe = listen(move |line| to.send(line.to_owned()).unwrap()).unwrap();
        rustix::io::write(&pipe, b"a word\n").unwrap();
        assert_eq!(from.recv().unwrap(), "a word");
        let full = (0..1 << 12).any(|_| rustix::io::write(&pipe, &[b'x'; 1 << 12]).is_err());
        assert!(full, "who writes more than is read waits");
        drop(pipe);
        // It ends where nobody tells any more.
        assert!(from.iter().all(|line| line.starts_with('x')));
    }
}
