//! The ancestors' design: worker processes, each serving one request after the other. A request loads its
//! module, places its buffers in one pool by bumping an offset, copies its inputs in from ordinary memory,
//! launches kernel by kernel, copies the output out, clears the memory that it used and unloads the module.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::cuda::{Buffer, Gpu};
use super::loops::Rate;
use super::work::{Request, Work};
use crate::Result;
use crate::harness::sampling::nanoseconds;

/// The pool of a worker; the ancestors take all the memory they can get.
const POOL_BYTES: usize = 1 << 30;
/// A worker's start, or one request: more means that it hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const WARM_UP: u32 = 3;

/// Be a worker: a byte on standard input is a request, a byte on standard output its answer.
pub fn serve(gpu: &Gpu, work: Work) -> Result<()> {
    let code = gpu.code(work.module())?;
    let pool = Buffer::new(POOL_BYTES)?;
    let mut request = Request::new(work);
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    output.write_all(b"r")?;
    output.flush()?;
    while input.read(&mut [0; 1])? == 1 {
        request.run(gpu, &code, &pool)?;
        output.write_all(b"d")?;
        output.flush()?;
    }
    Ok(())
}

/// A worker process; it is killed and reaped on drop.
#[derive(Debug)]
struct Worker {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Worker {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (to, from) = child.stdin.take().zip(child.stdout.take()).ok_or("a child without its pipes")?;
        Ok(Self { child, to, from })
    }

    fn request(&mut self) -> Result<()> {
        self.to.write_all(b"r")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<()> {
        let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&patience))? == 0 {
            return Err("a worker of the ancestors' design has not answered for 30 s".into());
        }
        match self.from.read(&mut [0; 1])? {
            1 => Ok(()),
            _ => Err("a worker of the ancestors' design ended; its error is above".into()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Requests a second of `workers` processes that `command` starts, each kept busy.
pub fn measure(workers: usize, measured: Duration, command: impl Fn() -> Result<Command>) -> Result<Rate> {
    let mut processes = Vec::with_capacity(workers);
    for _ in 0..workers {
        processes.push(Worker::start(command()?)?);
    }
    // All of them start at the same time; then all of them are ready.
    for process in &mut processes {
        process.answer()?;
    }
    for process in &mut processes {
        (0..WARM_UP).try_for_each(|_| process.request())?;
    }
    let end = Instant::now() + measured;
    let counted = std::thread::scope(|scope| {
        let threads: Vec<_> = processes
            .iter_mut()
            .map(|process| scope.spawn(move || keep_busy(process, end).map_err(|e| e.to_string())))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        let flat = joined.map(|result| result.unwrap_or_else(|_| Err("a thread panicked".into())));
        flat.collect::<Result<Vec<Histogram<u64>>, String>>()
    })?;
    let mut latencies = Histogram::new(3)?;
    counted.iter().try_for_each(|one| latencies.add(one))?;
    Ok(Rate::new(workers, workers, latencies.len(), measured, &latencies))
}

fn keep_busy(process: &mut Worker, end: Instant) -> Result<Histogram<u64>> {
    let mut latencies = Histogram::new(3)?;
    loop {
        let start = Instant::now();
        process.request()?;
        if Instant::now() >= end {
            return Ok(latencies);
        }
        latencies.record(nanoseconds(start))?;
    }
}
