//! What a request takes in memory once it is decoded, found out before anything is allocated for it.
//!
//! An empty message inside another one has two bytes on the wire and up to a hundred in memory. The scan walks the
//! wire format along the messages that a request can hold (a test compares the table with `pappus.proto`), counts
//! them, and refuses more than any valid request has.

use std::ops::Range;

use crate::limits::MAX_REQUEST_PARTS;

/// The number of the field `tenant_token` of a request.
const TENANT_TOKEN: u32 = 27;
/// The number of the field `status` of a request.
pub const STATUS: u32 = 15;
/// The number of the field `act_for` of a request.
pub const ACT_FOR: u32 = 18;
/// Bytes in memory that each message inside a request is counted with: the largest is 96 bytes, its list doubles
/// while it grows, and the old and the new list exist together for a moment.
const PART_BYTES: usize = 320;
/// Numbers of a list that count as one message: of 8 bytes each, in a list that grows likewise.
const PART_NUMBERS: usize = 8;
/// Bytes in memory for each byte on the wire: the frame itself, and copies of its strings.
const BYTES_PER_BYTE: usize = 2;

/// What decoding a request takes, and what has to be known of the request before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodingCost {
    /// The request's id, for an answer without decoding it.
    pub id: u64,
    /// Bytes of memory at the most.
    pub bytes: usize,
    /// The number of the field that says what is asked for; 0 if there is none.
    pub asks: u32,
    /// Where in the message the token is of the tenant that the request is from, if there is one: the decoding is charged to that
    /// tenant.
    pub tenant_token: Option<Range<usize>>,
}

/// Why a request is not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodingError {
    /// It is no message. The peer does not speak the protocol.
    #[error("no protobuf message")]
    Malformed,
    /// It holds too many messages.
    #[error(
        "the request holds more than {MAX_REQUEST_PARTS} inputs, items, outputs, modules, variants and weights"
    )]
    TooManyParts {
        /// The request's id, if it came before the others.
        id: u64,
    },
}

/// A message: its fields that hold messages, and the one that is a list of numbers.
struct Shape {
    messages: &'static [(u32, &'static Shape)],
    numbers: Option<u32>,
}

const fn holding(messages: &'static [(u32, &'static Shape)]) -> Shape {
    Shape { messages, numbers: None }
}

static LEAF: Shape = holding(&[]);
static VARIANTS: Shape = holding(&[(2, &LEAF)]);
static ITEM: Shape = holding(&[(2, &LEAF), (3, &LEAF)]);
static ARRAY_TYPE: Shape = Shape { messages: &[], numbers: Some(2) };
static INPUT: Shape = holding(&[(2, &ITEM), (3, &ARRAY_TYPE)]);
static OUTPUT: Shape = holding(&[(2, &LEAF)]);
static INVOKE: Shape = holding(&[(2, &INPUT), (3, &OUTPUT)]);
static ADD_FUNCTION: Shape = holding(&[(3, &VARIANTS), (4, &LEAF)]);
static SETTINGS: Shape = holding(&[(1, &LEAF)]);
static SET_DEVICE: Shape = holding(&[(2, &LEAF)]);
static REQUEST: Shape = holding(&[
    (2, &LEAF),
    (3, &VARIANTS),
    (4, &LEAF),
    (5, &LEAF),
    (6, &LEAF),
    (7, &ADD_FUNCTION),
    (8, &LEAF),
    (9, &LEAF),
    (10, &LEAF),
    (11, &LEAF),
    (12, &LEAF),
    (13, &INVOKE),
    (14, &LEAF),
    (15, &LEAF),
    (16, &LEAF),
    (17, &SETTINGS),
    (18, &LEAF),
    (19, &LEAF),
    (20, &LEAF),
    (21, &LEAF),
    (22, &LEAF),
    (23, &LEAF),
    (24, &LEAF),
    (25, &SET_DEVICE),
    (26, &LEAF),
    (28, &LEAF),
    (29, &LEAF),
    (30, &LEAF),
    (31, &LEAF),
]);

