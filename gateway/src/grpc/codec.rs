//! Messages of gRPC, looked through before they are decoded: an empty message inside another one has two bytes on the wire and some
//! hundred in memory, and a number of one byte takes eight.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use prost::Message;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use super::status;
use crate::failure::{Failure, Kind};
use crate::limits::{MAX_CONTENTS_BYTES, MAX_MESSAGE_PARTS};

/// Protobuf within bounds.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::new(tonic::codec::BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(PhantomData)
    }
}

/// See [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message: Bytes = buf.copy_to_bytes(buf.remaining());
        check(&message).map_err(|failure| status(&failure))?;
        U::decode(message).map(Some).map_err(|_| status(&malformed()))
    }
}

/// Fields of an inference, the only message that holds messages: its inputs, and the contents of each.
const INPUTS: u64 = 5;
const CONTENTS: u64 = 5;
/// Fields that hold messages: parameters, inputs, outputs; of an input parameters and contents. What other methods have in fields of
/// these numbers is looked through likewise, and refused where it is none.
const DEEPER: [u64; 3] = [4, 5, 6];
/// Inputs are one level deep, and their contents two.
const MAX_DEPTH: u32 = 2;

/// An error if a message holds more than is decoded, or cannot be looked through to its end: the decoder skips groups, which proto3 does
/// not have, and takes what is behind them.
pub fn check(message: &[u8]) -> Result<(), Failure> {
    let mut scan = Scan { parts: 0, contents: 0 };
    let is_whole = scan.message(message, 0, false).is_some();
    if scan.parts > MAX_MESSAGE_PARTS {
        let told = format!(
            "the message has more than {MAX_MESSAGE_PARTS} parts: send tensors in raw_input_contents"
        );
        return Err(Failure::new(Kind::TooLarge, told));
    }
    if scan.contents > MAX_CONTENTS_BYTES {
        let told = format!(
            "the message has more than {MAX_CONTENTS_BYTES} bytes of numbers in lists: send tensors in raw_input_contents"
        );
        return Err(Failure::new(Kind::TooLarge, told));
    }
    is_whole.then_some(()).ok_or_else(malformed)
}

fn malformed() -> Failure {
    Failure::invalid("the message is not the protobuf message of this method")
}

struct Scan {
    parts: usize,
    contents: usize,
}

impl Scan {
    /// Counts the fields of a message, and of those inside; stops where there are too many. None where it is no message.
    fn message(&mut self, mut rest: &[u8], depth: u32, is_input: bool) -> Option<()> {
        while !rest.is_empty() && self.parts <= MAX_MESSAGE_PARTS {
            self.parts += 1;
            let key = varint(&mut rest)?;
            let field = key >> 3;
            match key & 7 {
                0 => drop(varint(&mut rest)?),
                1 => rest = rest.get(8..)?,
                5 => rest = rest.get(4..)?,
                2 => {
                    let bytes = usize::try_from(varint(&mut rest)?).ok()?;
                    let (inner, behind) = rest.split_at_checked(bytes)?;
                    rest = behind;
                    if is_input && field == CONTENTS {
                        self.contents += inner.len();
                    } else if is_input && field == 3 {
                        // Dimensions, as many as bytes at most.
                        self.contents += inner.len();
                    }
                    if depth < MAX_DEPTH && DEEPER.contains(&field) {
                        self.message(inner, depth + 1, depth == 0 && field == INPUTS)?;
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for nth in 0..10 {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << (7 * nth);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor};
    use proptest::prelude::*;

    fn request(inputs: usize, contents: usize) -> ModelInferRequest {
        let contents = Some(InferTensorContents { int64_contents: vec![1; contents], ..Default::default() });
        let input = InferInputTensor { name: "A".into(), contents, ..Default::default() };
        ModelInferRequest { inputs: vec![input; inputs], ..Default::default() }
    }

    #[test]
    fn messages_that_grow_when_they_are_decoded_are_refused_before() {
        assert!(check(&request(1000, 1000).encode_to_vec()).is_ok());
        let raw = ModelInferRequest { raw_input_contents: vec![vec![0; 32 << 20].into()], ..request(1, 0) };
        assert!(check(&raw.encode_to_vec()).is_ok());
        // Two bytes each, a hundred times that in memory: the control.
        let empty = [0x2a, 0].repeat(1 << 20);
        let decoded = ModelInferRequest::decode(&empty[..]).unwrap();
        assert!(decoded.inputs.capacity() * size_of::<InferInputTensor>() > 50 * empty.len());
        assert!(check(&empty).unwrap_err().message.contains("parts"));
        assert!(check(&request(1, 2 << 20).encode_to_vec()).unwrap_err().message.contains("numbers"));
    }

    #[test]
    fn what_is_behind_a_group_is_not_decoded_either() {
        // An empty group of field 100, which the decoder skips: the control.
        let group = [0xa3, 0x06, 0xa4, 0x06];
        let hidden = [&group[..], &[0x2a, 0].repeat(2 * MAX_MESSAGE_PARTS)].concat();
        assert!(ModelInferRequest::decode(&hidden[..]).unwrap().inputs.len() > MAX_MESSAGE_PARTS);
        let input = request(1, 2 << 20).inputs[0].encode_to_vec();
        let within = [&group[..], &input].concat();
        let within = [&[0x2a][..], &prost_length(within.len()), &within].concat();
        assert_eq!(ModelInferRequest::decode(&within[..]).unwrap().inputs.len(), 1);
        for message in [hidden, within] {
            assert!(check(&message).unwrap_err().message.contains("not the protobuf message"));
        }
    }

    fn prost_length(bytes: usize) -> Vec<u8> {
        let mut length = Vec::new();
        prost::encode_length_delimiter(bytes, &mut length).unwrap();
        length
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = check(&bytes);
        }
    }
}
