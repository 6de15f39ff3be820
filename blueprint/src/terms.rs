//! What the value of a size comes from, in the words of who calls: formulas of dimensions, words and bytes, and which of them
//! makes a size 0. Written for errors only.

use crate::blueprint::{Blueprint, BufferId};
use crate::error::Error;
use crate::size::{Node, Op, SizeId, Values};

/// Levels of operations that a formula has; what is inside them is `…`.
const LEVELS: u32 = 4;

/// A size and its value: `ceil(n / 256) is 0 (the dimension n is 0)`; for a constant, `the value is 0`.
pub(crate) fn told(blueprint: &Blueprint, values: &Values<'_>, id: SizeId, value: u64) -> String {
    let node = blueprint.sizes.nodes()[id.index()];
    let Node::Binary(..) = node else { return leaf_is(blueprint, node, value) };
    let formula = formula(blueprint, id);
    match values.zero(id) {
        origin @ (Node::Input(_) | Node::Weight(_) | Node::Word(_) | Node::Free(_)) if value == 0 => {
            format!("{}: {formula} is 0", leaf_is(blueprint, origin, 0))
        }
        _ => format!("{formula} is {value}"),
    }
}

/// Why a size has no value: the innermost part that has none.
#[cold]
pub(crate) fn no_value(blueprint: &Blueprint, values: &Values<'_>, id: SizeId) -> Error {
    let (id, complaint) = values.without_value(id);
    Error::new(
        blueprint.sizes.place(id),
        format_args!("{} has no value: {complaint}", formula(blueprint, id)),
    )
}

/// `the dimension n is 3`.
fn leaf_is(blueprint: &Blueprint, node: Node, value: u64) -> String {
    let name = |id: BufferId| &blueprint.buffers[id.index()].name;
    match node {
        Node::Input(at) => format!("input {:?} has {value} bytes", name(blueprint.inputs[at as usize])),
        Node::Weight(at) => format!("weights {:?} have {value} bytes", name(blueprint.weights[at as usize])),
        Node::Word(at) => {
            let word = blueprint.words[at as usize];
            format!("word {} of {:?} is {value}", word.index, name(blueprint.inputs[word.input as usize]))
        }
        Node::Free(at) => format!("the dimension {} is {value}", blueprint.free[at as usize]),
        Node::Const(_) | Node::Binary(..) => format!("the value is {value}"),
    }
}

/// How a size is computed.
fn formula(blueprint: &Blueprint, id: SizeId) -> String {
    text(blueprint, id, LEVELS).0
}

/// A formula, and whether it is a sum, which other operations take in parentheses.
fn text(blueprint: &Blueprint, id: SizeId, levels: u32) -> (String, bool) {
    let name = |id: BufferId| &blueprint.buffers[id.index()].name;
    let whole = |text: String| (text, false);
    let (op, a, b) = match blueprint.sizes.nodes()[id.index()] {
        Node::Const(value) => return whole(value.to_string()),
        Node::Input(at) => return whole(format!("sizeof({})", name(blueprint.inputs[at as usize]))),
        Node::Weight(at) => return whole(format!("sizeof({})", name(blueprint.weights[at as usize]))),
        Node::Word(at) => {
            let word = blueprint.words[at as usize];
            return whole(format!("{}[{}]", name(blueprint.inputs[word.input as usize]), word.index));
        }
        Node::Free(at) => return whole(blueprint.free[at as usize].to_string()),
        Node::Binary(..) if levels == 0 => return whole("…".to_owned()),
        Node::Binary(op, a, b) => (op, text(blueprint, a, levels - 1), text(blueprint, b, levels - 1)),
    };
    let of = |(text, is_sum): &(String, bool)| if *is_sum { format!("({text})") } else { text.clone() };
    whole(match op {
        Op::Add => return (format!("{} + {}", a.0, b.0), true),
        Op::Sub => return (format!("{} − {}", a.0, of(&b)), true),
        Op::Mul => format!("{} × {}", of(&a), of(&b)),
        Op::CeilDiv => format!("ceil({} / {})", of(&a), of(&b)),
        Op::FloorDiv => format!("floor({} / {})", of(&a), of(&b)),
        Op::Mod => format!("({} mod {})", of(&a), of(&b)),
        Op::Min => format!("min({}, {})", a.0, b.0),
        Op::Max => format!("max({}, {})", a.0, b.0),
    })
}
