//! One call of a function, built step by step; the same value may be sent any number of times.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pappus_proto::v1::item::Source;
use pappus_proto::v1::{self, request, response};
use pappus_shmem::ValidatedMemfd;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::requests::{answer, unexpected};

/// Where a piece of an input comes from.
#[derive(Debug, Clone)]
pub enum Item {
    /// Bytes that travel with the request; all of a call's together at most 1 MiB.
    Inline(Bytes),
    /// A region of an open arena.
    Region(v1::Region),
    /// All bytes of a sealed memfd (see [`memfd::sealed`](crate::memfd::sealed)).
    Sealed(Arc<ValidatedMemfd>),
}

impl From<v1::Region> for Item {
    fn from(region: v1::Region) -> Self {
        Self::Region(region)
    }
}

impl From<Bytes> for Item {
    fn from(bytes: Bytes) -> Self {
        Self::Inline(bytes)
    }
}

impl From<&[u8]> for Item {
    fn from(bytes: &[u8]) -> Self {
        Self::Inline(Bytes::copy_from_slice(bytes))
    }
}

impl From<Vec<u8>> for Item {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Inline(bytes.into())
    }
}

impl From<Arc<ValidatedMemfd>> for Item {
    fn from(memfd: Arc<ValidatedMemfd>) -> Self {
        Self::Sealed(memfd)
    }
}

/// One call of a function.
#[derive(Debug, Clone, Default)]
pub struct Invocation {
    message: v1::Invoke,
    /// In the order of their index in the message.
    memfds: Vec<Arc<ValidatedMemfd>>,
}

impl Invocation {
    /// A call of `function` without inputs and outputs.
    pub fn new(function: &str) -> Self {
        let message = v1::Invoke { function: function.into(), ..v1::Invoke::default() };
        Self { message, memfds: Vec::new() }
    }

    /// Adds an item to an input; several items of one input are concatenated.
    pub fn input(mut self, name: &str, item: impl Into<Item>) -> Self {
        let source = match item.into() {
            Item::Inline(bytes) => Source::Inline(bytes),
            Item::Region(region) => Source::Region(region),
            Item::Sealed(memfd) => {
                let index = self.memfds.len() as u32;
                let bytes = memfd.bytes();
                self.memfds.push(memfd);
                Source::Descriptor(v1::Descriptor { index, offset: 0, bytes })
            }
        };
        let item = v1::Item { source: Some(source) };
        match self.message.inputs.iter_mut().find(|input| input.name == name) {
            Some(input) => input.items.push(item),
            None => self.message.inputs.push(v1::Input { items: vec![item], ..input_named(name) }),
        }
        self
    }

    /// Says what an input holds: checked against what the function declares, and needed where it has free dimensions.
    /// `dtype` is a name such as `f32`; `shape` lists elements along each dimension, outermost first.
    pub fn typed(mut self, name: &str, dtype: &str, shape: &[u64]) -> Self {
        let r#type = Some(v1::ArrayType { dtype: dtype.into(), shape: shape.into() });
        match self.message.inputs.iter_mut().find(|input| input.name == name) {
            Some(input) => input.r#type = r#type,
            None => self.message.inputs.push(v1::Input { r#type, ..input_named(name) }),
        }
        self
    }

    /// True if the call names what belongs to one connection: an arena that an input or an output lies in, or a session.
    pub fn is_of_one_connection(&self) -> bool {
        let items = self.message.inputs.iter().flat_map(|input| &input.items);
        items.into_iter().any(|item| matches!(item.source, Some(Source::Region(_))))
            || self.message.outputs.iter().any(|output| output.region.is_some())
            || self.message.session != 0
    }

    /// An error for a call that can be made on one connection only.
    pub(crate) fn check_repeatable(&self) -> Result<()> {
        match self.is_of_one_connection() {
            false => Ok(()),
            true => Err(Error::Invalid(
                "a region or session belongs to one connection: open it and make the call in `SteadyClient::run`"
                    .into(),
            )),
        }
    }

    /// Asks for an output in the answer itself; all of a call's together at most 1 MiB.
    pub fn output(self, name: &str) -> Self {
        self.output_at(name, None)
    }

    /// Asks for an output in a region, which may overlap no other region of the call.
    pub fn output_to(self, name: &str, region: v1::Region) -> Self {
        self.output_at(name, Some(region))
    }

    /// Ends the call that long after its arrival; without, the supervisor's default holds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        // Zero would mean the default.
        self.message.deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX).max(1);
        self
    }