/// The cost of decoding a request, found in one pass over its bytes.
pub fn cost(message: &[u8]) -> Result<DecodingCost, DecodingError> {
    let mut scan = Scan { id: 0, parts: 0, numbers: 0, asks: 0, tenant_token: None };
    scan.message(message, &REQUEST, true)?;
    // The scan tells how many bytes of the message are from the token's end to the message's.
    let tenant_token = scan.tenant_token.map(|(bytes, behind)| {
        let end = message.len() - behind;
        end - bytes..end
    });
    let bytes = message.len() * BYTES_PER_BYTE + scan.parts() * PART_BYTES;
    Ok(DecodingCost { id: scan.id, bytes, asks: scan.asks, tenant_token })
}

/// The id of a request of which only the beginning is there; 0 if that does not begin with it.
pub fn id_of(mut beginning: &[u8]) -> u64 {
    match varint(&mut beginning) {
        Ok(0x08) => varint(&mut beginning).unwrap_or(0),
        _ => 0,
    }
}

struct Scan {
    id: u64,
    /// Messages.
    parts: usize,
    /// Numbers in lists.
    numbers: usize,
    /// The last field that holds a message: a decoder takes the last one, too.
    asks: u32,
    /// Bytes of the tenant's token, and bytes of the request behind it. The last one counts, as for a decoder.
    tenant_token: Option<(usize, usize)>,
}

impl Scan {
    /// Messages, and numbers as messages.
    fn parts(&self) -> usize {
        self.parts + self.numbers.div_ceil(PART_NUMBERS)
    }

    fn check(&self) -> Result<(), DecodingError> {
        match self.parts() > MAX_REQUEST_PARTS {
            true => Err(DecodingError::TooManyParts { id: self.id }),
            false => Ok(()),
        }
    }

