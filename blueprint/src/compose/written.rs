//! A composition as written: what is declared here is what `read` reads, and what `docs/composition.schema.json` says: the doc
//! comments are its descriptions.

use smol_str::SmolStr;

use crate::cursor::Kind;
use crate::error::Path;
use crate::format::NameOr;
use crate::limits::{INPUTS, STEPS};
use crate::read::{Json, List, Map, Read, object};
use crate::types::DType;

object! {
    /// Functions that run as one: each step is a function, whose inputs are the composition's own, constants, and outputs of earlier
    /// steps.
    Composition, "a composition" {
        /// Where this schema is, for editors; Pappus does not read it.
        may "$schema" _schema: String,
        /// Names of what comes with the call.
        part "inputs" inputs: List<String, INPUTS>,
        /// Arrays that are always the same, by name.
        may "constants" constants: Map<Constant>,
        /// What to run, in order.
        part "steps" steps: List<Step, STEPS>,
        /// The results, by name, in their order.
        part "outputs" outputs: Map<Source>,
    }
}

object! {
    /// An array that is always the same.
    Constant, "a constant" {
        /// The type of an element.
        need "dtype" dtype: DType,
        /// Elements along each dimension, outermost first; one dimension of all values by default.
        may "shape" shape: Vec<u64>,
        /// The elements, the last dimension fastest.
        need "values" values: Vec<Literal>,
    }
}

object! {
    /// A function that is run.
    Step, "a step" {
        /// The name that edges and errors call it by: 1 to 64 letters, digits, `_` and `-`.
        need "name" name: String,
        /// The function: NAME of the same owner, or OWNER/NAME of one that another granted.
        need "function" function: String,
        /// Where each of its inputs comes from.
        part "inputs" inputs: Map<Source>,
        /// Runs the function for each item of some inputs.
        may "each" each: Each,
        /// How often the function runs one time after the other; 1 by default.
        may "times" times: u64,
        /// Which output of one time is which input of the next.
        may "feed" feed: Map<SmolStr>,
    }
}

object! {
    /// A step that runs for each item of some inputs: they have one dimension more than the function's, the first, and so have
    /// the step's outputs.
    Each, "an `each`" {
        /// How many items there are.
        need "items" items: u64,
        /// The inputs that consist of items; every item has the others whole.
        need "inputs" inputs: Vec<SmolStr>,
    }
}

/// An input or a constant, by its name, or an output of an earlier step.
pub(crate) type Source = NameOr<OutputOf>;

object! {
    /// An output of an earlier step.
    OutputOf, "an output of a step" {
        /// The step.
        need "step" step: SmolStr,
        /// Which of its outputs; the only one by default.
        may "output" output: SmolStr,
    }
}

/// A number as written, or `true` or `false`: what it is depends on the type of the element.
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(untagged))]
pub(crate) enum Literal {
    /// A number that fits the type of an element.
    Number(#[cfg_attr(test, schemars(with = "f64"))] SmolStr),
    /// For elements of the type `bool`.
    Bool(bool),
}

impl Read for Literal {
    fn read(json: &mut Json<'_>, place: &Path<'_>) -> Option<Self> {
        match json.peek()? {
            Kind::Bool => bool::read(json, place).map(Self::Bool),
            _ => json.number(place).map(|text| Self::Number(text.into())),
        }
    }
}

impl crate::write::Write for Literal {
    fn write(&self, out: &mut String) {
        match self {
            Self::Number(text) => out.push_str(text),
            Self::Bool(value) => value.write(out),
        }
    }
}
