//! Calls over the supervisor's socket. Little data travels with a call; what is more lies in an arena of the tenant, the inputs
//! once, and outputs for each call that is on its way.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use pappus_client::arena::{Arena, aligned};
use pappus_client::{Client, Error, Invocation, aio, v1};

use super::drive::Target;
use super::tally::CallError;
use crate::arguments::InvokeArguments;
use crate::command::invoke::data::{Data, Output};
use crate::failure::Result;

/// Inputs and outputs of this size together travel with a call.
const INLINE_BYTES: u64 = 64 << 10;
/// Tenants of one connection, each of which may open two of its arenas.
const TENANTS_PER_CONNECTION: usize = 32;
/// Outputs of calls that have room from the beginning, together. Devices pin arenas, which takes a while and keeps others waiting:
/// room for all calls that may be on their way is made when so many are.
const FIRST_BYTES: u64 = 64 << 20;
/// How long a supervisor may take for an answer behind a call's deadline.
const PATIENCE: Duration = Duration::from_secs(10);

/// A function's call, without the places of its data.
#[derive(Debug)]
struct Template {
    function: String,
    types: Vec<(String, &'static str, Vec<u64>)>,
    outputs: Vec<(String, u64)>,
}

impl Template {
    /// What the outputs take of an arena.
    fn output_bytes(&self) -> u64 {
        self.outputs.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(aligned(*bytes)))
    }
}

/// What all tenants call.
#[derive(Debug)]
pub(super) struct Work {
    templates: Vec<Template>,
    inputs: Vec<(String, Vec<u8>)>,
}

impl Work {
    /// Asks what the functions take and give, and reads the inputs. Of another tenant's function, a call asks how large its outputs are,
    /// where nothing else tells.
    pub(super) fn prepare(client: &mut Client, calls: &[InvokeArguments]) -> Result<Self> {
        let mut work = Self { templates: Vec::new(), inputs: Vec::new() };
        for arguments in calls {
            let data = Data::prepare(client, arguments)?;
            if work.templates.is_empty() {
                work.inputs = data.contents()?;
            }
            // Each call on its way has room of its own, which is not to be a guess. A call that fails is one of those measured.
            let answer = match data.asks_for_sizes() {
                true => client.invoke(&data.invocation(&arguments.name)).ok(),
                false => None,
            };
            let bytes = |output: &Output| match &answer {
                Some(answer) => output.bytes(answer),
                None => output.region.bytes,
            };
            work.templates.push(Template {
                function: arguments.name.clone(),
                types: data.types().collect(),
                outputs: data.outputs.iter().map(|output| (output.name.clone(), bytes(output))).collect(),
            });
            client.close_arena(data.arena)?;
        }
        Ok(work)
    }

    fn most_output_bytes(&self) -> u64 {
        self.templates.iter().map(Template::output_bytes).max().unwrap_or_default()
    }

    /// True if the data travels with the calls.
    fn is_inline(&self) -> bool {
        let inputs: u64 = self.inputs.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        inputs.saturating_add(self.most_output_bytes()) <= INLINE_BYTES
    }
}

/// A tenant's connection, which it may share, and its data.
#[derive(Debug)]
struct Seat {
    client: aio::Client,
    /// One for each function, with its inputs.
    calls: Vec<Invocation>,
    /// Where outputs go; none where they travel.
    room: Option<Room>,
}

/// Room for the outputs of a tenant's calls.
#[derive(Debug)]
struct Room {
    /// Of one call.
    bytes: u64,
    /// Of calls that are not on their way now.
    free: RefCell<Vec<v1::Region>>,
    /// Calls that have no room yet, and what keeps the memory of those that have.
    rest: tokio::sync::Mutex<(u32, Vec<Arena>)>,
}

impl Room {
    /// Room in an arena for some of the calls that may be on their way.
    fn new(mut arena: Arena, bytes: u64, first: u32, in_flight: u32) -> std::result::Result<Self, Error> {
        let free = (0..first).map(|_| arena.alloc(bytes)).collect::<std::result::Result<_, Error>>()?;
        Ok(Self { bytes, free: RefCell::new(free), rest: (in_flight - first, vec![arena]).into() })
    }

