//! An inference over HTTP: JSON, with tensors in it or as bytes behind it, to an inference; and its outputs back.
//!
//! ```text
//! Inference-Header-Content-Length: N      | N bytes of JSON | bytes of the first input that has binary_data_size | the next … |
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::json::{Input, Request};
use crate::callers::Caller;
use crate::data_type;
use crate::failure::{Failure, Result};
use crate::infer::{Asked, Given, Inferred, Wanted};
use crate::limits::{JSON_FACTOR, JSON_OUTPUT_FACTOR, MAX_ID_BYTES, MAX_JSON_BYTES, MAX_JSON_OUTPUT_BYTES};
use crate::memory::Share;
use crate::model::Model;
use crate::models;
use crate::sequences::InSequence;

/// What a request asks for.
#[derive(Debug)]
pub struct Parsed {
    /// The inference.
    pub asked: Asked,
    id: String,
    /// For each output that the request names, if it comes as bytes.
    binary: Vec<bool>,
    /// True if outputs come as bytes that the request does not name.
    all_binary: bool,
}

impl Parsed {
    /// What the request calls itself.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// An answer: the bytes, and how many of them are JSON where others follow.
#[derive(Debug)]
pub struct Answer {
    /// JSON, and what follows.
    pub bytes: Bytes,
    /// Bytes of JSON, where there are others.
    pub json_bytes: Option<usize>,
}

/// Reads a request. `json_bytes`: the header that says where tensors begin; none where all is JSON.
pub async fn parse(
    caller: &Caller,
    route: &super::routes::Model,
    body: &Bytes,
    json_bytes: Option<usize>,
    share: &Share,
) -> Result<Parsed> {
    let (json, mut rest) = split(body, json_bytes)?;
    if json.len() > MAX_JSON_BYTES {
        return Err(Failure::invalid(format!(
            "{} bytes of JSON, more than the {MAX_JSON_BYTES} that are taken: send tensors as bytes (binary_data_size)",
            json.len()
        )));
    }
    share.take(json.len() * JSON_FACTOR)?;
    let request: Request =
        serde_json::from_slice(&json).map_err(|why| Failure::invalid(why.to_string()).at("body"))?;
    if request.id.len() > MAX_ID_BYTES {
        return Err(Failure::invalid(format!("it has more than {MAX_ID_BYTES} bytes")).at("id"));
    }
    let said = &request.parameters;
    let sequence = InSequence::new(said.sequence_id.clone(), said.sequence_start, said.sequence_end)?;
    // What the function declares now is asked for only where the request does not say it.
    let model = match request.inputs.iter().any(|input| input.datatype.is_none()) {
        true => Some(models::look(caller, &route.name, &route.version).await?),
        false => None,
    };
    let mut inputs = Vec::with_capacity(request.inputs.len());
    for input in request.inputs {
        let name = input.name.clone();
        let given = given(caller, input, model.as_ref(), &mut rest, share);
        inputs.push(given.map_err(|failure| failure.at(format!("input {name}")))?);
    }
    if !rest.is_empty() {
        return Err(Failure::invalid(format!("{} bytes behind the last tensor are no input's", rest.len())));
    }
    let all_binary = request.parameters.binary_data_output;
    let (mut outputs, mut binary) = (Vec::new(), Vec::new());
    for output in request.outputs {
        let refuse = |why| Err(Failure::unsupported(why).at(format!("output {}", output.name)));
        if output.parameters.classification.is_some_and(|classes| classes > 0) {
            return refuse("outputs are tensors only: this gateway does not classify");
        }
        binary.push(output.parameters.binary_data.unwrap_or(all_binary));
        let place = match &output.parameters.shared_memory_region {
            None => None,
            Some(region) => {
                let (offset, bytes) =
                    (output.parameters.shared_memory_offset, output.parameters.shared_memory_byte_size);
                Some(caller.regions()?.place(region, offset, bytes)?)
            }
        };
        outputs.push(Wanted { name: output.name, place });
    }
    let deadline = request.parameters.timeout.filter(|us| *us > 0).map(Duration::from_micros);
    let made_for = model;
    let (model, version) = (route.name.clone(), route.version.clone());
    Ok(Parsed {
        asked: Asked { model, version, inputs, outputs, sequence, deadline, made_for, ..Asked::default() },
        id: request.id,
        binary,
        all_binary,
    })
}

/// The inputs of a body alone, as far as they can be read without a function: no types that it declares, no shared memory.
pub fn read_tensors(body: &Bytes, json_bytes: Option<usize>, share: &Share) -> Result<Vec<Given>> {
    let (json, mut rest) = split(body, json_bytes)?;
    share.take(json.len() * JSON_FACTOR)?;
    let request: Request =
        serde_json::from_slice(&json).map_err(|why| Failure::invalid(why.to_string()).at("body"))?;
    request.inputs.into_iter().map(|input| given(&Nowhere, input, None, &mut rest, share)).collect()
}

/// The JSON of a body, and the tensors behind it.
fn split(body: &Bytes, json_bytes: Option<usize>) -> Result<(Bytes, Bytes)> {
    match json_bytes {
        None => Ok((body.clone(), Bytes::new())),
        Some(0) => Err(Failure::unsupported("a body without JSON: say with JSON what the bytes are")
            .at("Inference-Header-Content-Length")),
        Some(bytes) if bytes > body.len() => {
            let told = format!("it says {bytes} bytes of JSON, the body has {} in all", body.len());
            Err(Failure::invalid(told).at("Inference-Header-Content-Length"))
        }
        Some(bytes) => Ok((body.slice(..bytes), body.slice(bytes..))),
    }
}

/// An input, whose bytes may be the next ones behind the JSON.
fn given(
    caller: &impl Placing,
    input: Input,
    model: Option<&Arc<Model>>,
    rest: &mut Bytes,
    share: &Share,
) -> Result<Given> {
    let declared = model.and_then(|model| model.inputs.iter().find(|port| port.name == input.name));
    let dtype = match &input.datatype {
        Some(name) => data_type::named(name).ok_or_else(|| {
            let shown: String = name.chars().take(20).collect();
            Failure::invalid(format!(
                "`{shown}` is no datatype of functions: they have BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64, \
                 FP8E4M3FN and FP8E5M2"
            ))
        })?,
        None => declared
            .ok_or_else(|| Failure::invalid("the function has no such input; its metadata lists those that it has"))?
            .dtype
            .ok_or_else(|| Failure::invalid("the function does not declare what it is: say its datatype, such as \"FP32\""))?,
    };
    let placed = match &input.parameters.shared_memory_region {
        None => None,
        Some(region) => {
            let parameters = &input.parameters;
            Some(caller.placed(
                region,
                parameters.shared_memory_offset,
                parameters.shared_memory_byte_size,
                share,
            )?)
        }
    };
    let (bytes, shape) = match (input.parameters.binary_data_size, input.data) {
        _ if placed.is_some() => {
            let bytes = placed.unwrap_or_default();
            let shape = vec![bytes.len() as u64 / dtype.bytes()];
            (bytes, shape)
        }
        (Some(_), Some(_)) => {
            return Err(Failure::invalid("data in JSON and behind it: send one of the two"));
        }
        (None, None) => {
            return Err(Failure::invalid("no data: a list of numbers, or binary_data_size and the bytes"));
        }
        (Some(size), None) => {
            let size = usize::try_from(size).ok().filter(|size| *size <= rest.len());
            let size = size.ok_or_else(|| {
                Failure::invalid(format!(
                    "binary_data_size says more than the {} bytes that are left of the body",
                    rest.len()
                ))
            })?;
            let bytes = rest.split_to(size);
            let shape = vec![size as u64 / dtype.bytes()];
            (bytes, shape)
        }
        (None, Some(data)) => {
            if !data_type::has_json(dtype) {
                return Err(Failure::invalid(
                    "numbers of 8 and 16 bits with a fraction are sent as bytes: binary_data_size",
                ));
            }
            let mut bytes = Vec::with_capacity(data.numbers.len() * dtype.bytes() as usize);
            for (at, number) in data.numbers.into_iter().enumerate() {
                if !data_type::push(&mut bytes, dtype, number) {
                    let name = data_type::name_of(dtype);
                    return Err(Failure::invalid(format!("the number at {at} ({number}) is none of {name}")));
                }
            }
            (bytes.into(), data.shape)
        }
    };
    let shape = input.shape.map_or(shape, |shape| shape.0);
    Ok(Given { name: input.name, dtype, shape, bytes })
}

/// Who finds tensors in shared memory.
trait Placing {
    /// The bytes of a place in a region, copied.
    fn placed(&self, region: &str, offset: u64, bytes: u64, share: &Share) -> Result<Bytes>;
}

impl Placing for Caller {
    fn placed(&self, region: &str, offset: u64, bytes: u64, share: &Share) -> Result<Bytes> {
        self.regions()?.place(region, offset, bytes)?.read(share)
    }
}

/// Has no shared memory.
struct Nowhere;

impl Placing for Nowhere {
    fn placed(&self, _: &str, _: u64, _: u64, _: &Share) -> Result<Bytes> {
        Err(Failure::unsupported("no shared memory"))
    }
}

#[derive(Serialize)]
struct Head<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
}

