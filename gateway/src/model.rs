//! A function as a model: names, version, tensors. A function of the caller's own has its name; one that another tenant granted is
//! `OWNER.NAME`. The versions of a model are those of the function: whoever asks for none gets the current one.

use pappus_blueprint::DType;
use pappus_client::v1;

use crate::data_type;

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
    /// The supervisor's number of what is registered, which says whether calls have to be made otherwise.
    pub number: u64,
    /// The number of this version.
    pub version: u32,
    /// Numbers of all versions, sorted.
    pub versions: Vec<u32>,
    /// What it takes.
    pub inputs: Vec<Port>,
    /// What it gives.
    pub outputs: Vec<Port>,
    /// True if it keeps state between the requests of a sequence.
    pub has_state: bool,
}

impl Model {
    /// As the supervisor tells of it.
    pub fn of(info: &v1::FunctionInfo) -> Self {
        let input = |(at, name): (usize, &String)| match info.input_types.get(at) {
            Some(declared) => Port::new(name, &declared.dtype, declared.shape.as_ref()),
            None => Port::new(name, "", None),
        };
        let mut versions = info.kept.clone();
        versions.push(info.current);
        versions.sort_unstable();
        versions.dedup();
        Self {
            name: info.name.replacen('/', ".", 1),
            function: info.name.clone(),
            number: info.version,
            version: info.number,
            versions,
            inputs: info.inputs.iter().enumerate().map(input).collect(),
            outputs: info
                .outputs
                .iter()
                .map(|output| Port::new(&output.name, &output.dtype, output.shape.as_ref()))
                .collect(),
            has_state: info.state_bytes > 0,
        }
    }

    /// The name of the model of which this is a version, however the version is called.
    pub fn base_name(&self) -> &str {
        base(&self.name)
    }

    /// Likewise the function.
    pub fn base_function(&self) -> &str {
        base(&self.function)
    }

    /// The versions as clients see them.
    pub fn versions(&self) -> Vec<String> {
        self.versions.iter().map(u32::to_string).collect()
    }
}

/// A name without the number or the alias of a version.
fn base(name: &str) -> &str {
    name.split(['@', ':']).next().unwrap_or_default()
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
            number: 3,
            current: 3,
            kept: vec![1, 4],
            ..Default::default()
        };
        let model = Model::of(&info);
        assert_eq!((&*model.name, &*model.function), ("acme.f", "acme/f"));
        assert_eq!((model.inputs[0].datatype(), &model.inputs[0].shape[..]), ("FP32", &[-1, 3][..]));
        assert_eq!((model.inputs[1].datatype(), &model.inputs[1].shape[..]), ("UINT8", &[-1][..]));
        assert_eq!((model.version, model.versions()), (3, ["1", "3", "4"].map(str::to_owned).to_vec()));
    }
}
