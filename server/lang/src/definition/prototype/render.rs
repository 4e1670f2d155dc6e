//! Rendering of a prototype: parsing the text gives the same tree, except for spans.
//!
//! Owns the spelling. Never changes a tree.

use std::fmt;

use super::ast::{Field, FieldType, FixedAddress, Item, Parameter, Prototype, Source, Step, StepKind};

impl fmt::Display for Prototype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.function.text)?;
        for (index, parameter) in self.parameters.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{parameter}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.items.iter().enumerate() {
            let separator = if index == 0 { "" } else { " | " };
            write!(f, "{separator}{item}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null(_) => f.write_str("NULL"),
            Self::Field(field) => field.fmt(f),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.ty, self.source)
    }
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsigned = if self.unsigned { "unsigned " } else { "" };
        write!(f, "{unsigned}{}", self.atom.name())?;
        self.count.map_or(Ok(()), |count| write!(f, "[{count}]"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, steps } => {
                f.write_str(&name.text)?;
                steps.iter().try_for_each(|step| step.fmt(f))
            }
            Self::Fixed { name, address, .. } => {
                if let Some(name) = name {
                    write!(f, "{}=", name.text)?;
                }
                address.fmt(f)
            }
        }
    }
}

impl fmt::Display for FixedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol(symbol) => write!(f, "${symbol}"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            StepKind::Add(bytes) => write!(f, "+{bytes}"),
            StepKind::Index(index) => write!(f, "[{index}]"),
        }
    }
}
