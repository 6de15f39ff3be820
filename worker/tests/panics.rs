//! A panic on any thread ends the process, with the exit code that says so and one line in the log.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use pappus_protocol::launch::EXIT_PANICKED;

/// Set for the process that panics: which of its threads does.
const THREAD: &str = "PANIC_ON_THREAD";

/// Only in a process of its own.
fn panic_on(thread: &str) {
    pappus_worker::end_on_panic();
    if thread == "another" {
        let _ = std::thread::spawn(|| panic!("on another\nthread")).join();
        // A process that goes on behind the panic would end well.
        std::process::exit(0);
    }
    panic!("on the same thread");
}

#[test]
fn a_panic_on_any_thread_ends_the_process_with_its_exit_code_and_one_line() {
    if let Ok(thread) = std::env::var(THREAD) {
        panic_on(&thread);
    }
    for (thread, said) in [("same", "on the same thread"), ("another", "on another thread")] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "a_panic_on_any_thread_ends_the_process_with_its_exit_code_and_one_line";
        let ended = command.args(["--exact", test, "--nocapture"]).env(THREAD, thread).output().unwrap();
        assert_eq!(ended.status.code(), Some(EXIT_PANICKED.into()), "{thread}");
        let log = String::from_utf8(ended.stderr).unwrap();
        let lines: Vec<_> = log.lines().filter(|line| line.starts_with("pappus-worker: panicked")).collect();
        assert!(matches!(lines[..], [line] if line.ends_with(said)), "{log}");
    }
}
