//! Messages of gRPC to inferences, and outputs back.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use pappus_blueprint::DType;

use crate::callers::Caller;
use crate::data_type::{self, Number};
use crate::failure::{Failure, Result};
use crate::generated::infer_parameter::ParameterChoice;
use crate::generated::model_infer_request::InferInputTensor;
use crate::generated::model_infer_response::InferOutputTensor;
use crate::generated::model_metadata_response::TensorMetadata;
use crate::generated::{
    DataType, InferParameter, InferStatistics, InferTensorContents, ModelConfig, ModelInferRequest,
    ModelInferResponse, ModelInput, ModelMetadataResponse, ModelOutput, ModelSequenceBatching,
    ModelStatistics, StatisticDuration,
};
use crate::infer::{Asked, Given, Inferred, Wanted};
use crate::limits::MAX_ID_BYTES;
use crate::memory::Share;
use crate::model::{Model, Port};
use crate::sequences::{InSequence, SequenceId};
use crate::shared_memory::Place;
use crate::statistics::{Counts, Tally};

/// A request as an inference, and its id.
pub(super) fn asked(
    caller: &impl Placing,
    request: ModelInferRequest,
    timeout: Option<Duration>,
    share: &Share,
) -> Result<(Asked, String)> {
    if request.id.len() > MAX_ID_BYTES {
        return Err(Failure::invalid(format!("it has more than {MAX_ID_BYTES} bytes")).at("id"));
    }
    let says = |name| request.parameters.get(name).is_some_and(is_some);
    let id = match request.parameters.get("sequence_id").and_then(|id| id.parameter_choice.as_ref()) {
        Some(ParameterChoice::Int64Param(number)) => SequenceId::of_number(*number as u64),
        Some(ParameterChoice::Uint64Param(number)) => SequenceId::of_number(*number),
        Some(ParameterChoice::StringParam(text)) => SequenceId::of_text(text),
        None | Some(ParameterChoice::BoolParam(_) | ParameterChoice::DoubleParam(_)) => None,
    };
    let sequence = InSequence::new(id, says("sequence_start"), says("sequence_end"))?;
    let raw = request.raw_input_contents;
    let sent = request.inputs.iter().filter(|input| !is_placed(&input.parameters)).count();
    if !raw.is_empty() && raw.len() != sent {
        let told = format!("{} raw_input_contents for {sent} inputs", raw.len());
        return Err(Failure::invalid(told).at("raw_input_contents"));
    }
    let mut raw = raw.into_iter();
    let mut inputs = Vec::with_capacity(request.inputs.len());
    for input in request.inputs {
        let name = input.name.clone();
        let bytes = match is_placed(&input.parameters) {
            true => Some(place(caller, &input.parameters)?.read(share)?),
            // Those in shared memory have no place in the list.
            false => raw.next(),
        };
        let given = given(input, bytes);
        inputs.push(given.map_err(|failure| failure.at(format!("input {name}")))?);
    }
    let mut outputs = Vec::with_capacity(request.outputs.len());
    for output in request.outputs {
        if output.parameters.get("classification").is_some_and(is_some) {
            let told = "outputs are tensors only: this gateway does not classify";
            return Err(Failure::unsupported(told).at(format!("output {}", output.name)));
        }
        let place = is_placed(&output.parameters).then(|| place(caller, &output.parameters)).transpose()?;
        outputs.push(Wanted { name: output.name, place });
    }
    let by_parameter =
        match request.parameters.get("timeout").and_then(|parameter| parameter.parameter_choice.as_ref()) {
            Some(ParameterChoice::Int64Param(us)) => u64::try_from(*us).ok(),
            Some(ParameterChoice::Uint64Param(us)) => Some(*us),
            _ => None,
        };
    let deadline = timeout.or(by_parameter.filter(|us| *us > 0).map(Duration::from_micros));
    let (model, version) = (request.model_name, request.model_version);
    let asked = Asked { model, version, inputs, outputs, sequence, deadline, ..Asked::default() };
    Ok((asked, request.id))
}

/// Who finds places in shared memory.
pub(super) trait Placing {
    /// A place in a region.
    fn place(&self, region: &str, offset: u64, bytes: u64) -> Result<Place>;
}

impl Placing for Caller {
    fn place(&self, region: &str, offset: u64, bytes: u64) -> Result<Place> {
        self.regions()?.place(region, offset, bytes)
    }
}

type Parameters = HashMap<String, InferParameter>;

/// True if a tensor is in shared memory.
fn is_placed(parameters: &Parameters) -> bool {
    parameters.get("shared_memory_region").is_some_and(is_some)
}

fn place(caller: &impl Placing, parameters: &Parameters) -> Result<Place> {
    let choice = |name: &str| parameters.get(name).and_then(|parameter| parameter.parameter_choice.as_ref());
    let number = |name: &str| match choice(name) {
        None => Ok(0),
        Some(ParameterChoice::Int64Param(value)) if *value >= 0 => Ok(*value as u64),
        Some(ParameterChoice::Uint64Param(value)) => Ok(*value),
        Some(_) => Err(Failure::invalid("it is no number of bytes").at(name)),
    };
    let Some(ParameterChoice::StringParam(region)) = choice("shared_memory_region") else {
        return Err(Failure::invalid("it is no name of a region").at("shared_memory_region"));
    };
    caller.place(region, number("shared_memory_offset")?, number("shared_memory_byte_size")?)
}

