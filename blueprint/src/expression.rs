//! Amounts that depend on unknown sizes, written for people: sums of products of named atoms, such
//! as `3 × cfg[3] + 2`. An expression that would be too long to read becomes an atom called `…`.

use std::collections::HashMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::limits::BUFFER_ALIGN;

/// Longer expressions become an atom: sums by their terms, products by their factors, atoms
/// by their bytes.
const READABLE_TERMS: usize = 32;
const READABLE_FACTORS: usize = 8;
const READABLE_BYTES: usize = 256;

/// A number, or the expression it will be computed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Amount {
    value: Option<u64>,
    text: String,
}

impl Amount {
    /// The number, where everything it depends on is known.
    pub fn value(&self) -> Option<u64> {
        self.value
    }

    /// What is known to be no more than this.
    pub(crate) fn at_most(&self) -> Self {
        Self { value: None, text: format!("at most {self}") }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// A number where it is known, otherwise the expression as a string.
impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.value {
            Some(value) => serializer.serialize_u64(value),
            None => serializer.serialize_str(&self.text),
        }
    }
}

/// An unknown amount, by its position in [`Atoms`].
pub(crate) type Atom = u32;

/// A sum of products: `constant` plus each coefficient times its atoms. Terms are sorted, their
/// atoms too, no coefficient is zero: equal sums are equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    constant: u64,
    terms: Vec<(Vec<Atom>, u64)>,
}

impl Sum {
    pub(crate) fn constant(value: u64) -> Sum {
        Sum { constant: value, terms: Vec::new() }
    }

    fn atom(atom: Atom) -> Sum {
        Sum { constant: 0, terms: vec![(vec![atom], 1)] }
    }

    pub(crate) fn value(&self) -> Option<u64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atom that the sum is, if it is one and nothing else.
    pub(crate) fn only_atom(&self) -> Option<Atom> {
        match (self.constant, self.terms.as_slice()) {
            (0, [(atoms, 1)]) if atoms.len() == 1 => Some(atoms[0]),
            _ => None,
        }
    }

    /// Adds up any number of sums; `None` where a coefficient would not fit.
    pub(crate) fn total(sums: impl IntoIterator<Item = Sum>) -> Option<Sum> {
        let mut constant = 0u64;
        let mut all = Vec::new();
        for sum in sums {
            constant = constant.checked_add(sum.constant)?;
            all.extend(sum.terms);
        }
        all.sort_unstable();
        let mut terms: Vec<(Vec<Atom>, u64)> = Vec::with_capacity(all.len());
        for (atoms, coefficient) in all {
            match terms.last_mut() {
                Some((last, total)) if *last == atoms => *total = total.checked_add(coefficient)?,
                _ => terms.push((atoms, coefficient)),
            }
        }
        Some(Sum { constant, terms })
    }

    /// Multiplies out; `None` where the result would not fit or would be too long to read.
    fn product(&self, other: &Sum) -> Option<Sum> {
        if (self.terms.len() + 1).saturating_mul(other.terms.len() + 1) > READABLE_TERMS {
            return None;
        }
        let mut parts = vec![Sum::constant(self.constant.checked_mul(other.constant)?)];
        parts.push(other.scaled(&[], self.constant, false)?);
        for (atoms, coefficient) in &self.terms {
            parts.push(other.scaled(atoms, *coefficient, true)?);
        }
        Sum::total(parts)
    }

    /// The terms (and the constant, where asked for) times one term.
    fn scaled(&self, by: &[Atom], coefficient: u64, with_constant: bool) -> Option<Sum> {
        let mut terms = Vec::with_capacity(self.terms.len() + 1);
        let constant: &[(Vec<Atom>, u64)] = if with_constant { &[(Vec::new(), self.constant)] } else { &[] };
        for (atoms, own) in constant.iter().chain(&self.terms) {
            let coefficient = own.checked_mul(coefficient)?;
            if atoms.len() + by.len() > READABLE_FACTORS {
                return None;
            }
            if coefficient > 0 {
                let mut atoms = [atoms, by].concat();
                atoms.sort_unstable();
                terms.push((atoms, coefficient));
            }
        }
        Some(Sum { constant: 0, terms })
    }

    /// The difference, where it is a sum of products as well, whatever the values of the atoms.
    fn without(&self, other: &Sum) -> Option<Sum> {
        let constant = self.constant.checked_sub(other.constant)?;
        let mut terms = self.terms.clone();
        for (atoms, coefficient) in &other.terms {
            let at = terms.iter().position(|(own, _)| own == atoms)?;
            terms[at].1 = terms[at].1.checked_sub(*coefficient)?;
        }
        terms.retain(|(_, coefficient)| *coefficient > 0);
        Some(Sum { constant, terms })
    }

    /// The quotient, where the division leaves no remainder for any values of the atoms.
    fn divided(&self, by: u64) -> Option<Sum> {
        let even = |value: &u64| value.is_multiple_of(by);
        if by == 0 || !even(&self.constant) || !self.terms.iter().all(|(_, value)| even(value)) {
            return None;
        }
        let terms = self.terms.iter().map(|(atoms, value)| (atoms.clone(), value / by));
        Some(Sum { constant: self.constant / by, terms: terms.collect() })
    }
}