    /// Reads one message; no deeper than the table.
    fn message(&mut self, mut rest: &[u8], shape: &Shape, is_request: bool) -> Result<(), DecodingError> {
        while !rest.is_empty() {
            let key = varint(&mut rest)?;
            let field = u32::try_from(key >> 3).map_err(|_| DecodingError::Malformed)?;
            match key & 7 {
                0 => {
                    let value = varint(&mut rest)?;
                    if is_request && field == 1 {
                        self.id = value;
                    }
                    if shape.numbers == Some(field) {
                        self.numbers += 1;
                        self.check()?;
                    }
                }
                1 => drop(take(&mut rest, 8)?),
                2 => {
                    let length = varint(&mut rest)?;
                    let inner = take(&mut rest, usize::try_from(length).unwrap_or(usize::MAX))?;
                    if is_request && field == TENANT_TOKEN {
                        self.tenant_token = Some((inner.len(), rest.len()));
                    }
                    if shape.numbers == Some(field) {
                        // Packed: each number ends in a byte without its highest bit.
                        self.numbers += inner.iter().filter(|byte| **byte & 0x80 == 0).count();
                        self.check()?;
                    }
                    if let Some((_, shape)) = shape.messages.iter().find(|(number, _)| *number == field) {
                        if is_request {
                            self.asks = field;
                        }
                        self.parts += 1;
                        self.check()?;
                        self.message(inner, shape, false)?;
                    }
                }
                5 => drop(take(&mut rest, 4)?),
                // Groups, which proto3 does not have.
                _ => return Err(DecodingError::Malformed),
            }
        }
        Ok(())
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], DecodingError> {
    let (taken, left) = rest.split_at_checked(bytes).ok_or(DecodingError::Malformed)?;
    *rest = left;
    Ok(taken)
}

fn varint(rest: &mut &[u8]) -> Result<u64, DecodingError> {
    let mut value = 0;
    for nth in 0..10 {
        let (byte, left) = rest.split_first().ok_or(DecodingError::Malformed)?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << (7 * nth);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodingError::Malformed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::v1;

    /// Of each input.
    const DIMENSIONS: usize = 8;

    fn request(body: v1::request::Body) -> Vec<u8> {
        v1::Request { id: 77, body: Some(body), ..Default::default() }.encode_to_vec()
    }

    fn invoke(inputs: usize, items: usize, outputs: usize) -> Vec<u8> {
        let region = v1::Region { arena: 1, offset: 2, bytes: 3 };
        let item = v1::Item { source: Some(v1::item::Source::Region(region)) };
        let r#type = Some(v1::ArrayType { dtype: "f32".into(), shape: vec![1; DIMENSIONS] });
        let input = v1::Input { name: "in".into(), items: vec![item; items], r#type };
        let output = v1::Output { name: "out".into(), region: Some(region) };
        request(v1::request::Body::Invoke(v1::Invoke {
            function: "f".into(),
            inputs: vec![input; inputs],
            outputs: vec![output; outputs],
            deadline_ns: 5,
            function_version: 6,
            checked: true,
            request_id: "r".into(),
            session: 7,
        }))
    }

    #[test]
    fn the_largest_valid_requests_pass() {
        // As many inputs, items and outputs as a blueprint and a call may have.
        let message = invoke(1024, 1, 1024);
        assert_eq!(cost(&message).map(|cost| cost.id), Ok(77));
        assert_eq!((id_of(&message[..16]), id_of(&[]), id_of(&[0x10, 3])), (77, 0, 0));
        let variant = v1::Variant { format: "wasm".into(), arch: String::new(), sha256: Bytes::new() };
        let module = v1::FunctionModule { variants: vec![variant; 6], ..v1::FunctionModule::default() };
        let message = request(v1::request::Body::AddFunction(v1::AddFunction {
            modules: vec![module; 512],
            weights: vec![v1::Weight::default(); 4096],
            ..v1::AddFunction::default()
        }));
        assert!(cost(&message).is_ok());
    }

    #[test]
    fn what_is_asked_for_is_known_before_it_is_decoded() {
        let asks = |body| cost(&request(body)).unwrap().asks;
        assert_eq!(asks(v1::request::Body::Status(v1::Empty {})), STATUS);
        assert_eq!(asks(v1::request::Body::ActFor(v1::ActFor::default())), ACT_FOR);
        assert_eq!(cost(&[0x08, 77]).unwrap().asks, 0);
    }

    #[test]
    fn a_token_is_found_wherever_it_stands() {
        let body = [&[0x08, 77][..], &field(15, &[])].concat();
        let token_of = |message: &[u8]| {
            let found = cost(message).unwrap().tenant_token.map(|range| message[range].to_vec());
            let decoded = v1::Request::decode(message).unwrap().tenant_token.to_vec();
            assert_eq!(found.clone().unwrap_or_default(), decoded);
            found
        };
        assert_eq!(token_of(&body), None);
        assert_eq!(token_of(&[body.clone(), field(27, b"t0")].concat()).as_deref(), Some(&b"t0"[..]));
        assert_eq!(token_of(&[field(27, b"t0"), body.clone()].concat()).as_deref(), Some(&b"t0"[..]));
        // Of two the last, and an empty one is one.
        assert_eq!(token_of(&[field(27, b"t0"), field(27, b"u")].concat()).as_deref(), Some(&b"u"[..]));
        assert_eq!(token_of(&[body.clone(), field(27, b"")].concat()).as_deref(), Some(&b""[..]));
        // Inside another message the number means something else.
        assert_eq!(token_of(&[body, field(13, &field(27, b"t0"))].concat()), None);
    }

    #[test]
    fn a_frame_of_empty_messages_is_refused_before_it_is_decoded() {
        // An `Invoke` of two million empty inputs.
        let empty = [0x12, 0x00].repeat(1 << 20);
        let mut message = vec![0x08, 77];
        prost::encoding::encode_key(13, prost::encoding::WireType::LengthDelimited, &mut message);
        prost::encoding::encode_varint(empty.len() as u64, &mut message);
        message.extend_from_slice(&empty);
        assert_eq!(cost(&message), Err(DecodingError::TooManyParts { id: 77 }));
        // The control: decoding takes twenty times its bytes.
        let decoded = v1::Request::decode(&message[..]).unwrap();
        let Some(v1::request::Body::Invoke(invoke)) = decoded.body else { panic!("no invoke") };
        assert!(invoke.inputs.capacity() * size_of::<v1::Input>() > 20 * message.len());
    }

    #[test]
    fn a_frame_of_dimensions_is_refused_before_it_is_decoded() {
        // A million dimensions, packed and with a key each.
        for (unit, key) in [(&[0x01][..], true), (&[0x10, 0x01], false)] {
            let numbers = unit.repeat(1 << 20);
            let shape = if key { field(2, &numbers) } else { numbers };
            let invoke = field(2, &field(3, &shape));
            let message = [&[0x08, 77][..], &field(13, &invoke)].concat();
            assert_eq!(cost(&message), Err(DecodingError::TooManyParts { id: 77 }));
            // The control: they decode to eight bytes each.
            let decoded = v1::Request::decode(&message[..]).unwrap();
            let Some(v1::request::Body::Invoke(invoke)) = decoded.body else { panic!("no invoke") };
            assert_eq!(invoke.inputs[0].r#type.as_ref().unwrap().shape.len(), 1 << 20);
        }
    }

    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        prost::encoding::encode_key(number, prost::encoding::WireType::LengthDelimited, &mut out);
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    #[test]
    fn a_part_is_counted_with_more_than_it_takes() {
        let largest = [
            size_of::<v1::Input>(),
            size_of::<v1::ArrayType>(),
            size_of::<[u64; PART_NUMBERS]>(),
            size_of::<v1::Item>(),
            size_of::<v1::Output>(),
            size_of::<v1::Variant>(),
            size_of::<v1::FunctionModule>(),
            size_of::<v1::Weight>(),
        ];
        assert!(largest.into_iter().all(|bytes| bytes * 3 <= PART_BYTES), "{largest:?}");
    }

    const TEXT: prost_types::field_descriptor_proto::Type = prost_types::field_descriptor_proto::Type::String;
    const BYTES: prost_types::field_descriptor_proto::Type = prost_types::field_descriptor_proto::Type::Bytes;

    /// The table names every message that a request can hold.
    #[test]
    fn the_table_is_that_of_the_protocol() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = protox::compile(["pappus.proto"], [root]).unwrap();
        let messages = &files.file[0].message_type;
        compare(messages, "Request", &REQUEST);
    }

    fn compare(messages: &[prost_types::DescriptorProto], name: &str, shape: &Shape) {
        let message = messages.iter().find(|message| message.name() == name);
        // The entries of a map are a message of their own, inside the one that has it: text to text.
        let Some(message) = message else { return assert!(shape.messages.is_empty(), "{name}") };
        let numbers = message.field.iter().find(|field| {
            let is_list = field.label() == prost_types::field_descriptor_proto::Label::Repeated;
            let types = [prost_types::field_descriptor_proto::Type::Message, TEXT, BYTES];
            is_list && !types.contains(&field.r#type())
        });
        assert_eq!(numbers.map(|field| field.number() as u32), shape.numbers, "{name}");
        let holds = |field: &&prost_types::FieldDescriptorProto| {
            field.r#type() == prost_types::field_descriptor_proto::Type::Message
        };
        let fields: Vec<_> = message.field.iter().filter(holds).collect();
        let numbers: Vec<_> = fields.iter().map(|field| field.number() as u32).collect();
        assert_eq!(numbers, shape.messages.iter().map(|(number, _)| *number).collect::<Vec<_>>(), "{name}");
        for (field, (_, inner)) in fields.iter().zip(shape.messages) {
            compare(messages, field.type_name().rsplit('.').next().unwrap(), inner);
        }
    }

    proptest! {
        /// Whatever the decoder takes, the scan takes as well or refuses for its parts; and never the other way
        /// round with more memory than it said.
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = cost(&bytes);
        }

        #[test]
        fn real_requests_cost_what_was_said(inputs in 0usize..20, items in 0usize..20, outputs in 0usize..20) {
            let message = invoke(inputs, items, outputs);
            let parts = 1 + inputs * (2 + 2 * items + DIMENSIONS / PART_NUMBERS) + 2 * outputs;
            let cost = cost(&message).unwrap();
            prop_assert_eq!(cost.bytes, message.len() * BYTES_PER_BYTE + parts * PART_BYTES);
        }
    }
}