/// True if a parameter says anything but nothing.
fn is_some(parameter: &InferParameter) -> bool {
    match &parameter.parameter_choice {
        None => false,
        Some(ParameterChoice::BoolParam(value)) => *value,
        Some(ParameterChoice::Int64Param(value)) => *value != 0,
        Some(ParameterChoice::Uint64Param(value)) => *value != 0,
        Some(ParameterChoice::DoubleParam(value)) => *value != 0.0,
        Some(ParameterChoice::StringParam(value)) => !value.is_empty(),
    }
}

fn given(input: InferInputTensor, raw: Option<Bytes>) -> Result<Given> {
    let dtype = data_type::named(&input.datatype).ok_or_else(|| {
        let shown: String = input.datatype.chars().take(20).collect();
        Failure::invalid(format!("`{shown}` is no datatype of functions"))
    })?;
    let shape =
        input.shape.iter().map(|elements| u64::try_from(*elements)).collect::<std::result::Result<_, _>>();
    let shape =
        shape.map_err(|_| Failure::invalid("a dimension is negative: a request has all dimensions"))?;
    let bytes = match (raw, input.contents) {
        (Some(_), Some(contents)) if contents != InferTensorContents::default() => {
            return Err(Failure::invalid("contents and raw_input_contents: send one of the two"));
        }
        (Some(raw), _) => raw,
        (None, Some(contents)) => numbers(dtype, contents)?,
        (None, None) => Bytes::new(),
    };
    Ok(Given { name: input.name, dtype, shape, bytes })
}

