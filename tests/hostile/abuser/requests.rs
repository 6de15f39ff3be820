//! Requests of the grammar as bytes. Some are no message that a client library could encode.

use std::time::Duration;

use pappus_client::v1::{self, item, request};
use pappus_proto::frame::HEADER_BYTES;
use pappus_proto::handshake::Greeting;

use super::functions::{Parts, sha256};
use super::grammar::{Ask, Call, Hollow, Input, Output};

/// What requests refer to.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) functions: Vec<Parts>,
    pub(crate) module: Vec<u8>,
}

/// What a connection did last.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Last {
    /// The id of its request.
    pub(crate) request: u64,
    /// The arena that it opened; 0 is none.
    pub(crate) arena: u64,
}

/// Bytes of an output's region, more than any of these functions writes.
const REGION_BYTES: u64 = 1 << 16;

/// The greeting, and whom what follows is from.
pub(crate) fn greeting(token: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Greeting::OURS.encode().to_vec();
    if let Some(token) = token {
        let act = v1::ActFor { token: token.to_vec().into() };
        bytes.extend(encoded(1, request::Body::ActFor(act), 0));
    }
    bytes
}

/// A request's frame.
pub(crate) fn frame(ask: &Ask, id: u64, descriptors: usize, last: Last, known: &Known) -> Vec<u8> {
    match body(ask, last, known) {
        Some(body) => encoded(id, body, descriptors),
        None => by_hand(id, &raw(ask)),
    }
}

/// A request's frame, however long.
pub(crate) fn encoded(id: u64, body: request::Body, descriptors: usize) -> Vec<u8> {
    let request = v1::Request { id, body: Some(body), ..Default::default() };
    let mut message = Vec::new();
    prost::Message::encode(&request, &mut message).unwrap_or_default();
    framed(&message, descriptors)
}

fn framed(message: &[u8], descriptors: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + message.len());
    bytes.extend((message.len() as u32).to_le_bytes());
    bytes.extend([descriptors.min(255) as u8, 0, 0, 0]);
    bytes.extend(message);
    bytes
}

fn body(ask: &Ask, last: Last, known: &Known) -> Option<request::Body> {
    use request::Body;
    let name = |name: &String| v1::Name { name: name.clone() };
    let page = || v1::Page { after: String::new() };
    let grant = |tenant: &String| v1::Grant { function: "copy".into(), tenant: tenant.clone() };
    let variant =
        || v1::Variant { format: "wasm".into(), arch: String::new(), sha256: sha256(&known.module).into() };
    Some(match ask {
        Ask::Nothing | Ask::Unknown | Ask::Hollow(..) => return None,
        Ask::Status => Body::Status(v1::Empty {}),
        Ask::Quota => Body::Quota(v1::Empty {}),
        Ask::List => Body::ListFunctions(page()),
        Ask::ListModules => Body::ListModules(page()),
        Ask::ListGrants => Body::ListGrants(v1::Name { name: "copy".into() }),
        Ask::Tenants => Body::ListTenants(page()),
        Ask::Settings => Body::Settings(v1::Settings::default()),
        Ask::Reload => Body::Reload(v1::Empty {}),
        Ask::Show(function) => Body::ShowFunction(name(function)),
        Ask::Put(bytes, salt) => Body::PutBlob(v1::PutBlob { inline: content(*bytes, *salt).into() }),
        Ask::PutDescriptor => Body::PutBlob(v1::PutBlob::default()),
        Ask::Add(function, name) => Body::AddFunction(parts(function, known)?.named(name, &known.module)),
        Ask::Replace(function, name) => {
            let function = parts(function, known)?.named(name, &known.module);
            Body::AddFunction(v1::AddFunction { replace: true, ..function })
        }
        Ask::Remove(function) => Body::RemoveFunction(name(function)),
        Ask::Module(name) => Body::AddModule(v1::AddModule { name: name.clone(), variants: vec![variant()] }),
        Ask::RemoveModule(module) => Body::RemoveModule(name(module)),
        Ask::Grant(tenant) => Body::Grant(grant(tenant)),
        Ask::Revoke(tenant) => Body::Revoke(grant(tenant)),
        Ask::OpenArena => Body::OpenArena(v1::OpenArena {}),
        Ask::CloseArena => Body::CloseArena(v1::CloseArena { arena: last.arena }),
        Ask::Call(call) => Body::Invoke(invoke(call, last)),
        Ask::Cancel => Body::Cancel(v1::Cancel { request: last.request }),
        Ask::Token(bytes) => Body::ActFor(v1::ActFor { token: vec![b'x'; *bytes].into() }),
    })
}

