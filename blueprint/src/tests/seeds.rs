//! Both spellings of the ancestors' format load unchanged.

use crate::{Location, ParamKind, Role, Sizes, Space, Step, parse};

const OLD: &str = r#"
{ "module_path": "lib/mlops.hsaco", "kernels": ["matmul_para"],
  "blueprint": {
    "inputs": ["cfg", "A"],
    "buffers": {"B": {"Sizeof": "A"}},
    "outputs": ["B"],
    "control_flow": [
      {"ExecKernel": ["matmul_para", [{"Ptr": "A"}, {"Sizeof": "A"}, {"Ptr": "B"}],
        {"grid_dim_x": {"FromInput": {"bufname": "cfg", "idx": 0}},
         "grid_dim_y": {"FromInput": {"bufname": "cfg", "idx": 0}},
         "grid_dim_z": {"Absolute": 1},
         "block_dim_x": {"Absolute": 32}, "block_dim_y": {"Absolute": 32},
         "block_dim_z": {"Absolute": 1}, "shared_mem_bytes": {"Absolute": 0}}]}]}}"#;

fn new_spelling() -> String {
    OLD.replace(
        r#""module_path": "lib/mlops.hsaco", "kernels": ["matmul_para"]"#,
        r#""modules": [{"module_name": "mlops.hsaco", "path": "mlops.hsaco"}],
           "kernels": [{"module_name": "mlops.hsaco", "kernel_name": "matmul_para"}]"#,
    )
    .replace(r#""inputs": ["cfg", "A"],"#, r#""inputs": ["cfg", "A"], "weights": ["W0", "W1"],"#)
}

#[test]
fn old_spelling_plans() {
    let blueprint = parse(OLD.as_bytes()).unwrap();
    assert_eq!(blueprint.modules()[0].path, "lib/mlops.hsaco");
    assert_eq!(blueprint.modules()[0].name, "mlops.hsaco");
    assert_eq!(blueprint.words().len(), 1);

    let plan = blueprint.plan(&Sizes { inputs: &[8, 1000], weights: &[], words: &[4], free: &[] }).unwrap();
    assert_eq!(plan.pool_bytes, 256 + 1024 + 1024);
    let [
        Step::Launch {
            kernel: 0,
            grid: [4, 4, 1],
            block: [32, 32, 1],
            cluster: [1, 1, 1],
            shared_bytes: 0,
            params,
        },
    ] = plan.steps.as_slice()
    else {
        panic!("{:?}", plan.steps)
    };
    assert_eq!(*params, 0..3);
    let kinds: Vec<_> = plan.params.params.iter().map(|param| param.kind).collect();
    assert_eq!(kinds, [ParamKind::Pointer, ParamKind::U64, ParamKind::Pointer]);
    assert_eq!(plan.params.slots, [0, 1000, 0]);
    let pointers: Vec<_> = plan.params.relocations.iter().map(|at| (at.slot, at.space, at.addend)).collect();
    assert_eq!(pointers, [(0, Space::Pool, 256), (2, Space::Pool, 1280)]);
}

#[test]
fn new_spelling_plans_the_same() {
    let old = parse(OLD.as_bytes()).unwrap();
    let new = parse(new_spelling().as_bytes()).unwrap();
    assert_eq!(new.modules()[0].path, "mlops.hsaco");
    assert_eq!(new.kernels()[0].symbol, "matmul_para");
    assert_eq!(new.weights().len(), 2);
    assert_eq!(new.buffers()[2].role, Role::Weight);

    let old = old.plan(&Sizes { inputs: &[8, 1000], weights: &[], words: &[4], free: &[] }).unwrap();
    let new = new.plan(&Sizes { inputs: &[8, 1000], weights: &[3, 5], words: &[4], free: &[] }).unwrap();
    assert_eq!((old.pool_bytes, &old.steps, &old.params), (new.pool_bytes, &new.steps, &new.params));
    let weights = new.buffers[2..4].iter().map(|at| Location { space: at.space, offset: at.offset });
    let expected = [0, 256].map(|offset| Location { space: Space::Weights, offset });
    assert_eq!(weights.collect::<Vec<_>>(), expected);
}

#[test]
fn an_input_may_be_an_output() {
    let json = OLD.replace(r#""outputs": ["B"]"#, r#""outputs": ["A"]"#);
    let blueprint = parse(json.as_bytes()).unwrap();
    assert_eq!(blueprint.outputs(), &blueprint.inputs()[1..]);
}
