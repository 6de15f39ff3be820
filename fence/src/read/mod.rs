//! Reads PTX text, from whoever wrote it, into a [`Module`]. What is not known is refused with its place; comments, `.loc`,
//! `.file` and sections of debuggers are dropped, everything else is kept. Time is linear, the stack does not grow with the text.

mod body;
mod cursor;
mod expression;
mod lex;
mod operand;
pub mod tree;
pub mod types;
mod variable;

pub use lex::integer;
use tree::{Function, Module};

use crate::refused::{Position, Refused};
use cursor::Cursor;
use lex::Kind;

/// Reads a module.
pub fn module(text: &str) -> Result<Module<'_>, Refused> {
    let mut cursor = Cursor::new(lex::tokens(text)?);
    let mut module = header(&mut cursor)?;
    while let Some(token) = cursor.peek() {
        if token.kind != Kind::Directive {
            if token.kind == Kind::Word && cursor.second().is_some_and(|t| t.text == ":") {
                // A label of a debugger's section.
                cursor.take("")?;
                cursor.take("")?;
                continue;
            }
            return Err(cursor.wants("a variable or a function"));
        }
        item(&mut cursor, &mut module)?;
    }
    Ok(module)
}

/// `.version 8.0 .target sm_90a .address_size 64`
fn header<'t>(cursor: &mut Cursor<'t>) -> Result<Module<'t>, Refused> {
    cursor.expect(".version")?;
    let version = cursor.take("a version")?;
    let parts = version.text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let version =
        parts.ok_or_else(|| Refused::at(version.at, version.text, "no such version of PTX is known"))?;
    cursor.expect(".target")?;
    let target = cursor.word("a target")?.text;
    while cursor.eat(",") {
        if !cursor.eat("debug") {
            return Err(cursor.refuse("the module is for one target, as in `.target sm_90`"));
        }
    }
    if cursor.expect(".address_size").is_err() || cursor.number("64").ok() != Some(64) {
        return Err(cursor.refuse("addresses have 64 bits: `.address_size 64` stands before it"));
    }
    let (variables, functions, declared) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Module { version, target, variables, functions, declared })
}

/// What stands outside of functions.
fn item<'t>(cursor: &mut Cursor<'t>, module: &mut Module<'t>) -> Result<(), Refused> {
    let mut linkage = Vec::new();
    while let Some(token) = cursor.peek() {
        match token.text {
            ".visible" | ".weak" | ".extern" if linkage.len() < 4 => linkage.push(token.text),
            ".entry" | ".func" => {
                cursor.take("")?;
                let function = function(cursor, token.text == ".entry", linkage)?;
                let list = if function.defined { &mut module.functions } else { &mut module.declared };
                list.push(function);
                return Ok(());
            }
            ".global" | ".const" | ".shared" => {
                variable::variables(cursor, linkage, &mut module.variables, false)?;
                cursor.expect(";")?;
                return Ok(());
            }
            ".file" => {
                cursor.take("")?;
                return body::file(cursor);
            }
            ".pragma" => {
                cursor.take("")?;
                return body::pragma(cursor);
            }
            ".section" => return cursor.skip_to("}"),
            ".local" => return Err(cursor.refuse("declare the variable in the function that uses it")),
            ".tex" => return Err(cursor.refuse("textures and surfaces cannot be fenced")),
            ".alias" => return Err(cursor.refuse("functions with two names cannot be fenced")),
            ".common" => return Err(cursor.refuse("variables of several modules cannot be fenced")),
            _ => return Err(cursor.refuse("this directive is not known to the fence")),
        }
        cursor.take("")?;
    }
    Err(cursor.wants("a variable or a function"))
}

/// A function behind `.entry` or `.func`.
fn function<'t>(
    cursor: &mut Cursor<'t>,
    entry: bool,
    linkage: Vec<&'t str>,
) -> Result<Function<'t>, Refused> {
    let mut returns = Vec::new();
    if !entry && cursor.is("(") {
        parameters(cursor, &mut returns)?;
    }
    let name = cursor.word("the function's name")?;
    let (at, name) = (name.at, name.text);
    if name.contains('.') || name.starts_with('%') {
        return Err(Refused::at(at, name, "no function can be called so"));
    }
    let mut function = Function {
        at,
        entry,
        linkage,
        name: name.into(),
        returns,
        parameters: Vec::new(),
        directives: Vec::new(),
        body: Vec::new(),
        defined: false,
    };
    if cursor.is("(") {
        parameters(cursor, &mut function.parameters)?;
    }
    loop {
        let token = cursor.take("`{` or `;`")?;
        match token.text {
            ";" => return Ok(function),
            "{" => {
                function.defined = true;
                function.body = body::body(cursor).map_err(|refused| refused.of(name))?;
                return Ok(function);
            }
            // Of what only advises, nothing is kept.
            ".noreturn" => {}
            ".maxnctapersm" => {
                cursor.number("a number")?;
            }
            ".maxntid" | ".reqntid" | ".minnctapersm" | ".maxnreg" => {
                let mut numbers = vec![cursor.number("a number")?.to_string()];
                while numbers.len() < 3 && cursor.eat(",") {
                    numbers.push(cursor.number("a number")?.to_string());
                }
                function.directives.push(format!("{} {}", token.text, numbers.join(", ")));
            }
            ".pragma" => body::pragma(cursor)?,
            ".explicitcluster" | ".reqnctapercluster" | ".maxclusterrank" | ".blocksareclusters" => {
                return Err(Refused::at(token.at, token.text, "clusters cannot be fenced").of(name));
            }
            _ => {
                return Err(Refused::at(token.at, token.text, "this is not known to the fence here").of(name));
            }
        }
    }
}

fn parameters<'t>(cursor: &mut Cursor<'t>, into: &mut Vec<tree::Variable<'t>>) -> Result<(), Refused> {
    cursor.expect("(")?;
    while !cursor.eat(")") {
        if !cursor.is(".param") {
            return Err(cursor.refuse("parameters have to be declared with `.param`"));
        }
        variable::variables(cursor, Vec::new(), into, true)?;
        if into.last().is_some_and(|p| p.size == 0 || p.initialised) {
            return Err(cursor.refuse("a parameter has to have a size"));
        }
        if !cursor.eat(",") {
            cursor.expect(")")?;
            break;
        }
    }
    Ok(())
}

/// The place of a module's beginning.
pub const BEGINNING: Position = Position { line: 1, column: 1 };
