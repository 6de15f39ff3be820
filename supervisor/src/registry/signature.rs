//! What a record keeps of a function's inputs and outputs: names, and types where there is room. Callers see it who may see
//! nothing else of the function.

use pappus_blueprint::{Blueprint, BufferDescription, Description, Dimension as Known, describe};

use crate::limits::{
    DECLARED_BYTES, DIMENSION_BYTES, MAX_FORMULA_BYTES, MAX_SIGNATURE_BYTES, MAX_TYPES_BYTES,
};
use crate::store::records::{Declared, Dimension, Output};

/// Inputs and outputs as a record has them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) inputs: Box<[Box<str>]>,
    pub(super) outputs: Box<[Output]>,
    pub(super) input_types: Box<[Declared]>,
}

/// The inputs and outputs of a blueprint; the bytes of their names, where they are too many.
pub(super) fn signature(blueprint: &Blueprint) -> Result<Signature, usize> {
    let name = |id: &pappus_blueprint::BufferId| blueprint.buffers()[id.index()].name.as_str();
    let ids = blueprint.brought().iter().chain(blueprint.returned());
    let name_bytes = ids.map(|id| name(id).len()).sum::<usize>();
    if name_bytes > MAX_SIGNATURE_BYTES {
        return Err(name_bytes);
    }
    let mut outputs: Vec<Output> = blueprint
        .returned()
        .iter()
        .map(|id| Output {
            name: name(id).into(),
            dtype: blueprint.buffers()[id.index()].dtype.map_or("", |dtype| dtype.name()).into(),
            shape: None,
        })
        .collect();
    let inputs = blueprint.brought().iter().map(|id| name(id).into()).collect();
    let mut input_types = Vec::new();
    if let Some(types) = types(blueprint) {
        let (of_inputs, of_outputs) = types.split_at(blueprint.brought().len());
        if of_inputs.iter().any(|declared| !declared.dtype.is_empty()) {
            input_types = of_inputs.to_vec();
        }
        for (output, declared) in outputs.iter_mut().zip(of_outputs) {
            output.shape.clone_from(&declared.shape);
        }
    }
    Ok(Signature { inputs, outputs: outputs.into(), input_types: input_types.into() })
}

/// What is declared of the inputs, then of the outputs; none where it is too much.
fn types(blueprint: &Blueprint) -> Option<Vec<Declared>> {
    let ids = || blueprint.brought().iter().chain(blueprint.returned());
    // Nothing is known, so every formula is in terms of what a call brings. It cannot fail: it names nothing.
    let described: Description = match ids().any(|id| blueprint.buffers()[id.index()].dtype.is_some()) {
        true => describe(blueprint, &pappus_blueprint::Known::default()).ok()?,
        false => return Some(vec![Declared::default(); ids().count()]),
    };
    let mut bytes = 0;
    let mut all = Vec::with_capacity(ids().count());
    for id in ids() {
        bytes += DECLARED_BYTES;
        let declared = blueprint.declared(*id);
        let buffer: &BufferDescription = &described.buffers[id.index()];
        let shape = declared.as_ref().and_then(|declared| declared.shape.as_ref());
        let formulas = buffer.shape.iter().flatten();
        let dims = shape.map(|dims| {
            dims.iter().zip(formulas).map(|(dim, formula)| match *dim {
                Known::Fixed(value) => Dimension::Fixed(value),
                Known::Free(at) => Dimension::Free(blueprint.free_dimensions()[at as usize].clone()),
                Known::Computed => Dimension::Computed(short(formula.to_string()).into()),
            })
        });
        let shape: Option<Box<[Dimension]>> = dims.map(Iterator::collect);
        let dims = shape.iter().flatten();
        bytes += dims.map(|dim| DIMENSION_BYTES + dim.text_bytes()).sum::<usize>();
        if bytes > MAX_TYPES_BYTES {
            return None;
        }
        let dtype = declared.map_or("", |declared| declared.dtype.name()).into();
        all.push(Declared { dtype, shape });
    }
    Some(all)
}

fn short(formula: String) -> String {
    if formula.len() > MAX_FORMULA_BYTES { "…".to_owned() } else { formula }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(inputs: &str, types: &str) -> Signature {
        try_of(inputs, types).unwrap()
    }

    fn try_of(inputs: &str, types: &str) -> Result<Signature, usize> {
        let json = format!(
            r#"{{"module_path": "m", "kernels": [], "blueprint": {{"inputs": [{inputs}],
                "buffers": {{"B": {{"Absolute": 8}}}}, "outputs": ["B"], "types": {{{types}}}, "control_flow": []}}}}"#
        );
        signature(&pappus_blueprint::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn types_are_kept_with_free_and_computed_dimensions() {
        let n = r#"{"Free": "n"}"#;
        let found = of(
            r#""A", "C""#,
            &format!(
                r#""A": {{"dtype": "f32", "shape": [{n}, {{"Absolute": 3}}]}}, "B": {{"dtype": "u8", "shape": [
                    {{"Product": [{n}, {{"Absolute": 2}}]}}]}}"#
            ),
        );
        let shape = [Dimension::Free("n".into()), Dimension::Fixed(3)];
        let typed = Declared { dtype: "f32".into(), shape: Some(Box::new(shape)) };
        assert_eq!(&*found.input_types, [typed, Declared::default()]);
        let output = &found.outputs[0];
        let computed = Dimension::Computed("2 × n".into());
        assert_eq!((&*output.dtype, output.shape.as_deref()), ("u8", Some(&[computed][..])));
    }

    #[test]
    fn functions_without_types_are_kept_as_ever() {
        let found = of(r#""A""#, "");
        assert_eq!((found.input_types.len(), &found.outputs[0].shape), (0, &None));
    }

    #[test]
    fn more_than_a_record_has_room_for_is_left_out() {
        let dims = vec![r#"{"Absolute": 1}"#; 32].join(",");
        let names: Vec<String> = (0..40).map(|n| format!("\"i{n}\"")).collect();
        let types: Vec<String> =
            names.iter().map(|name| format!(r#"{name}: {{"dtype": "u8", "shape": [{dims}]}}"#)).collect();
        let all = of(&names.join(","), &types.join(","));
        assert_eq!((all.inputs.len(), all.input_types.len()), (40, 0));
        let some = of(&names.join(","), &types[..20].join(","));
        assert_eq!(some.input_types.len(), 40);
    }

    #[test]
    fn names_that_no_record_has_room_for_are_refused() {
        let names = |count: usize| {
            let each: Vec<String> = (0..count).map(|n| format!("\"{n:0255}\"")).collect();
            each.join(",")
        };
        // Beside that of the output.
        assert_eq!(of(&names(64), "").inputs.len(), 64);
        assert_eq!(try_of(&names(65), ""), Err(65 * 255 + 1));
    }
}
