//! Module variables: each gets a place in the window, its initial bytes, and its address becomes a number. Constants stay, with
//! addresses in their initial values as numbers.

use super::body::{Body, Reasons, Symbol, Symbols, number};
use super::flatten::special;
use crate::read::integer;
use crate::read::tree::{Initial, Module, Operand, Space, StatementKind, Variable as Declared, Word};
use crate::read::types::bytes;
use crate::refused::{Position, Refused};
use crate::window::{VARIABLES_BEGIN, VARIABLES_LIMIT};

/// A variable of a module, in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the source.
    pub name: String,
    /// Where it lies in the window.
    pub offset: u32,
    /// Its bytes before each call; those behind, up to `size`, are zero.
    pub bytes: Vec<u8>,
    /// How many bytes it has.
    pub size: u64,
    /// What its address is a multiple of.
    pub align: u64,
}

/// All variables' places, and the bytes from [`VARIABLES_BEGIN`] to the end of the last; every name of the module is known then.
pub(crate) fn place<'t>(
    module: &mut Module<'t>,
    symbols: &mut Symbols<'t>,
    prefix: &str,
    reasons: &mut Reasons,
) -> (Vec<Variable>, u64) {
    let mut placed = Vec::new();
    let mut end = u64::from(VARIABLES_BEGIN);
    for (i, function) in module.functions.iter_mut().enumerate() {
        // The driver's compiler has functions of its own whose names begin so.
        let built_in = function.name.starts_with("__");
        if function.entry && (built_in || function.name.starts_with('$') || special(&function.name)) {
            let why = "a kernel's name begins with a letter or one underscore";
            reasons.push(Refused::at(function.at, function.name.to_string(), why));
        }
        if let Some(new) =
            add(symbols, function.at, &function.name, Symbol::Function(i), built_in, prefix, reasons)
        {
            function.name = new;
        }
    }
    for declared in &module.declared {
        if !symbols.new.contains_key(&declared.name) {
            symbols.names.insert(declared.name.clone(), Symbol::Declared);
            symbols.new.insert(declared.name.clone(), declared.name.clone());
        }
    }
    for found in &mut module.variables {
        let symbol = match found.space {
            Space::Global => {
                let align = found.align.or(bytes(found.element)).unwrap_or(1).max(1);
                let offset = end.next_multiple_of(align);
                let Some(next) = offset
                    .checked_add(found.size)
                    .filter(|next| next - u64::from(VARIABLES_BEGIN) <= VARIABLES_LIMIT)
                else {
                    let most = VARIABLES_LIMIT >> 20;
                    let why = format!(
                        "the module's variables have more than {most} MiB: pass large ones as parameters"
                    );
                    reasons.push(Refused::at(found.at, found.name.to_string(), why));
                    continue;
                };
                end = next;
                // Below VARIABLES_BEGIN + VARIABLES_LIMIT, which is below 2^32.
                let (name, offset) = (found.name.to_string(), offset as u32);
                placed.push(Variable { name, offset, bytes: Vec::new(), size: found.size, align });
                Symbol::Global(offset)
            }
            Space::Const => Symbol::Const,
            _ => Symbol::Shared,
        };
        let external = found.linkage.contains(&".extern");
        if external != (found.size == 0) || (external && found.space != Space::Shared) {
            reasons.push(Refused::at(
                found.at,
                found.name.to_string(),
                "the variable is not defined in this module",
            ));
        }
        if let Some(new) = add(symbols, found.at, &found.name, symbol, false, prefix, reasons) {
            found.name = new;
        }
    }
    (placed, end - u64::from(VARIABLES_BEGIN))
}

/// Makes a name known; gives the one it has from now on.
fn add<'t>(
    symbols: &mut Symbols<'t>,
    at: Position,
    name: &Word<'t>,
    symbol: Symbol,
    rename: bool,
    prefix: &str,
    reasons: &mut Reasons,
) -> Option<Word<'t>> {
    let rename = rename || name.starts_with(['$', '%']) || special(name);
    let new = if rename {
        format!("v{prefix}_{}", name.trim_start_matches(['$', '%'])).into()
    } else {
        name.clone()
    };
    symbols.names.insert(new.clone(), symbol);
    if symbols.new.insert(name.clone(), new.clone()).is_some() {
        reasons.push(Refused::at(at, name.to_string(), "this name is declared twice"));
        return None;
    }
    Some(new)
}

