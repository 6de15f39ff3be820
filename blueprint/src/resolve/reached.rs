//! Which buffers the device needs the bytes of, and which are used at all. An input that only sizes read need not be there.

use crate::blueprint::{Blueprint, FieldValue, Item, Step};

/// Notes which buffers a step names, or the result; and of inputs that nothing names, those whose shape tells a free dimension
/// that is used and that no other tells.
pub(super) fn mark(blueprint: &mut Blueprint, free_used: &[bool]) {
    let Blueprint { buffers, steps, items, tensor_maps, inputs, sizes, .. } = blueprint;
    let mut reach = |id: crate::BufferId| buffers[id.index()].named = true;
    for step in &*steps {
        match *step {
            Step::Copy { from, to, .. } => [from, to].into_iter().for_each(&mut reach),
            Step::Fill { buffer, .. } => reach(buffer),
            Step::Launch { .. } | Step::Repeat { .. } => {}
        }
    }
    for item in &*items {
        if let Item::Field { value: FieldValue::Pointer { buffer, .. }, .. } = item {
            reach(*buffer);
        }
    }
    tensor_maps.iter().for_each(|map| reach(map.buffer));
    buffers.iter_mut().for_each(|buffer| buffer.reached = buffer.named || buffer.output);
    let mut told = vec![false; free_used.len()];
    for used in [true, false] {
        for id in inputs.iter() {
            let buffer = &mut buffers[id.index()];
            let dims =
                buffer.shape.iter().flatten().filter_map(|dim| sizes.free(*dim)).map(|free| free as usize);
            for free in dims.filter(|_| buffer.used == used).collect::<Vec<_>>() {
                buffer.used |= free_used[free] && !std::mem::replace(&mut told[free], true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn an_input_that_only_sizes_read_does_not_reach_the_device() {
        let reached = |arguments: &str| -> Vec<(String, bool)> {
            let json = format!(
                r#"{{"module_path": "m.wasm", "kernels": ["k"], "blueprint": {{"inputs": ["n", "a", "b"], "weights": [],
                "buffers": {{"out": {{"FromInput": {{"bufname": "n", "idx": 0}}}}}}, "outputs": ["out"], "control_flow": [
                {{"Copy": {{"from": "b", "to": "out"}}}},
                {{"ExecKernel": ["k", [{arguments}], {{"grid_dim_x": {{"Absolute": 1}}, "grid_dim_y": {{"Absolute": 1}},
                "grid_dim_z": {{"Absolute": 1}}, "block_dim_x": {{"Absolute": 1}}, "block_dim_y": {{"Absolute": 1}},
                "block_dim_z": {{"Absolute": 1}}, "shared_mem_bytes": {{"Absolute": 0}}}}]}}]}}}}"#
            );
            let blueprint = parse(json.as_bytes()).unwrap();
            blueprint.buffers().iter().map(|buffer| (buffer.name.clone(), buffer.reached)).collect()
        };
        let named = |name: &str, is: bool| (name.to_owned(), is);
        let expected = |n| [named("n", n), named("a", true), named("b", true), named("out", true)];
        assert_eq!(reached(r#"{"Ptr": "a"}, {"Ptr": "out"}"#), expected(false));
        assert_eq!(reached(r#"{"Ptr": "a"}, {"Ptr": "n"}"#), expected(true));
    }
}
