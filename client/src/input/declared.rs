//! What a function declares of its inputs, whether its blueprint tells it or the supervisor; and the shapes that go with
//! a call, from which free dimensions take their values.

use pappus_blueprint::{Array, Blueprint, DType, Declared, Dimension, Misfit, fit_all_bytes};
use pappus_client::v1::{self, dimension::Elements};

use super::Input;
use super::fit;
use super::spec::Expected;
use crate::failure::{Failure, Result};

/// The inputs of a function.
#[derive(Debug, Default)]
pub(crate) struct Signature {
    inputs: Vec<(String, Option<Declared>)>,
    /// Names of free dimensions.
    free: Vec<String>,
}

/// The type and shape of an input of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) input: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
}

/// What inputs tell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) arrays: Vec<Typed>,
    /// Free dimensions, by name.
    pub(crate) free: Vec<(String, u64)>,
}

impl Signature {
    /// As its blueprint declares it.
    pub(crate) fn of(blueprint: &Blueprint) -> Self {
        let names = blueprint.brought().iter().map(|id| blueprint.buffers()[id.index()].name.clone());
        Self {
            inputs: names.zip(blueprint.input_types().iter().cloned()).collect(),
            free: blueprint.free_dimensions().iter().map(|name| name.to_string()).collect(),
        }
    }

    /// The signature by the supervisor's account, also of another tenant's function. Types that this program does not
    /// know are left out.
    pub(crate) fn told(function: &v1::FunctionInfo) -> Self {
        let mut signature = Self::default();
        for (at, name) in function.inputs.iter().enumerate() {
            let declared = function.input_types.get(at).and_then(|told| {
                let dtype = DType::named(&told.dtype)?;
                let shape = told.shape.as_ref().map(|shape| signature.dimensions(shape));
                Some(Declared { dtype, shape })
            });
            signature.inputs.push((name.clone(), declared));
        }
        signature
    }

    fn dimensions(&mut self, shape: &v1::DeclaredShape) -> Vec<Dimension> {
        let mut dimension = |told: &v1::Dimension| match &told.elements {
            Some(Elements::Fixed(value)) => Dimension::Fixed(*value),
            Some(Elements::Free(name)) => Dimension::Free(self.name(name)),
            Some(Elements::Computed(_)) | None => Dimension::Computed,
        };
        shape.dimensions.iter().map(&mut dimension).collect()
    }

    fn name(&mut self, name: &str) -> u32 {
        let known = self.free.iter().position(|other| other == name);
        let at = known.unwrap_or(self.free.len());
        if known.is_none() {
            self.free.push(name.to_owned());
        }
        at as u32
    }

    /// Names of the inputs.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.inputs.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Finds the shapes of these inputs, as many as are there, and checks them.
    pub(crate) fn bind(&self, inputs: &[Input]) -> Result<Bound> {
        let mut free = vec![None; self.free.len()];
        let mut arrays = Vec::new();
        let mut shapeless = Vec::new();
        for (name, declared) in &self.inputs {
            let Some(declared) = declared else { continue };
            let Some(input) = inputs.iter().find(|input| input.name == *name) else { continue };
            let Some(shape) = shape_of(input, declared, &self.free)? else {
                shapeless.push((input, declared));
                continue;
            };
            let array = Array { dtype: declared.dtype, shape: &shape };
            declared.fit(&array, input.bytes(), &self.free, &mut free).map_err(|why| {
                Failure::Refused(format!("input {name:?}: {why}, as the function declares it"))
            })?;
            arrays.push(Typed { input: name.clone(), dtype: declared.dtype, shape });
        }
        let bytes =
            shapeless.iter().enumerate().map(|(at, (input, declared))| (at, *declared, input.bytes()));
        fit_all_bytes(bytes, &self.free, &mut free).map_err(|(at, why)| {
            let (input, declared) = shapeless[at];
            without_shape(input, declared, &why)
        })?;
        let free = self.free.iter().zip(free).filter_map(|(name, value)| Some((name.clone(), value?)));
        Ok(Bound { arrays, free: free.collect() })
    }
}

/// Bytes of an output of this type and shape, if these free dimensions tell it.
pub(crate) fn output_bytes(told: &v1::OutputInfo, free: &[(String, u64)]) -> Option<u64> {
    let dims = &told.shape.as_ref()?.dimensions;
    dims.iter().try_fold(DType::named(&told.dtype)?.bytes(), |bytes, dim| {
        let elements = match dim.elements.as_ref()? {
            Elements::Fixed(value) => *value,
            Elements::Free(name) => free.iter().find(|(free, _)| free == name)?.1,
            Elements::Computed(_) => return None,
        };
        bytes.checked_mul(elements)
    })
}

/// The shape of an input, where it says so: that of its only array, or the announced one. A declared shape of one
/// dimension only says how many elements there are, however they are arranged.
fn shape_of(input: &Input, declared: &Declared, names: &[String]) -> Result<Option<Vec<u64>>> {
    let wanted = || format!("{} as the function declares it", declared.text(names));
    let arrays = input.items.iter().filter_map(|item| Some((&item.source, item.array.as_ref()?)));
    for (source, array) in arrays {
        if !array.element.is(declared.dtype) {
            return Err(fit::mismatch(input, source, array, &wanted()));
        }
    }
    if let Some(Expected { dtype, .. }) = &input.expected
        && *dtype != declared.dtype
    {
        let (name, wanted) = (&input.name, wanted());
        return Err(Failure::Refused(format!(
            "input {name:?} is given as {}, expected {wanted}",
            dtype.name()
        )));
    }
    let width = declared.dtype.bytes();
    match declared.shape.as_ref().map(Vec::len) {
        Some(0) => return Ok(Some(Vec::new())),
        Some(1) if input.bytes().is_multiple_of(width) => return Ok(Some(vec![input.bytes() / width])),
        _ => {}
    }
    let alone = match &input.items[..] {
        [item] => item.array.as_ref().map(|array| array.shape.clone()),
        _ => None,
    };
    let announced = input.expected.as_ref().and_then(|Expected { shape, .. }| shape.clone());
    Ok(alone.or(announced))
}

