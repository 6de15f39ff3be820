//! PTX to fenced PTX. Each pass takes a function and leaves it with one more property:
//!
//! [`variables`] have a place in the window → [`flatten`]: one scope, all names known → [`parameters`] are reached by their
//! names → [`allow`]: only what the fence knows → [`simplify`]: no hints, no tables → [`calls`]: no recursion → [`inline`]: no
//! calls → [`arguments`]: no parameters but a kernel's → [`origins`]: no generic access → [`variables::numbers`]: no address of a
//! variable → [`locals`]: local accesses bounded → [`globals`]: global accesses fenced → [`fuel`]: loops can be stopped →
//! [`whole`], [`shared`], [`clear`]: no leftovers → [`mod@write`]: text.

mod access;
mod allow;
mod arguments;
mod body;
mod calls;
mod clear;
mod flatten;
mod fuel;
mod globals;
mod inline;
mod locals;
mod opcodes;
mod origins;
mod parameters;
mod shared;
mod simplify;
mod variables;
mod whole;
mod write;

use std::collections::HashSet;
use std::fmt::Write;

pub use variables::Variable;

use crate::read::tree::{Module, Operand, Space};
use crate::read::{self, BEGINNING};
use crate::refused::Refused;
use crate::window::{
    CLEARING_TARGET, CLEARING_VERSION, FUEL, FUEL_LEFT, GROWTH_LIMIT, HI, NEWEST_VERSION, OLDEST_TARGET,
    WINDOW,
};
use body::{Body, Reasons, Symbols, made, number, word};
use flatten::Names;

/// A module that was fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fenced {
    /// The text for the driver.
    pub text: String,
    /// Variables that lie in the window now, in the order of their places.
    pub variables: Vec<Variable>,
    /// Bytes from [`VARIABLES_BEGIN`](crate::window::VARIABLES_BEGIN) to the end of the last variable.
    pub variables_bytes: u64,
    /// Kernels that clear shared memory before they begin.
    pub clearing: Vec<String>,
}

/// Fences a module, or gives the first reason why not.
pub fn fence(text: &str) -> Result<Fenced, Refused> {
    fence_or_reasons(text).map_err(|reasons| {
        let first = reasons.into_iter().min_by_key(|r| (r.line, r.column));
        first.unwrap_or_else(|| Refused::at(BEGINNING, "module", "the module cannot be fenced"))
    })
}

/// All reasons why a module cannot be fenced, in the order of the text; none if it can be.
pub fn reasons(text: &str) -> Vec<Refused> {
    let mut reasons = fence_or_reasons(text).err().unwrap_or_default();
    reasons.sort_by_key(|r| (r.line, r.column));
    // A function's instruction may stand in several kernels by now.
    reasons.dedup_by_key(|r| (r.line, r.column, r.why.clone()));
    reasons
}

fn fence_or_reasons(text: &str) -> Result<Fenced, Vec<Refused>> {
    let mut module = read::module(text).map_err(|refused| vec![refused])?;
    let mut reasons = Reasons::default();
    let sm = target(&module, &mut reasons);
    let mut symbols = Symbols::default();
    let prefix = unused(text);
    let (mut variables, variables_bytes) = variables::place(&mut module, &mut symbols, &prefix, &mut reasons);
    if reasons.list.is_empty() {
        variables::initialise(&mut module, &symbols, &mut variables, &mut reasons);
    }
    let functions = std::mem::take(&mut module.functions);
    let mut names = Names { symbols: &symbols, prefix: &prefix, moved: HashSet::new() };
    let mut bodies: Vec<Body<'_>> =
        functions.into_iter().map(|f| flatten::flatten(f, &mut names, &mut reasons)).collect();
    for body in &mut bodies {
        parameters::parameters(body);
        calls::sizes(body, &mut reasons);
        allow::allow(body, &symbols, &mut reasons);
        simplify::simplify(body, &prefix);
        simplify::tables(body, &prefix, &mut reasons);
    }
    for body in &mut bodies {
        body.calls = calls::called(body, &symbols);
    }
    let order = calls::order(&bodies, &mut reasons);
    inline::inline(&mut bodies, &order, &symbols, &prefix, &mut reasons);
    // What is left of functions are copies.
    let moved: Vec<_> = bodies.iter_mut().flat_map(|b| std::mem::take(&mut b.shared)).collect();
    bodies.retain(|b| b.function.entry);
    bodies.iter_mut().for_each(arguments::arguments);
    bodies.iter_mut().for_each(|body| origins::origins(body, &symbols, &mut reasons));
    for body in &mut bodies {
        body.touches_shared = shared::touches(body, &symbols);
        variables::numbers(body, &symbols);
        locals::locals(body, &mut reasons);
    }
    // Passes behind this make statements of what declarations say, so limits have to hold by now.
    if !reasons.list.is_empty() {
        return Err(in_source(reasons.list, &prefix));
    }
    for body in &mut bodies {
        globals::globals(body, &symbols);
        fuel::fuel(body);
        whole::whole(body);
    }
    let clearing = bodies.iter().any(|b| b.touches_shared);
    let mut out = String::with_capacity(text.len() * 2);
    module.variables.extend(moved);
    header(&mut out, &module, sm, clearing);
    for body in &mut bodies {
        begin(body);
        if !reasons.list.is_empty() {
            continue;
        }
        write::function(&mut out, body, &DECLARED, WINDOW);
        body.statements = Vec::new();
        if out.len() > GROWTH_LIMIT * text.len() + (1 << 20) {
            reasons.push(Refused::at(
                body.function.at,
                body.function.name.to_string(),
                "the fenced text would be too long",
            ));
        }
    }
    if !reasons.list.is_empty() {
        return Err(in_source(reasons.list, &prefix));
    }
    let clears = bodies.iter().filter(|b| b.touches_shared);
    let clearing = clears.map(|b| b.function.name.to_string()).collect();
    Ok(Fenced { text: out, variables, variables_bytes, clearing })
}

