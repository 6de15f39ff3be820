//! The linker of compositions: JSON of a composition, and the functions that its steps run, become one function. Pure, and
//! done once, when the composition is registered: schedule, device and worker know nothing of compositions.
//!
//! In the order in which it works, each with what the one before made:
//! - `written`: the composition as written; `constants`: the bytes of its constants
//! - `function`: a function that it uses
//! - `wiring`: names become places: which step gets what from where
//! - `dimensions`, `shapes`: types and shapes across edges; what each free dimension is
//! - `names`, `rename`: what functions say, by the names of the linked function
//! - `text`, `runs`: the linked function as JSON, which is then read as any other
//!
//! `consecutive` is for compositions that cannot be linked: checked in the same way up to `wiring`, and then read as a list of
//! calls.

mod consecutive;
mod constants;
mod dimensions;
mod function;
mod names;
mod rename;
mod runs;
mod shapes;
mod text;
mod wiring;
pub(crate) mod written;

#[cfg(test)]
mod tests;

use crate::blueprint::Blueprint;
use crate::cursor::{Cursor, Kind};
use crate::error::{Mistakes, Notes, Path, text_of};
use crate::limits;
use crate::read;
use crate::resolve::parse;

pub use consecutive::{
    Consecutive, Constant, Items, Source, Step, Steps, as_used, consecutive, interface, names_others, steps,
};
pub use function::Part;

/// A composition as one function.
#[derive(Debug)]
pub struct Linked {
    /// The function's configuration.
    pub config: Vec<u8>,
    /// What the configuration says.
    pub blueprint: Blueprint,
    /// Names of the functions that steps run, each once.
    pub functions: Vec<String>,
    /// The modules, in the order of the blueprint.
    pub modules: Vec<LinkedModule>,
    /// The weights, in the order of the blueprint.
    pub weights: Vec<LinkedWeight>,
    /// The content of the weights that are of no function: the constants of the composition.
    pub constants: Vec<u8>,
}

/// A module of a linked function: the module at this place of one of its functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedModule {
    /// As the linked function calls it.
    pub name: String,
    /// A place in [`Linked::functions`].
    pub function: usize,
    /// The module's place in that function.
    pub module: usize,
}

/// Weights of a linked function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedWeight {
    /// As the linked function calls them.
    pub name: String,
    /// A place in [`Linked::functions`], and the place of the weights in that function; none for [`Linked::constants`].
    pub of: Option<(usize, usize)>,
}

/// True if a document is a composition, and no function: its top level has `steps` and no `blueprint`.
pub fn is_composition(json: &[u8]) -> bool {
    let Ok(text) = text_of(json) else { return false };
    let mut cursor = Cursor::new(text);
    let (mut first, mut steps) = (true, false);
    if !matches!(cursor.kind(), Ok(Kind::Object)) || cursor.open().is_err() {
        return false;
    }
    // What is no JSON behind `steps` is told as a mistake of a composition.
    while let Ok(Some(key)) = cursor.next_key(&mut first) {
        if key.text == "blueprint" {
            return false;
        }
        steps |= key.text == "steps";
        if cursor.skip().is_err() {
            break;
        }
    }
    steps
}

/// Reads a composition; what is wrong with what is written is in the notes.
fn read_composition(json: &[u8]) -> Result<(written::Composition, Notes<'_>), Mistakes> {
    if json.len() > limits::COMPOSITION_BYTES {
        let (bytes, most) = (json.len(), limits::COMPOSITION_BYTES);
        return Err(Path::Root.error(format_args!("{bytes} bytes of JSON, expected at most {most}")).into());
    }
    let text = text_of(json)?;
    let (written, notes, is_json) = read::document::<written::Composition>(text);
    let (Some(written), true) = (written, is_json) else {
        let nothing = || Path::Root.error("no composition").into();
        return Err(notes.finish().unwrap_or_else(nothing));
    };
    Ok((written, notes))
}

/// Links a composition. `part` finds the function of a name. An error is all that is wrong with the composition.
pub fn link(json: &[u8], mut part: impl FnMut(&str) -> Option<Part>) -> Result<Linked, Mistakes> {
    let (written, mut notes) = read_composition(json)?;
    let wiring = wiring::resolve(&written, &mut notes, &mut part);
    let root = Path::Root;
    let steps = root.key("steps");
    // What is too much to link is too much to compare.
    let fit = if wiring.is_too_much { dimensions::Fit::default() } else { shapes::fit(&wiring, &mut notes) };
    if let Some(mistakes) = notes.finish() {
        return Err(mistakes);
    }
    let at = |step: usize, why: &dyn std::fmt::Display| {
        Mistakes::from(steps.index(step).error(why).found_in(json))
    };
    let linked = text::write(&wiring, &fit).map_err(|text::TooMuch { step, why }| at(step, &why))?;
    let blueprint = parse(linked.config.as_bytes()).map_err(|mistakes| {
        let first = mistakes.first();
        let step = step_of(&first.path, &linked.begins);
        at(step, &format_args!("linked, this is no function: {first}"))
    })?;
    let functions = wiring.functions.into_iter().map(|function| function.name).collect();
    let text::Linked { config, modules, weights, constants, .. } = linked;
    Ok(Linked { config: config.into_bytes(), blueprint, functions, modules, weights, constants })
}

/// The step whose actions hold a place of the linked function; the first one where the place is none of a step's.
fn step_of(path: &str, begins: &[usize]) -> usize {
    let action = path.strip_prefix("blueprint.control_flow[").and_then(|rest| rest.split(']').next());
    let action = action.and_then(|action| action.parse::<usize>().ok());
    action.map_or(0, |action| begins.partition_point(|begin| *begin <= action).saturating_sub(1))
}