#[derive(Serialize)]
struct TensorHead<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<TensorParameters>,
}

#[derive(Serialize)]
struct TensorParameters {
    binary_data_size: usize,
}

/// The answer to a request.
pub fn answer(parsed: &Parsed, inferred: &Inferred, share: &Share) -> Result<Answer> {
    let internal = |error: serde_json::Error| {
        tracing::error!("cannot write an answer: {error}");
        Failure::new(
            crate::failure::Kind::Supervisor(pappus_client::Code::Internal),
            "the answer cannot be written",
        )
    };
    let is_binary = |at: usize| match parsed.asked.outputs.is_empty() {
        true => parsed.all_binary,
        false => parsed.binary.get(at).copied().unwrap_or(parsed.all_binary),
    };
    let of_json = |binary: bool| {
        let outputs = inferred.outputs.iter().enumerate().filter(move |(at, _)| is_binary(*at) == binary);
        outputs.map(|(_, output)| output.bytes.len()).sum::<usize>()
    };
    if of_json(false) > MAX_JSON_OUTPUT_BYTES {
        return Err(Failure::invalid(format!(
            "outputs of {} bytes, more than the {MAX_JSON_OUTPUT_BYTES} that are written as JSON: ask for bytes (binary_data, or \
             binary_data_output)",
            of_json(false)
        )));
    }
    share.take(of_json(false) * JSON_OUTPUT_FACTOR + of_json(true))?;
    let head = Head {
        model_name: &inferred.model.name,
        model_version: inferred.version.to_string(),
        id: &parsed.id,
    };
    // An object whose last brace makes room for the outputs.
    let mut json = serde_json::to_string(&head).map_err(internal)?;
    json.pop();
    json.push_str(",\"outputs\":[");
    for (at, output) in inferred.outputs.iter().enumerate() {
        if at > 0 {
            json.push(',');
        }
        let binary = is_binary(at) || output.placed;
        // What is in shared memory has no parameters: clients would look there for its bytes.
        let parameters =
            (binary && !output.placed).then_some(TensorParameters { binary_data_size: output.bytes.len() });
        let datatype = data_type::name_of(output.dtype);
        let tensor = TensorHead { name: &output.name, datatype, shape: &output.shape, parameters };
        json.push_str(&serde_json::to_string(&tensor).map_err(internal)?);
        if !binary {
            if !data_type::has_json(output.dtype) {
                let told = "numbers of 16 bits with a fraction come as bytes: ask for binary_data";
                return Err(Failure::invalid(told).at(format!("output {}", output.name)));
            }
            json.pop();
            json.push_str(",\"data\":");
            data_type::write_json(&mut json, output.dtype, &output.bytes);
            json.push('}');
        }
    }
    json.push_str("]}");
    let tensors = inferred.outputs.iter().enumerate().filter(|(at, output)| is_binary(*at) && !output.placed);
    let tensors: Vec<&Bytes> = tensors.map(|(_, output)| &output.bytes).collect();
    if tensors.is_empty() {
        return Ok(Answer { bytes: json.into(), json_bytes: None });
    }
    let json_bytes = Some(json.len());
    let mut bytes = json.into_bytes();
    bytes.reserve_exact(tensors.iter().map(|tensor| tensor.len()).sum());
    tensors.iter().for_each(|tensor| bytes.extend_from_slice(tensor));
    Ok(Answer { bytes: bytes.into(), json_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::Output;
    use crate::memory::Memory;
    use pappus_blueprint::DType;
    use proptest::prelude::*;

    fn input(text: &str, rest: &'static [u8]) -> Result<(Given, usize)> {
        let mut rest = Bytes::from_static(rest);
        let share = Memory::new(0).share();
        let given = given(&Nowhere, serde_json::from_str(text).unwrap(), None, &mut rest, &share)?;
        Ok((given, rest.len()))
    }

    #[test]
    fn an_input_is_numbers_or_the_next_bytes() {
        let (given, left) = input(r#"{"name":"A","datatype":"INT16","data":[[1],[-2]]}"#, b"xyz").unwrap();
        assert_eq!((&given.bytes[..], &given.shape[..], left), (&[1, 0, 254, 255][..], &[2, 1][..], 3));
        let text = r#"{"name":"A","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}"#;
        let (given, left) = input(text, b"xyz").unwrap();
        assert_eq!((&given.bytes[..], given.dtype, left), (&b"xy"[..], DType::F16, 1));
        for (text, words) in [
            (
                r#"{"name":"A","datatype":"UINT8","parameters":{"binary_data_size":4}}"#,
                "more than the 3 bytes",
            ),
            (
                r#"{"name":"A","datatype":"UINT8","parameters":{"binary_data_size":18446744073709551615}}"#,
                "more than the 3",
            ),
            (
                r#"{"name":"A","datatype":"UINT8","data":[1],"parameters":{"binary_data_size":1}}"#,
                "one of the two",
            ),
            (r#"{"name":"A","datatype":"UINT8"}"#, "no data"),
            (r#"{"name":"A","datatype":"UINT8","data":[256]}"#, "the number at 0"),
            (r#"{"name":"A","datatype":"BYTES","data":[1]}"#, "no datatype"),
            (r#"{"name":"A","datatype":"FP16","data":[1]}"#, "sent as bytes"),
            (r#"{"name":"A","data":[1]}"#, "no such input"),
            (
                r#"{"name":"A","datatype":"UINT8","parameters":{"shared_memory_region":"x"}}"#,
                "no shared memory",
            ),
        ] {
            let why = input(text, b"xyz").unwrap_err();
            assert!(why.message.contains(words), "{text}: {why}");
        }
    }

    #[test]
    fn a_header_that_says_more_than_there_is_is_refused() {
        let body = Bytes::from_static(b"{}xy");
        assert_eq!(split(&body, Some(2)).unwrap(), (body.slice(..2), body.slice(2..)));
        assert_eq!(split(&body, None).unwrap().0, body);
        assert_eq!(split(&body, Some(5)).unwrap_err().row().http, 400);
        assert_eq!(split(&body, Some(0)).unwrap_err().row().http, 501);
    }

    #[test]
    fn an_answer_is_json_with_bytes_behind_it() {
        let model = Arc::new(Model {
            name: "f".into(),
            function: "f".into(),
            number: 9,
            version: 2,
            versions: vec![2],
            inputs: vec![],
            outputs: vec![],
            has_state: false,
        });
        let output = |name: &str| Output {
            name: name.into(),
            dtype: DType::U8,
            shape: vec![2],
            bytes: Bytes::from_static(&[7, 8]),
            placed: false,
        };
        let inferred = Inferred { model, version: 3, outputs: vec![output("A"), output("B")] };
        let parsed = |outputs: &[&str], binary: &[bool], all_binary| Parsed {
            asked: Asked {
                outputs: outputs
                    .iter()
                    .map(|name| Wanted { name: (*name).to_owned(), place: None })
                    .collect(),
                ..Asked::default()
            },
            id: "7\"".into(),
            binary: binary.into(),
            all_binary,
        };
        let memory = Memory::new(1000);
        let text = answer(&parsed(&[], &[], false), &inferred, &memory.share()).unwrap();
        assert_eq!(text.json_bytes, None);
        assert_eq!(
            &text.bytes[..],
            br#"{"model_name":"f","model_version":"3","id":"7\"","outputs":[{"name":"A","datatype":"UINT8","shape":[2],"data":[7,8]},{"name":"B","datatype":"UINT8","shape":[2],"data":[7,8]}]}"#
        );
        let mixed = answer(&parsed(&["A", "B"], &[true, false], false), &inferred, &memory.share()).unwrap();
        let json = mixed.json_bytes.unwrap();
        assert_eq!(&mixed.bytes[json..], [7, 8]);
        let head: serde_json::Value = serde_json::from_slice(&mixed.bytes[..json]).unwrap();
        assert_eq!(head["outputs"][0]["parameters"]["binary_data_size"], 2);
        assert_eq!(head["outputs"][1]["data"][1], 8);
    }

    proptest! {
        /// Whatever is said of a body, its parts are the body's, or it is refused.
        #[test]
        fn random_lengths_never_reach_beyond_the_body(length in 0usize..100, sizes in proptest::collection::vec(any::<u64>(), 0..4)) {
            let body = Bytes::from(vec![1; 40]);
            let Ok((json, mut rest)) = split(&body, Some(length)) else { return Ok(()) };
            let mut taken = json.len();
            for size in sizes {
                let text = format!(r#"{{"name":"A","datatype":"UINT8","parameters":{{"binary_data_size":{}}}}}"#, size % 50);
                if let Ok(given) = given(&Nowhere, serde_json::from_str(&text).unwrap(), None, &mut rest, &Memory::new(0).share()) {
                    taken += given.bytes.len();
                }
            }
            prop_assert_eq!(taken + rest.len(), 40);
        }

        #[test]
        fn random_json_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = serde_json::from_slice::<Request>(&bytes);
        }
    }
}