    /// Where the outputs of one call more go; none where answers that never came hold all of it.
    async fn take(&self, client: &aio::Client) -> std::result::Result<Option<v1::Region>, Error> {
        if let Some(place) = self.free.borrow_mut().pop() {
            return Ok(Some(place));
        }
        let mut rest = self.rest.lock().await;
        let count = rest.0;
        if count > 0 && self.free.borrow().is_empty() {
            let mut arena = client.open_arena(self.bytes.saturating_mul(count.into())).await?;
            let places: Vec<_> =
                (0..count).map(|_| arena.alloc(self.bytes)).collect::<std::result::Result<_, Error>>()?;
            self.free.borrow_mut().extend(places);
            rest.0 = 0;
            rest.1.push(arena);
        }
        Ok(self.free.borrow_mut().pop())
    }

    /// A call is over.
    fn give_back(&self, place: v1::Region) {
        self.free.borrow_mut().push(place);
    }
}

/// The seats of all tenants.
#[derive(Debug)]
pub(super) struct Socket {
    work: Work,
    seats: Vec<Seat>,
}

impl Socket {
    /// Connects for each of these tokens; without one, as the user.
    pub(super) async fn connect(
        path: &Path,
        tokens: &[Option<String>],
        work: Work,
        in_flight: u32,
    ) -> Result<Self> {
        let mut socket = Self { work, seats: Vec::new() };
        for tokens in tokens.chunks(TENANTS_PER_CONNECTION) {
            let connection = aio::Client::connect_once(path, PATIENCE).await?;
            for token in tokens {
                let client = match token {
                    Some(token) => connection.acting_for(token.clone().into_bytes()),
                    None => connection.clone(),
                };
                let seat = socket.seat(client, in_flight).await?;
                socket.seats.push(seat);
            }
        }
        Ok(socket)
    }

    async fn seat(&self, client: aio::Client, in_flight: u32) -> Result<Seat> {
        let work = &self.work;
        let templates = work.templates.iter().map(|template| {
            let typed = |call: Invocation, (name, dtype, shape): &(String, &str, Vec<u64>)| {
                call.typed(name, dtype, shape)
            };
            template.types.iter().fold(Invocation::new(&template.function), typed)
        });
        if work.is_inline() {
            let calls = templates.zip(&work.templates).map(|(call, template)| {
                let inputs =
                    work.inputs.iter().map(|(name, bytes)| (name, bytes::Bytes::from(bytes.clone())));
                let call = inputs.fold(call, |call, (name, bytes)| call.input(name, bytes));
                template.outputs.iter().fold(call, |call, (name, _)| call.output(name))
            });
            return Ok(Seat { calls: calls.collect(), client, room: None });
        }
        let inputs = work.inputs.iter().map(|(_, bytes)| aligned(bytes.len() as u64)).sum::<u64>();
        let outputs = work.most_output_bytes();
        let first = (FIRST_BYTES / outputs.max(1)).clamp(1, in_flight.into()) as u32;
        let all = outputs.saturating_mul(first.into()).saturating_add(inputs);
        let mut arena = client.open_arena(all.max(aligned(1))).await?;
        let mut regions = Vec::new();
        for (name, bytes) in &work.inputs {
            regions.push((name, arena.store(bytes)?));
        }
        let calls =
            templates.map(|call| regions.iter().fold(call, |call, (name, region)| call.input(name, *region)));
        let calls = calls.collect();
        Ok(Seat { client, calls, room: Some(Room::new(arena, outputs, first, in_flight)?) })
    }
}

impl Target for Socket {
    async fn call(&self, tenant: usize, number: u64, left: Duration) -> std::result::Result<(), CallError> {
        let seat = &self.seats[tenant];
        let which = (number % seat.calls.len() as u64) as usize;
        let mut call = seat.calls[which].clone().deadline(left);
        let failed = |why: Error| CallError { code: code(&why).to_owned(), said: why.to_string() };
        let place = match &seat.room {
            Some(room) => room.take(&seat.client).await.map_err(failed)?,
            None => None,
        };
        if let Some(place) = place {
            let mut offset = place.offset;
            for (name, bytes) in &self.work.templates[which].outputs {
                call = call.output_to(name, v1::Region { offset, bytes: *bytes, ..place });
                offset += aligned(*bytes);
            }
        }
        let answer = seat.client.invoke(call).await;
        // Where the supervisor is silent it may write there yet.
        if let (Some(room), Some(place), false) =
            (&seat.room, place, matches!(answer, Err(Error::Silent { .. })))
        {
            room.give_back(place);
        }
        answer.map(drop).map_err(failed)
    }
}

/// The class of an error.
fn code(why: &Error) -> &'static str {
    match why {
        Error::Refused(error) => error.code().as_str_name(),
        Error::Silent { .. } => "NO_ANSWER",
        Error::Lost => "CONNECTION_LOST",
        _ => "CLIENT_ERROR",
    }
}