/// Elements of a list of numbers.
fn numbers(dtype: DType, contents: InferTensorContents) -> Result<Bytes> {
    let numbers: Box<dyn Iterator<Item = Number>> = match dtype {
        DType::Bool => Box::new(contents.bool_contents.into_iter().map(Number::Bool)),
        DType::I8 | DType::I16 | DType::I32 => {
            Box::new(contents.int_contents.into_iter().map(|value| Number::Int(value.into())))
        }
        DType::I64 => Box::new(contents.int64_contents.into_iter().map(Number::Int)),
        DType::U8 | DType::U16 | DType::U32 => {
            Box::new(contents.uint_contents.into_iter().map(|value| Number::UInt(value.into())))
        }
        DType::U64 => Box::new(contents.uint64_contents.into_iter().map(Number::UInt)),
        // These have their type already, also where they are infinite or no number.
        DType::F32 => {
            return Ok(contents.fp32_contents.iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        DType::F64 => {
            return Ok(contents.fp64_contents.iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        DType::F16 | DType::Bf16 | DType::F8E4M3FN | DType::F8E5M2 => {
            return Err(Failure::invalid(
                "numbers of 8 and 16 bits with a fraction go in raw_input_contents",
            ));
        }
    };
    let mut bytes = Vec::new();
    for number in numbers {
        if !data_type::push(&mut bytes, dtype, number) {
            let name = data_type::name_of(dtype);
            return Err(Failure::invalid(format!("{number:?} is no number of {name}")));
        }
    }
    Ok(bytes.into())
}

fn signed(shape: &[u64]) -> Vec<i64> {
    shape.iter().map(|elements| i64::try_from(*elements).unwrap_or(i64::MAX)).collect()
}

/// The answer to an inference.
pub(super) fn answer(inferred: Inferred, id: String) -> ModelInferResponse {
    let mut response = ModelInferResponse {
        model_name: inferred.model.name.clone(),
        model_version: inferred.version.to_string(),
        id,
        ..ModelInferResponse::default()
    };
    for output in inferred.outputs {
        response.outputs.push(InferOutputTensor {
            name: output.name,
            datatype: data_type::name_of(output.dtype).to_owned(),
            shape: signed(&output.shape),
            parameters: HashMap::new(),
            contents: None,
        });
        response.raw_output_contents.push(output.bytes);
    }
    response
}

/// What a function takes and gives.
pub(super) fn metadata(model: &Model) -> ModelMetadataResponse {
    let port = |port: &Port| TensorMetadata {
        name: port.name.clone(),
        datatype: port.datatype().to_owned(),
        shape: port.shape.clone(),
    };
    ModelMetadataResponse {
        name: model.name.clone(),
        versions: model.versions(),
        platform: "pappus".to_owned(),
        inputs: model.inputs.iter().map(port).collect(),
        outputs: model.outputs.iter().map(port).collect(),
    }
}

/// The same, as Triton's configuration of a model.
pub(super) fn config(model: &Model) -> ModelConfig {
    let data_type = |port: &Port| {
        DataType::from_str_name(&format!("TYPE_{}", port.datatype())).unwrap_or(DataType::TypeInvalid).into()
    };
    let input = |port: &Port| ModelInput {
        name: port.name.clone(),
        data_type: data_type(port),
        dims: port.shape.clone(),
    };
    let output = |port: &Port| ModelOutput {
        name: port.name.clone(),
        data_type: data_type(port),
        dims: port.shape.clone(),
    };
    ModelConfig {
        name: model.name.clone(),
        platform: "pappus".to_owned(),
        max_batch_size: 0,
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().map(output).collect(),
        backend: "pappus".to_owned(),
        sequence_batching: model.has_state.then(ModelSequenceBatching::default),
    }
}

/// What was inferred with a version of a function.
pub(super) fn statistics(name: &str, version: u32, counts: &Counts) -> ModelStatistics {
    let tally = |tally: Tally| Some(StatisticDuration { count: tally.count, ns: tally.ns });
    ModelStatistics {
        name: name.to_owned(),
        version: version.to_string(),
        last_inference: counts.last_ms,
        inference_count: counts.success.count,
        execution_count: counts.success.count,
        inference_stats: Some(InferStatistics {
            success: tally(counts.success),
            fail: tally(counts.fail),
            queue: tally(counts.queue),
            compute_input: tally(counts.compute_input),
            compute_infer: tally(counts.compute_infer),
            compute_output: tally(counts.compute_output),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has no shared memory.
    struct Nobody;

    impl Placing for Nobody {
        fn place(&self, _: &str, _: u64, _: u64) -> Result<Place> {
            Err(Failure::unsupported("no shared memory"))
        }
    }

    fn asked(request: ModelInferRequest, timeout: Option<Duration>) -> Result<(Asked, String)> {
        super::asked(&Nobody, request, timeout, &crate::memory::Memory::new(0).share())
    }

    fn request(inputs: Vec<InferInputTensor>, raw: &[&'static [u8]]) -> ModelInferRequest {
        let raw_input_contents = raw.iter().map(|raw| Bytes::from_static(raw)).collect();
        ModelInferRequest { inputs, raw_input_contents, ..Default::default() }
    }

    fn tensor(datatype: &str, shape: &[i64], contents: InferTensorContents) -> InferInputTensor {
        let contents = Some(contents).filter(|contents| *contents != InferTensorContents::default());
        InferInputTensor {
            name: "A".into(),
            datatype: datatype.into(),
            shape: shape.into(),
            contents,
            ..Default::default()
        }
    }

    #[test]
    fn an_input_is_raw_or_in_the_list_of_its_type() {
        let none = InferTensorContents::default;
        let raw = asked(request(vec![tensor("FP16", &[1], none())], &[b"xy"]), None).unwrap().0;
        assert_eq!((&raw.inputs[0].bytes[..], raw.inputs[0].dtype), (&b"xy"[..], DType::F16));
        let list = InferTensorContents { int_contents: vec![-1, 2], ..none() };
        let read = asked(request(vec![tensor("INT8", &[2], list.clone())], &[]), None).unwrap().0;
        assert_eq!(&read.inputs[0].bytes[..], [255, 2]);
        let floats = InferTensorContents { fp32_contents: vec![f32::NEG_INFINITY, f32::NAN], ..none() };
        let read = asked(request(vec![tensor("FP32", &[2], floats)], &[]), None).unwrap().0;
        assert_eq!(read.inputs[0].bytes[..4], f32::NEG_INFINITY.to_le_bytes());
        for (input, raw, words) in [
            (tensor("INT8", &[2], list.clone()), &[&b"xy"[..]][..], "one of the two"),
            (tensor("INT8", &[2], none()), &[b"x", b"y"], "2 raw_input_contents for 1"),
            (tensor("INT8", &[-1], list.clone()), &[], "negative"),
            (tensor("BYTES", &[1], none()), &[b"x"], "no datatype"),
            (tensor("BF16", &[1], list), &[], "raw_input_contents"),
            (
                tensor("INT8", &[1], InferTensorContents { int_contents: vec![500], ..none() }),
                &[],
                "no number of INT8",
            ),
        ] {
            let why = asked(request(vec![input], raw), None).unwrap_err();
            assert!(why.message.contains(words), "{why}");
        }
    }

    #[test]
    fn unknown_parameters_are_ignored_and_sequences_read() {
        let mut request = request(vec![], &[]);
        let yes = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        request.parameters.insert("triton_enable_empty_final_response".into(), yes);
        let timeout = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(500)) };
        request.parameters.insert("timeout".into(), timeout);
        assert_eq!(asked(request.clone(), None).unwrap().0.deadline, Some(Duration::from_micros(500)));
        let second = Some(Duration::from_secs(1));
        assert_eq!(asked(request.clone(), second).unwrap().0.deadline, second);
        let sequence = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("s".into())) };
        request.parameters.insert("sequence_id".into(), sequence);
        request.parameters.insert(
            "sequence_start".into(),
            InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) },
        );
        let sequence = asked(request.clone(), None).unwrap().0.sequence.unwrap();
        assert_eq!(sequence, InSequence { id: SequenceId::Text("s".into()), start: true, end: false });
        request.parameters.remove("sequence_id");
        assert_eq!(asked(request, None).unwrap_err().row().grpc, 3);
    }
}
