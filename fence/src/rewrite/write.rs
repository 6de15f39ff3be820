//! Statements and modules as text: one statement a line, one space behind each comma.

use std::fmt::Write;

use super::body::Body;
use crate::read::tree::{Initial, Instruction, Operand, Statement, StatementKind, Variable};

/// An instruction as text, without its semicolon.
pub(crate) fn instruction(instruction: &Instruction<'_>) -> String {
    let mut text = String::new();
    write_instruction(&mut text, instruction);
    text
}

fn write_instruction(out: &mut String, instruction: &Instruction<'_>) {
    if let Some((negated, name)) = &instruction.guard {
        out.push_str(if *negated { "@!" } else { "@" });
        out.push_str(name);
        out.push(' ');
    }
    out.push_str(&instruction.opcode);
    for (i, operand) in instruction.operands.iter().enumerate() {
        out.push_str(if i == 0 { " " } else { ", " });
        write_operand(out, operand);
    }
}

fn write_operand(out: &mut String, operand: &Operand<'_>) {
    // Writing to a string does not fail.
    let _ = match operand {
        Operand::Word(word) | Operand::Number(word) => write!(out, "{word}"),
        Operand::Sum(word, offset) => write!(out, "{word}+{offset}"),
        Operand::Not(word) => write!(out, "!{word}"),
        Operand::Minus(word) => write!(out, "-{word}"),
        Operand::Pair(a, b) => write!(out, "{a}|{b}"),
        Operand::Address(base, 0) => write!(out, "[{base}]"),
        Operand::Address(base, offset) => write!(out, "[{base}+{offset}]"),
        Operand::Absolute(address) => write!(out, "[{address}]"),
        Operand::Vector(members) => write_list(out, members, '{', '}'),
        Operand::List(members) => write_list(out, members, '(', ')'),
    };
}

fn write_list(out: &mut String, members: &[Operand<'_>], open: char, close: char) -> std::fmt::Result {
    out.push(open);
    for (i, member) in members.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_operand(out, member);
    }
    out.push(close);
    Ok(())
}

/// Writes a declaration without its semicolon; initial values are numbers by now.
pub(crate) fn variable(out: &mut String, space: &str, variable: &Variable<'_>) {
    out.push_str(space);
    if let Some(align) = variable.align {
        let _ = write!(out, " .align {align}");
    }
    let _ = write!(out, " {} {}", variable.element, variable.name);
    let each = crate::read::types::bytes(variable.element).unwrap_or(1);
    if variable.array && variable.size == 0 {
        out.push_str("[]");
    } else if variable.array {
        let _ = write!(out, "[{}]", variable.size / each);
    }
    if variable.initialised {
        out.push_str(" = ");
        let mut first = true;
        let numbers = variable.initial.iter().filter_map(|value| match value {
            Initial::Number(text) => Some(text),
            Initial::Address { .. } => None,
        });
        if variable.array {
            out.push('{');
        }
        for text in numbers {
            if !std::mem::take(&mut first) {
                out.push_str(", ");
            }
            out.push_str(text);
        }
        if variable.array {
            out.push('}');
        }
    }
}

/// Writes a statement and the end of its line.
fn statement(out: &mut String, statement: &Statement<'_>) {
    match &statement.kind {
        StatementKind::Label(name) => {
            out.push_str(name);
            out.push_str(":\n");
        }
        StatementKind::Instruction(instruction) => {
            out.push('\t');
            write_instruction(out, instruction);
            out.push_str(";\n");
        }
        // Other passes have taken these out.
        _ => {}
    }
}

/// Writes a function: `declared` stands in front of its own declarations, line by line.
pub(crate) fn function(out: &mut String, body: &Body<'_>, declared: &[&str], window: &str) {
    let function = &body.function;
    out.push_str(if function.entry { "\n.visible .entry " } else { "\n.func " });
    for found in &function.returns {
        out.push('(');
        variable(out, ".param", found);
        out.push_str(") ");
    }
    out.push_str(&function.name);
    out.push('(');
    for parameter in &function.parameters {
        out.push_str("\n\t");
        variable(out, ".param", parameter);
        out.push(',');
    }
    let _ = write!(out, "\n\t.param .b32 {window}\n)");
    for directive in &function.directives {
        let _ = write!(out, "\n{directive}");
    }
    out.push_str("\n{\n");
    for line in declared {
        let _ = writeln!(out, "\t{line}");
    }
    for (kind, name, count) in &body.registers {
        let _ = match count {
            Some(count) => writeln!(out, "\t.reg {kind} {name}<{count}>;"),
            None => writeln!(out, "\t.reg {kind} {name};"),
        };
    }
    for (space, list) in [(".local", &body.locals), (".param", &body.arguments)] {
        for found in list {
            out.push('\t');
            variable(out, space, found);
            out.push_str(";\n");
        }
    }
    for found in &body.statements {
        statement(out, found);
    }
    out.push_str("}\n");
}
