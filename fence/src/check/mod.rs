//! The checker: accepts PTX only where every access is fenced in the canonical way of `docs/fence.md`. Isolation of strangers
//! in one GPU context rests on this module. The module shares no code and no constant with the rewriter, and refuses what no
//! rule knows. `lexer` reads lines, `rules` lists what may be said, `body` follows a kernel from its first line to its last.

mod body;
mod lexer;
mod rules;

use std::collections::HashMap;

use lexer::{Line, decimal};

/// Bytes of a text, at most.
const MOST_TEXT: usize = 64 << 20;

/// What was checked: kernels that a shared worker may launch.
#[derive(Debug, PartialEq, Eq)]
pub struct Checked {
    /// Names of the kernels, in the order of the text.
    pub kernels: Vec<String>,
}

/// The first place that is not fenced in the canonical way.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unfenced {
    /// A line of the text, from 1.
    pub line: usize,
    /// What stands there and may not.
    pub what: String,
}

impl Unfenced {
    fn new(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

/// Names of the module: true of a variable, false of a kernel.
type Names<'a> = HashMap<&'a str, bool>;

/// Checks a module: the very text that goes to the driver's compiler.
///
/// # Errors
/// The first line that is unknown or not fenced.
pub fn check(text: &str) -> Result<Checked, Unfenced> {
    if text.len() > MOST_TEXT {
        return Err(Unfenced::new(1, "the text is too long"));
    }
    let lines = lexer::lines(text)?;
    let is_header = match lines.as_slice() {
        [version, target, size, ..] => {
            is_version(version.text) && is_target(target.text) && size.text == ".address_size 64"
        }
        _ => false,
    };
    if !is_header {
        return Err(Unfenced::new(1, "not `.version`, one `.target` from sm_70, `.address_size 64`"));
    }
    let (mut names, mut kernels, mut rest) = (Names::new(), Vec::new(), &lines[3..]);
    while let Some(first) = rest.first() {
        let refused = || Unfenced::new(first.number, format!("`{}` is not known here", first.text));
        let variable = global(first.text);
        let (name, length) = match variable {
            Some(name) => (name, 1),
            None => kernel(rest, &names)?.ok_or_else(refused)?,
        };
        // The compiler has functions of its own, whose names begin with two underscores.
        let is_builtin = name.starts_with("__") && variable.is_none();
        if !is_free(name) || is_builtin || names.insert(name, variable.is_some()).is_some() {
            return Err(refused());
        }
        kernels.extend(variable.is_none().then(|| name.to_owned()));
        rest = &rest[length..];
    }
    Ok(Checked { kernels })
}

/// True if a version of PTX is known: 6.0 to 9.0.
fn is_version(line: &str) -> bool {
    let parts = line.strip_prefix(".version ").and_then(|version| version.split_once('.'));
    let parts = parts.map(|(major, minor)| (decimal(major), decimal(minor)));
    matches!(parts, Some((Some(6..=8), Some(0..=9)) | (Some(9), Some(0))))
}

/// True if a target is an architecture from sm_70.
fn is_target(line: &str) -> bool {
    let name = line.strip_prefix(".target sm_").unwrap_or_default();
    decimal(name.strip_suffix(['a', 'f']).unwrap_or(name)).is_some_and(|number| (70..1000).contains(&number))
}

/// `[.align N] .TYPE name[N]`: name, bytes, alignment. A length that is left open is no bytes.
fn variable(text: &str) -> Option<(&str, u64, u64)> {
    let (align, text) = match text.strip_prefix(".align ").map(|rest| rest.split_once(' ')) {
        Some(parts) => (decimal(parts?.0)?, parts?.1),
        None => (0, text),
    };
    let (kind, name) = text.strip_prefix('.')?.split_once(' ')?;
    let (name, count) = name.strip_suffix(']').map_or(Some((name, "1")), |rest| rest.split_once('['))?;
    let count = if count.is_empty() { 0 } else { decimal(count).filter(|count| *count > 0)? };
    Some((name, rules::bytes(kind)?.checked_mul(count)?, align))
}

/// The name of a variable of the module, in constant or shared memory.
fn global(line: &str) -> Option<&str> {
    let line = line.strip_suffix(';')?;
    let is_extern = line.starts_with(".extern .shared ");
    let line = line.strip_prefix(".extern ").unwrap_or(line);
    // Numbers only: a name would be an address.
    let parts = line.split_once(" = ").filter(|_| line.starts_with(".const "));
    let (line, values) = parts.unwrap_or((line, "0"));
    let values = lexer::inside(values, '{', '}').unwrap_or(values);
    let (name, bytes, _) = variable(line.strip_prefix(".shared ").or(line.strip_prefix(".const "))?)?;
    ((bytes == 0) == is_extern && values.split(", ").all(lexer::is_number)).then_some(name)
}

/// A kernel with its body: the name, and how many lines; `None` where the head has an unknown form.
fn kernel<'a>(lines: &[Line<'a>], names: &Names<'a>) -> Result<Option<(&'a str, usize)>, Unfenced> {
    let text = |at: usize| lines.get(at).map_or("", |line: &Line<'a>| line.text);
    let head = text(0).strip_prefix(".visible ").unwrap_or(text(0));
    let Some(name) = head.strip_prefix(".entry ").and_then(|head| head.strip_suffix('(')) else {
        return Ok(None);
    };
    let (mut inputs, mut at) = (HashMap::new(), 1);
    while let Some(input) = text(at).strip_prefix(".param ").and_then(|rest| rest.strip_suffix(',')) {
        let input = variable(input)
            .filter(|(name, bytes, _)| *bytes > 0 && is_free(name) && !names.contains_key(name));
        let Some((name, bytes, _)) = input else { return Ok(None) };
        if inputs.insert(name, bytes).is_some() {
            return Ok(None);
        }
        at += 1;
    }
    let is_window = text(at) == rules::PARAMETER && text(at + 1) == ")";
    at += 2;
    // Limits of the launch, which the driver enforces.
    let is_limit = |text: &str| {
        let (kind, counts) = text.split_once(' ').unwrap_or_default();
        rules::LIMITS.contains(&kind) && counts.split(", ").all(|count| decimal(count).is_some())
    };
    while is_limit(text(at)) {
        at += 1;
    }
    if !is_window || text(at) != "{" {
        return Ok(None);
    }
    let length = body::check(names, &inputs, &lines[at + 1..])?;
    Ok(Some((name, at + 1 + length)))
}

/// True if a name may be given to a variable, parameter or kernel.
fn is_free(name: &str) -> bool {
    lexer::is_name(name) && !name.starts_with(['$', '%']) && !rules::is_taken(name)
}