/// Says how an input's shape can be said, where `why` asks for it.
fn without_shape(input: &Input, declared: &Declared, why: &Misfit) -> Failure {
    let (name, dtype) = (&input.name, declared.dtype.name());
    let dimensions = declared.shape.as_ref().map_or(1, Vec::len);
    let example: Vec<_> = (2..2 + dimensions).map(|extent| extent.to_string()).collect();
    let example = example.join(",");
    Failure::Refused(format!(
        "input {name:?} does not say its shape: {why}, as the function declares it: give a .npy file, or write the shape in \
         front of the bytes: {name}={dtype}[{example}]:FILE"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = r#""x": {"dtype": "f32", "shape": [{"Free": "n"}, {"Absolute": 2}]},
        "m": {"dtype": "u8", "shape": [{"Free": "n"}]}"#;

    fn signature() -> Signature {
        let text = format!(
            r#"{{"module_path": "m.wasm", "kernels": [], "blueprint": {{"inputs": ["x", "m"], "buffers": {{}},
                "outputs": ["x"], "types": {{{TYPES}}}, "control_flow": []}}}}"#
        );
        Signature::of(&pappus_blueprint::parse(text.as_bytes()).unwrap())
    }

    /// The same as a supervisor tells it.
    fn told() -> Signature {
        let dimension = |elements| v1::Dimension { elements: Some(elements) };
        let free = || dimension(Elements::Free("n".into()));
        let declared = |dtype: &str, dimensions| v1::DeclaredType {
            dtype: dtype.into(),
            shape: Some(v1::DeclaredShape { dimensions }),
        };
        Signature::told(&v1::FunctionInfo {
            inputs: vec!["x".into(), "m".into()],
            input_types: vec![
                declared("f32", vec![free(), dimension(Elements::Fixed(2))]),
                declared("u8", vec![free()]),
            ],
            ..v1::FunctionInfo::default()
        })
    }

    fn bind(signature: &Signature, inputs: &[(&str, &str)]) -> std::result::Result<Bound, String> {
        let inputs =
            inputs.iter().map(|(name, spec)| Input::open(name, &spec.parse().unwrap(), None).unwrap());
        signature.bind(&inputs.collect::<Vec<_>>()).map_err(|why| why.to_string())
    }

    #[test]
    fn free_dimensions_are_told_by_arrays() {
        for signature in [signature(), told()] {
            assert_eq!(signature.names(), ["x", "m"]);
            let bound = bind(&signature, &[("x", "f32[3,2]:1,2,3,4,5,6"), ("m", "u8:1,0,1")]).unwrap();
            assert_eq!(bound.free, [("n".to_owned(), 3)]);
            let shapes: Vec<_> = bound.arrays.iter().map(|array| (&*array.input, &*array.shape)).collect();
            assert_eq!(shapes, [("x", &[3, 2][..]), ("m", &[3])]);
            // Bytes are as many elements as they are, where there is one dimension.
            let bound = bind(&signature, &[("m", "text:four")]).unwrap();
            assert_eq!(bound.free, [("n".to_owned(), 4)]);
            // Bytes of pairs are as many pairs.
            let bound = bind(&signature, &[("x", "text:3 pairs of f32 are 24 b.")]).unwrap();
            assert_eq!((bound.free, bound.arrays.len()), (vec![("n".to_owned(), 3)], 0));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both() {
        for (inputs, words) in [
            (
                &[("x", "f32[2,3]:1,2,3,4,5,6")][..],
                "f32[n,2] is wanted, f32[2,3] came, as the function declares",
            ),
            (&[("x", "f32:1,2")], "f32[n,2] is wanted, f32[2] came"),
            (
                &[("x", "u32[1,2]:1,2")],
                "command line holds u32[1,2], expected f32[n,2] as the function declares it",
            ),
            (
                &[("x", "text:1234567")],
                "input \"x\" does not say its shape: f32[n,2] is wanted, 7 bytes came: no n has so many",
            ),
            (
                &[("x", "f32[1,2]:1,2"), ("m", "u8:1,2")],
                "input \"m\": u8[n] is wanted with n = 1, which came before; u8[2] came",
            ),
        ] {
            for signature in [signature(), told()] {
                let why = bind(&signature, inputs).unwrap_err();
                assert!(why.contains(words), "{why}");
            }
        }
    }

    #[test]
    fn outputs_have_room_where_their_shape_is_known() {
        let dims = |elements: Vec<Elements>| {
            let dimensions = elements.into_iter().map(|e| v1::Dimension { elements: Some(e) }).collect();
            let shape = Some(v1::DeclaredShape { dimensions });
            v1::OutputInfo { name: "y".into(), dtype: "f32".into(), shape }
        };
        let free = [("n".to_owned(), 3)];
        let known = dims(vec![Elements::Free("n".into()), Elements::Fixed(5)]);
        assert_eq!(output_bytes(&known, &free), Some(60));
        assert_eq!(output_bytes(&known, &[]), None);
        assert_eq!(output_bytes(&dims(vec![Elements::Computed(String::new())]), &free), None);
        assert_eq!(output_bytes(&dims(vec![Elements::Fixed(u64::MAX), Elements::Fixed(2)]), &free), None);
        assert_eq!(
            output_bytes(&v1::OutputInfo { dtype: "f32".into(), ..v1::OutputInfo::default() }, &free),
            None
        );
    }
}
