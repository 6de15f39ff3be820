//! Random compositions: what links computes what separate calls compute, and no text makes the linker panic. A case that fails
//! is told by its seed.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::linked;
use super::numbers::{Data, kinds, same};
use crate::{Array, Blueprint, DType, Sizes};

/// A small generator of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % sides
    }
}

/// A composition of some of the kinds; not each links.
fn composition(dice: &mut Dice) -> Value {
    let mut sources = vec![json!("p"), json!("q")];
    let mut steps = Vec::new();
    for at in 0..1 + dice.roll(6) {
        let name = format!("s{at}");
        let kinds = [
            ("scale", &["x"][..], &["y"][..]),
            ("mix", &["a", "b"], &["y"]),
            ("in_place", &["x"], &["x", "y"]),
            ("keep", &["x"], &["y"]),
            ("grow", &["x"], &["y"]),
            ("old", &["x"], &["y"]),
            ("weighed", &["x"], &["y"]),
            ("counted", &["x", "k"], &["y"]),
        ];
        let (function, inputs, outputs) = kinds[dice.roll(kinds.len())];
        let mut step = json!({"name": name, "function": function, "inputs": {}});
        for input in inputs {
            step["inputs"][input] = match *input {
                "k" => json!("k"),
                _ => sources[dice.roll(sources.len())].clone(),
            };
        }
        if dice.roll(4) == 0 && function != "grow" {
            step["times"] = json!(1 + dice.roll(3));
            let output = outputs[dice.roll(outputs.len())];
            let input = if output == "x" { "x" } else { inputs[0] };
            step["feed"] = json!({output: input});
        }
        sources.extend(outputs.iter().map(|output| json!({"step": name, "output": output})));
        steps.push(step);
    }
    let mut outputs = serde_json::Map::new();
    for at in 0..1 + dice.roll(3) {
        outputs.insert(format!("o{at}"), sources[dice.roll(sources.len())].clone());
    }
    json!({
        "inputs": ["p", "q"], "constants": {"k": {"dtype": "i64", "values": [7, 2]}}, "steps": steps, "outputs": outputs,
    })
}

/// The same with only those inputs that something uses.
fn used(mut composition: Value) -> Value {
    let text = format!("{}{}", composition["steps"], composition["outputs"]);
    let names = ["p", "q"].into_iter().filter(|name| text.contains(&format!("\"{name}\"")));
    composition["inputs"] = names.collect();
    composition
}

/// True if a call with these inputs is accepted.
fn fits(blueprint: &Blueprint, inputs: &[&Data]) -> bool {
    let bytes: Vec<u64> = inputs.iter().map(|input| input.bytes.len() as u64).collect();
    let array = |at: usize| inputs[at].typed.as_ref().map(|(dtype, shape)| Array { dtype: *dtype, shape });
    let Ok(free) = blueprint.bind(&bytes, array) else { return false };
    // Those of `weighed`, and the one constant.
    let weights = vec![16; blueprint.weights().len()];
    blueprint.plan(&Sizes { inputs: &bytes, weights: &weights, words: &[], free: &free }).is_ok()
}

#[test]
fn random_compositions_compute_what_separate_calls_do() {
    let library = kinds();
    let mut fit = 0;
    for seed in 0..600 {
        let composition = used(composition(&mut Dice(seed)));
        let Ok(linked) = linked(&library, &composition.to_string()) else { continue };
        // One of the inputs may have to be so much longer than the other.
        let array = |n: u64, seed: u64| Data::new(DType::F32, &[n], seed);
        let sizes = (1 + seed % 5..9).flat_map(|p| (1..9).map(move |q| (p, q)));
        let inputs = sizes.map(|(p, q)| [("p", array(p, seed)), ("q", array(q, seed + 1))]).find(|inputs| {
            let used = inputs.iter().filter(|(name, _)| linked.blueprint.buffer_named(name).is_some());
            fits(&linked.blueprint, &used.map(|(_, data)| data).collect::<Vec<_>>())
        });
        let Some(inputs) = inputs else { continue };
        fit += 1;
        println!("seed {seed}");
        same(&library, &composition, &inputs);
    }
    println!("{fit} of 600 linked");
    assert!(fit > 200, "only {fit} of 600 linked");
}

proptest! {
    #[test]
    fn damaged_compositions_do_not_panic(seed in 0..1000u64, at in any::<prop::sample::Index>(), byte: u8) {
        let mut json = used(composition(&mut Dice(seed))).to_string().into_bytes();
        let at = at.index(json.len());
        json[at] = byte;
        let text = String::from_utf8_lossy(&json).into_owned();
        if let Err(found) = linked(&kinds(), &text) {
            for error in found.iter() {
                prop_assert!(!error.message.is_empty() && error.position.is_some(), "{}", error);
            }
        }
    }
}
