//! A function as a model: names, version, tensors. A function of the caller's own has its name; one that another tenant granted is
//! `OWNER.NAME`. The version of a model is the number of what is registered: whoever asks for a version gets exactly that, or is told
//! that there is another one.

use pappus_blueprint::DType;
use pappus_client::{Code, v1};

use crate::data_type;
use crate::failure::{Failure, Kind, Result};

/// An input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type; none where the function declares none, which is shown as bytes.
    pub dtype: Option<DType>,
    /// Its dimensions, -1 where a call decides.
    pub shape: Vec<i64>,
}

impl Port {
    fn new(name: &str, dtype: &str, shape: Option<&v1::DeclaredShape>) -> Self {
        let dtype = DType::named(dtype);
        let declared = shape.filter(|_| dtype.is_some()).map(|shape| {
            let elements = |dimension: &v1::Dimension| match &dimension.elements {
                Some(v1::dimension::Elements::Fixed(elements)) => i64::try_from(*elements).unwrap_or(-1),
                _ => -1,
            };
            shape.dimensions.iter().map(elements).collect()
        });
        Self { name: name.to_owned(), dtype, shape: declared.unwrap_or_else(|| vec![-1]) }
    }

    /// The protocol's name of its type.
    pub fn datatype(&self) -> &'static str {
        data_type::name_of(self.dtype.unwrap_or(DType::U8))
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// As it is listed.
    pub name: String,
    /// As the supervisor calls it for this caller.
    pub function: String,
    /// The supervisor's number of what is registered.
    pub number: u64,
    /// What it takes.
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
}

impl Model {
    /// As the supervisor tells of it.
    pub fn of(info: &v1::FunctionInfo) -> Self {
        let input = |(at, name): (usize, &String)| match info.input_types.get(at) {
            Some(declared) => Port::new(name, &declared.dtype, declared.shape.as_ref()),
            None => Port::new(name, "", None),
        };
        Self {
            name: info.name.replacen('/', ".", 1),
            function: info.name.clone(),
            number: info.version,
            inputs: info.inputs.iter().enumerate().map(input).collect(),
            outputs: info
                .outputs
                .iter()
                .map(|output| Port::new(&output.name, &output.dtype, output.shape.as_ref()))
                .collect(),
        }
    }

    /// The version as clients see it: a number that fits where they keep it.
    pub fn version(&self) -> String {
        (self.number & i64::MAX as u64).max(1).to_string()
    }

    /// An error unless this is the version that is asked for; an empty text asks for any.
    pub fn check_version(&self, asked: &str) -> Result<()> {
        if asked.is_empty() || asked == self.version() {
            return Ok(());
        }
        let is = self.version();
        let told = format!(
            "model `{}` has version {is} by now, and no other: ask without a version, or for it",
            self.name
        );
        Err(Failure::new(Kind::Supervisor(Code::NotFound), told).at("version"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_declared_is_bytes_of_any_number() {
        let free = |name: &str| v1::Dimension { elements: Some(v1::dimension::Elements::Free(name.into())) };
        let fixed = |n| v1::Dimension { elements: Some(v1::dimension::Elements::Fixed(n)) };
        let shape = v1::DeclaredShape { dimensions: vec![free("n"), fixed(3)] };
        let info = v1::FunctionInfo {
            name: "acme/f".into(),
            inputs: vec!["A".into(), "B".into()],
            input_types: vec![
                v1::DeclaredType { dtype: "f32".into(), shape: Some(shape) },
                v1::DeclaredType::default(),
            ],
            version: u64::MAX,
            ..Default::default()
        };
        let model = Model::of(&info);
        assert_eq!((&*model.name, &*model.function), ("acme.f", "acme/f"));
        assert_eq!((model.inputs[0].datatype(), &model.inputs[0].shape[..]), ("FP32", &[-1, 3][..]));
        assert_eq!((model.inputs[1].datatype(), &model.inputs[1].shape[..]), ("UINT8", &[-1][..]));
        assert_eq!(model.version(), i64::MAX.to_string());
        assert!(model.check_version("").is_ok() && model.check_version(&model.version()).is_ok());
        assert!(model.check_version("1").unwrap_err().text().contains("no other"));
    }
}
