//! Threads decide commands to one worker with the scheduler locked, and take them to its channel after that.

#[path = "../../supervisor/src/device/command_order.rs"]
mod checked;

use loom::sync::{Arc, Mutex};
use loom::thread;

use self::checked::CommandOrder;

/// What carries commands out as they arrive.
trait Channel: Send + 'static {
    /// The command with this number arrives.
    fn arrive(&mut self, nth: u64, done: &mut Vec<u64>);
}

/// As a worker's channel does it.
struct Ordered(CommandOrder<u64>);

impl Channel for Ordered {
    fn arrive(&mut self, nth: u64, done: &mut Vec<u64>) {
        let mut next = self.0.admit(nth, nth).unwrap();
        while let Some(command) = next {
            done.push(command);
            next = self.0.take_next();
        }
    }
}

/// The control.
struct AsTheyCome;

impl Channel for AsTheyCome {
    fn arrive(&mut self, nth: u64, done: &mut Vec<u64>) {
        done.push(nth);
    }
}

fn two_threads_decide<C: Channel>(new: fn() -> C) {
    loom::model(move || {
        let decided = Arc::new(Mutex::new(0));
        let channel = Arc::new(Mutex::new((new(), Vec::new())));
        let decide_twice = {
            let (decided, channel) = (decided.clone(), channel.clone());
            move || {
                for _ in 0..2 {
                    let nth = {
                        let mut decided = decided.lock().unwrap();
                        *decided += 1;
                        *decided - 1
                    };
                    let (channel, done) = &mut *channel.lock().unwrap();
                    channel.arrive(nth, done);
                }
            }
        };
        let other = thread::spawn(decide_twice.clone());
        decide_twice();
        other.join().unwrap();
        assert_eq!(channel.lock().unwrap().1, [0, 1, 2, 3], "commands as they were carried out");
    });
}

#[test]
fn commands_are_carried_out_in_the_order_in_which_they_were_decided() {
    two_threads_decide(|| Ordered(CommandOrder::new()));
}

#[test]
#[should_panic(expected = "commands as they were carried out")]
fn control_commands_as_they_come_are_out_of_order() {
    two_threads_decide(|| AsTheyCome);
}