    /// Runs it on a cpu device with checks of every access to memory; only the function's owner may. All inputs and buffers
    /// are outputs then, and so is [`PRINTED`](crate::PRINTED).
    pub fn checked(mut self) -> Self {
        self.message.checked = true;
        self
    }

    /// Says for which [`version`](v1::FunctionInfo::version) of the function the call is made: it is refused, with the place
    /// `function_version`, where the function takes or gives something else by now.
    pub fn made_for(mut self, version: u64) -> Self {
        self.message.function_version = version;
        self
    }

    /// Puts the call into a [session](crate::Client::open_session), whose state it reads and changes.
    pub fn session(mut self, session: u64) -> Self {
        self.message.session = session;
        self
    }

    /// Names the request in the supervisor's log: at most 128 bytes of visible ASCII.
    pub fn request_id(mut self, id: &str) -> Self {
        self.message.request_id = id.into();
        self
    }

    /// The message, and the memfds that its descriptors stand for.
    pub(crate) fn into_parts(self) -> (v1::Invoke, Vec<Arc<ValidatedMemfd>>) {
        (self.message, self.memfds)
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.memfds.iter().map(|memfd| memfd.as_fd()).collect()
    }

    fn output_at(mut self, name: &str, region: Option<v1::Region>) -> Self {
        self.message.outputs.push(v1::Output { name: name.into(), region });
        self
    }
}

fn input_named(name: &str) -> v1::Input {
    v1::Input { name: name.into(), ..v1::Input::default() }
}

impl Client {
    /// Calls a function and waits for its end. A call with a deadline that is not answered by then, and within the client's
    /// patience behind it, fails: the supervisor is silent.
    pub fn invoke(&mut self, invocation: &Invocation) -> Result<v1::Invoked> {
        let fds = invocation.fds();
        answer!(self.call_function(invocation.message.clone(), &fds)?, Invoked)
    }

    /// Sends a call and returns its id, for [`Client::wait_invoked`] or [`Client::cancel`].
    pub fn send_invocation(&mut self, invocation: &Invocation) -> Result<u64> {
        self.send(request::Body::Invoke(invocation.message.clone()), &invocation.fds())
    }

    /// The end of a call that was sent.
    pub fn wait_invoked(&mut self, id: u64) -> Result<v1::Invoked> {
        answer!(self.wait(id)?, Invoked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_belong_to_a_connection() {
        let region = v1::Region { arena: 1, offset: 0, bytes: 8 };
        let calls = [Invocation::new("f").input("A", region), Invocation::new("f").output_to("B", region)];
        assert!(calls.iter().all(|call| call.is_of_one_connection() && call.check_repeatable().is_err()));
        assert!(Invocation::new("f").input("A", vec![1]).output("B").check_repeatable().is_ok());
    }

    #[test]
    fn items_of_one_input_stay_together_and_in_order() {
        let memfd = Arc::new(pappus_shmem::memfd::sealed("t", b"xyz").unwrap());
        let region = v1::Region { arena: 1, offset: 64, bytes: 3 };
        let call = Invocation::new("f")
            .input("A", vec![1])
            .input("B", region)
            .input("A", memfd.clone())
            .typed("A", "u8", &[2, 2])
            .output("C")
            .deadline(Duration::ZERO);
        let sources = |at: usize| -> Vec<Source> {
            let items = &call.message.inputs[at].items;
            items.iter().filter_map(|item| item.source.clone()).collect()
        };
        let descriptor = v1::Descriptor { index: 0, offset: 0, bytes: 3 };
        assert_eq!(sources(0), [Source::Inline(vec![1].into()), Source::Descriptor(descriptor)]);
        assert_eq!(sources(1), [Source::Region(region)]);
        let types =
            call.message.inputs.iter().map(|input| input.r#type.as_ref().map(|t| (&*t.dtype, &*t.shape)));
        assert_eq!(types.collect::<Vec<_>>(), [Some(("u8", &[2, 2][..])), None]);
        assert_eq!((call.memfds.len(), call.message.deadline_ns), (1, 1));
    }
}