/// The texts of unknown amounts.
#[derive(Default)]
pub(crate) struct Atoms {
    texts: Vec<String>,
    known: HashMap<String, Atom>,
}

impl Atoms {
    /// An unknown amount, by its name or its computation.
    pub(crate) fn named(&mut self, text: String) -> Sum {
        let next = self.texts.len() as Atom;
        let atom = *self.known.entry(text).or_insert_with_key(|text| {
            self.texts.push(text.clone());
            next
        });
        Sum::atom(atom)
    }

    /// An amount that would take too long to write; never equal to another.
    pub(crate) fn unreadable(&mut self) -> Sum {
        self.texts.push("…".to_owned());
        Sum::atom(self.texts.len() as Atom - 1)
    }

    /// `None` where the result is too long to read, or certainly does not fit.
    pub(crate) fn add(&mut self, sums: impl IntoIterator<Item = Sum>) -> Option<Sum> {
        Sum::total(sums).filter(|sum| sum.terms.len() <= READABLE_TERMS)
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn mul(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        a.product(b)
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn ceil_div(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        match (a.value(), b.value()) {
            (_, Some(0)) => None,
            (Some(a), Some(b)) => Some(Sum::constant(a.div_ceil(b))),
            (None, Some(b)) if let Some(divided) = a.divided(b) => Some(divided),
            _ => {
                let text = format!("ceil({} / {})", self.operand(a, true), self.operand(b, false));
                self.readable(text)
            }
        }
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn sub(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        match (a.value(), b.value()) {
            (Some(a), Some(b)) => a.checked_sub(b).map(Sum::constant),
            _ => a.without(b).or_else(|| {
                // In parentheses: it may become part of a product.
                let text = format!("({} − {})", self.text(a), self.operand(b, true));
                self.readable(text)
            }),
        }
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn floor_div(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        match (a.value(), b.value()) {
            (_, Some(0)) => None,
            (Some(a), Some(b)) => Some(Sum::constant(a / b)),
            (None, Some(b)) if let Some(divided) = a.divided(b) => Some(divided),
            _ => {
                let text = format!("floor({} / {})", self.operand(a, true), self.operand(b, false));
                self.readable(text)
            }
        }
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn modulo(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        match (a.value(), b.value()) {
            (_, Some(0)) => None,
            (Some(a), Some(b)) => Some(Sum::constant(a % b)),
            (None, Some(b)) if a.divided(b).is_some() => Some(Sum::constant(0)),
            _ => {
                let text = format!("({} mod {})", self.operand(a, false), self.operand(b, false));
                self.readable(text)
            }
        }
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn min(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        self.either("min", u64::min, a, b)
    }

    /// `None` as for [`Atoms::add`].
    pub(crate) fn max(&mut self, a: &Sum, b: &Sum) -> Option<Sum> {
        self.either("max", u64::max, a, b)
    }

    fn either(&mut self, name: &str, of: impl Fn(u64, u64) -> u64, a: &Sum, b: &Sum) -> Option<Sum> {
        match (a.value(), b.value()) {
            (Some(a), Some(b)) => Some(Sum::constant(of(a, b))),
            _ if a == b => Some(a.clone()),
            _ => {
                let text = format!("{name}({}, {})", self.text(a), self.text(b));
                self.readable(text)
            }
        }
    }

    /// Rounded up to the alignment of buffers.
    pub(crate) fn aligned(&mut self, sum: &Sum) -> Option<Sum> {
        let align = Sum::constant(BUFFER_ALIGN);
        let units = self.ceil_div(sum, &align)?;
        self.mul(&units, &align)
    }

    pub(crate) fn amount(&self, sum: &Sum) -> Amount {
        Amount { value: sum.value(), text: self.text(sum) }
    }

    fn readable(&mut self, text: String) -> Option<Sum> {
        // Two amounts that are not written out may differ, though their texts do not.
        (text.len() <= READABLE_BYTES && !text.contains('…')).then(|| self.named(text))
    }

    /// An operand of a division, in parentheses where it needs them.
    fn operand(&self, sum: &Sum, product_is_clear: bool) -> String {
        let text = self.text(sum);
        let is_clear = match (sum.constant, sum.terms.as_slice()) {
            (_, []) => true,
            (0, [(atoms, coefficient)]) => product_is_clear || (atoms.len() == 1 && *coefficient == 1),
            _ => false,
        };
        if is_clear { text } else { format!("({text})") }
    }

    fn text(&self, sum: &Sum) -> String {
        let mut text = String::new();
        for (atoms, coefficient) in &sum.terms {
            if !text.is_empty() {
                text.push_str(" + ");
            }
            if *coefficient != 1 {
                text.push_str(&format!("{coefficient} × "));
            }
            for (at, atom) in atoms.iter().enumerate() {
                text.push_str(if at > 0 { " × " } else { "" });
                text.push_str(&self.texts[*atom as usize]);
            }
        }
        match (text.is_empty(), sum.constant) {
            (true, constant) => constant.to_string(),
            (false, 0) => text,
            (false, constant) => format!("{text} + {constant}"),
        }
    }
}