fn parts<'a>(function: &str, known: &'a Known) -> Option<&'a Parts> {
    known.functions.iter().find(|parts| parts.name == function)
}

/// So many bytes, different for every salt if long enough.
fn content(bytes: usize, salt: u64) -> Vec<u8> {
    let mut content = vec![0; bytes];
    let salt = salt.to_le_bytes();
    let common = bytes.min(salt.len());
    content[..common].copy_from_slice(&salt[..common]);
    content
}

fn invoke(call: &Call, last: Last) -> v1::Invoke {
    let inline = |bytes: usize| v1::Item { source: Some(item::Source::Inline(vec![1; bytes].into())) };
    let region = |offset, bytes| v1::Region { arena: last.arena, offset, bytes };
    let items = match call.input {
        Input::None => vec![],
        Input::Inline(bytes) => vec![inline(bytes)],
        Input::Items(count) => vec![inline(1); count],
        Input::Descriptors => {
            let descriptor = v1::Descriptor { index: 0, offset: 0, bytes: 1 };
            vec![v1::Item { source: Some(item::Source::Descriptor(descriptor)) }]
        }
        Input::Arena(bytes) => {
            vec![v1::Item { source: Some(item::Source::Region(region(REGION_BYTES, bytes))) }]
        }
    };
    let outputs = match call.output {
        Output::None => vec![],
        Output::Inline => vec![v1::Output { name: "out".into(), region: None }],
        Output::Arena => vec![v1::Output { name: "out".into(), region: Some(region(0, REGION_BYTES)) }],
    };
    v1::Invoke {
        function: call.function.clone(),
        inputs: match call.input {
            Input::None => vec![],
            _ => vec![v1::Input { name: "in".into(), items, r#type: None }],
        },
        outputs,
        deadline_ns: nanoseconds(call.deadline),
        function_version: 0,
        checked: false,
        request_id: String::new(),
        session: 0,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// What follows the id in a request that is written by hand.
fn raw(ask: &Ask) -> Vec<u8> {
    let Ask::Hollow(list, count) = ask else {
        return match ask {
            // Field 99, of a later version: one byte.
            Ask::Unknown => vec![0x9a, 0x06, 1, 0],
            _ => vec![],
        };
    };
    // The field of the request, the fields on the way to the list, and that of the list: all are messages.
    let path: &[u8] = match list {
        Hollow::Inputs => &[13, 2],
        Hollow::Items => &[13, 2, 2],
        Hollow::Outputs => &[13, 3],
        Hollow::Modules => &[7, 3],
        Hollow::Weights => &[7, 4],
        Hollow::Variants => &[3, 2],
        Hollow::Settings => &[17, 1],
    };
    let (innermost, around) = path.split_last().map_or((0, &[][..]), |(last, rest)| (*last, rest));
    let list = [key(innermost), vec![0]].concat().repeat(*count);
    around.iter().rev().fold(list, |inner, field| [key(*field), varint(inner.len() as u64), inner].concat())
}

/// The key of a field that is a message.
fn key(field: u8) -> Vec<u8> {
    varint((u64::from(field) << 3) | 2)
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A frame of an id and what follows it.
fn by_hand(id: u64, rest: &[u8]) -> Vec<u8> {
    framed(&[&[0x08][..], &varint(id), rest].concat(), 0)
}