/// The reasons, with names as the source has them.
fn in_source(mut reasons: Vec<Refused>, prefix: &str) -> Vec<Refused> {
    for text in reasons.iter_mut().flat_map(|r| [&mut r.what, &mut r.why]) {
        let mut pieces = text.split(prefix);
        let mut shown = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            shown.truncate(shown.strip_suffix('v').unwrap_or(&shown).len());
            let name = piece.trim_start_matches(|c: char| c.is_ascii_digit());
            shown.push_str(name.strip_prefix('_').unwrap_or(name));
        }
        *text = shown;
    }
    reasons
}

/// The number in `sm_90a`.
fn target(module: &Module<'_>, reasons: &mut Reasons) -> u32 {
    let digits = module.target.strip_prefix("sm_").unwrap_or("").trim_end_matches(['a', 'f']);
    let sm = digits.parse().unwrap_or(0);
    if sm < OLDEST_TARGET {
        let why = format!(
            "only modules for sm_{OLDEST_TARGET} and later can be fenced: compile it for a later target"
        );
        reasons.push(Refused::at(BEGINNING, format!(".target {}", module.target), why));
    }
    if module.version > NEWEST_VERSION {
        let (major, minor) = NEWEST_VERSION;
        let what = format!(".version {}.{}", module.version.0, module.version.1);
        let why = format!(
            "only PTX up to version {major}.{minor} can be fenced: ask the compiler for an older one"
        );
        reasons.push(Refused::at(BEGINNING, what, why));
    }
    sm
}

/// Letters and digits that the text does not contain, for names of inner scopes.
fn unused(text: &str) -> String {
    let mut taken = HashSet::new();
    for behind in text.split('s').skip(1) {
        let digits = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if behind[digits..].starts_with('x') {
            taken.extend(behind[..digits].parse::<u64>());
        }
    }
    let free = (0..).find(|n| !taken.contains(n)).unwrap_or(u64::MAX);
    format!("s{free}x")
}

/// Everything before the first function.
fn header(out: &mut String, module: &Module<'_>, sm: u32, clearing: bool) {
    let version = if clearing { module.version.max(CLEARING_VERSION) } else { module.version };
    let raised = clearing && sm < CLEARING_TARGET;
    let target = if raised { format!("sm_{CLEARING_TARGET}") } else { module.target.to_owned() };
    let _ = writeln!(out, ".version {}.{}\n.target {target}\n.address_size 64\n", version.0, version.1);
    for found in &module.variables {
        let space = match found.space {
            Space::Const => ".const",
            Space::Shared if found.size == 0 => ".extern .shared",
            Space::Shared => ".shared",
            _ => continue,
        };
        write::variable(out, space, found);
        out.push_str(";\n");
    }
}

/// What every function declares first.
const DECLARED: [&str; 3] = [
    ".reg .b32 %pappus_hi, %pappus_lo, %pappus_fuel, %pappus_step, %pappus_end;",
    ".reg .b64 %pappus_at, %pappus_base;",
    ".reg .pred %pappus_out;",
];

/// Puts in front of a function's statements what has to be done first.
fn begin(body: &mut Body<'_>) {
    let at = body.function.at;
    let mut first = vec![made(at, "ld.param.b32", [word(HI), Operand::Address(WINDOW.into(), 0)])];
    if body.loops {
        first.push(made(at, "mov.b32", [word(FUEL_LEFT), number(FUEL)]));
    }
    if body.touches_shared {
        first.extend(shared::clear(at));
    }
    for array in &body.locals {
        let places = (0..array.size).step_by(8);
        // Sizes are at most LOCAL_LIMIT, or the module is refused.
        let target = |place| Operand::Address(array.name.clone(), place as i64);
        first.extend(places.take(1 << 10).map(|place| made(at, "st.local.b64", [target(place), number(0)])));
    }
    first.extend(clear::clears(body));
    first.append(&mut body.statements);
    body.statements = first;
}