/// Fills in initial bytes of variables, and makes numbers of addresses in constants.
pub(crate) fn initialise(
    module: &mut Module<'_>,
    symbols: &Symbols<'_>,
    placed: &mut [Variable],
    reasons: &mut Reasons,
) {
    let mut next = placed.iter_mut();
    for found in &mut module.variables {
        if found.space == Space::Shared && found.initialised {
            reasons.push(Refused::at(
                found.at,
                found.name.to_string(),
                "shared memory cannot have initial values",
            ));
        }
        addresses(found, symbols, reasons);
        if found.space == Space::Global {
            let Some(variable) = next.next() else { return };
            match image(found) {
                Some(image) => variable.bytes = image,
                None => reasons.push(Refused::at(
                    found.at,
                    found.name.to_string(),
                    "the fence does not know one of the initial values",
                )),
            }
        }
    }
}

/// Addresses in initial values become numbers: offsets in the window.
fn addresses(found: &mut Declared<'_>, symbols: &Symbols<'_>, reasons: &mut Reasons) {
    for value in &mut found.initial {
        let Initial::Address { at, name, offset, mask } = value else { continue };
        let Some(Symbol::Global(begin)) = symbols.new.get(*name).and_then(|new| symbols.names.get(new))
        else {
            let why = match symbols.new.get(*name).and_then(|new| symbols.names.get(new)) {
                Some(Symbol::Function(_) | Symbol::Declared) => {
                    "functions cannot be called through their addresses"
                }
                _ => "only addresses of variables in global memory can be initial values",
            };
            reasons.push(Refused::at(*at, *name, why));
            continue;
        };
        let address = u64::from(*begin).wrapping_add_signed(*offset);
        let address = match *mask {
            Some(0) => 0,
            Some(mask) => (address & mask) >> mask.trailing_zeros(),
            None => address,
        };
        *value = Initial::Number(address.to_string().into());
    }
}

/// The bytes of the initial values, less zeros at the end.
fn image(found: &Declared<'_>) -> Option<Vec<u8>> {
    let each = bytes(found.element)? as usize;
    if (found.initial.len() as u64).checked_mul(each as u64)? > found.size || (each > 8 && found.initialised)
    {
        return None;
    }
    let mut image = Vec::with_capacity(found.initial.len() * each);
    for value in &found.initial {
        let Initial::Number(text) = value else {
            // A reason stands for it already.
            image.resize(image.len() + each, 0);
            continue;
        };
        image.extend_from_slice(&bits(text, found.element)?.to_le_bytes()[..each]);
    }
    image.truncate(image.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1));
    Some(image)
}

/// The bits of a number of this type.
fn bits(text: &str, element: &str) -> Option<u64> {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    if let Some(hex) = digits.strip_prefix("0f").or(digits.strip_prefix("0F")) {
        let bits = u32::from_str_radix(hex, 16).ok()?;
        let value = f32::from_bits(bits);
        return Some(match element {
            ".f64" => f64::from(if minus { -value } else { value }).to_bits(),
            _ => u64::from(bits) ^ (u64::from(minus) << 31),
        });
    }
    if let Some(hex) = digits.strip_prefix("0d").or(digits.strip_prefix("0D")) {
        let bits = u64::from_str_radix(hex, 16).ok()? ^ (u64::from(minus) << 63);
        return Some(if element == ".f32" {
            u64::from((f64::from_bits(bits) as f32).to_bits())
        } else {
            bits
        });
    }
    if matches!(element, ".f32" | ".f64") {
        let value: f64 = digits.parse().ok()?;
        let value = if minus { -value } else { value };
        return Some(if element == ".f32" { u64::from((value as f32).to_bits()) } else { value.to_bits() });
    }
    let value = u64::try_from(integer(digits)?).ok()?;
    Some(if minus { value.wrapping_neg() } else { value })
}

/// Addresses of variables become numbers wherever a register gets them.
pub(crate) fn numbers(body: &mut Body<'_>, symbols: &Symbols<'_>) {
    for statement in &mut body.statements {
        let StatementKind::Instruction(instruction) = &mut statement.kind else { continue };
        for operand in &mut instruction.operands {
            let (word, added) = match operand {
                Operand::Word(word) => (&*word, 0),
                Operand::Sum(word, added) => (&*word, *added),
                _ => continue,
            };
            if body.types.contains_key(word) || body.names.contains_key(word) {
                continue;
            }
            if let Some(Symbol::Global(offset)) = symbols.names.get(word) {
                *operand = number(u64::from(*offset).wrapping_add_signed(added));
            }
        }
    }
}
