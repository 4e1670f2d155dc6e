//! A `field:` line of a `format` file.
//!
//! Owns the grammar of C declarations as far as the kernel prints them there.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use kprobed_lang::definition::is_identifier;

/// A field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name.
    pub name: String,
    /// The declared type, without what stands after the name: `u8` for `u8 g[]`,
    /// `__data_loc char[][2]` for that.
    pub type_text: String,
    /// Where the field begins, in bytes from the beginning of the record.
    pub offset: usize,
    /// All bytes that it takes there; for dynamic fields those of the descriptors.
    pub size: usize,
    /// Whether it is declared signed. Strings of kprobe events are.
    pub signed: bool,
    /// How the bytes are to be taken.
    pub shape: Shape,
    /// How the kernel prints it.
    pub presentation: Presentation,
}

/// How the bytes of a field are to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    Scalar {
        /// Its size in bytes.
        size: usize,
    },
    /// Values one after the other.
    Array {
        /// Size of one in bytes.
        element_size: usize,
        /// How many. 0: it fills what is left of the record, as in the `print` event.
        count: usize,
    },
    /// A descriptor of 32 bits: the low 16 are an offset from the beginning of the record, the high
    /// 16 a length in bytes.
    DataLoc,
    /// Such descriptors one after the other.
    DataLocArray {
        /// How many.
        count: usize,
    },
    /// A descriptor of which the offset counts from its own end (5.17; only in tracepoints and user
    /// events).
    RelLoc,
}

/// How the kernel prints a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presentation {
    /// Hexadecimal.
    Hex,
    /// Decimal, without sign.
    Unsigned,
    /// Decimal, with sign.
    Signed,
    /// One character.
    Char,
    /// The symbol at an address.
    Symbol,
    /// Text.
    String,
}

impl Field {
    /// Reads `field:DECLARATION;\toffset:N;\tsize:N;\tsigned:N;`.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let rest =
            line.strip_prefix("field:").ok_or_else(|| format!("`{line}` does not begin with `field:`"))?;
        let mut parts = rest.split(';');
        let declaration = parts.next().unwrap_or_default().trim();
        let mut number = |key: &str| {
            let value = parts.next().and_then(|part| part.trim().strip_prefix(key)?.strip_prefix(':'));
            let number = value.and_then(|value| value.parse::<usize>().ok());
            number.ok_or_else(|| format!("field has no usable `{key}`"))
        };
        let (offset, size, signed) = (number("offset")?, number("size")?, number("signed")? != 0);

        let undeclared = || format!("`{declaration}` does not declare a field");
        let (type_text, declarator) = declaration.rsplit_once(' ').ok_or_else(undeclared)?;
        let (name, brackets) = match declarator.split_once('[') {
            Some((name, brackets)) => (name, Some(brackets.strip_suffix(']').ok_or_else(undeclared)?)),
            None => (declarator, None),
        };
        if !is_identifier(name) {
            return Err(undeclared());
        }
        let shape =
            shape(type_text, brackets, size).ok_or_else(|| format!("`{name}` cannot have {size} bytes"))?;
        let mut field = Self {
            name: name.to_owned(),
            type_text: type_text.to_owned(),
            offset,
            size,
            signed,
            shape,
            presentation: Presentation::Unsigned,
        };
        field.presentation = match (field.is_text(), signed) {
            (true, _) => Presentation::String,
            (false, true) => Presentation::Signed,
            (false, false) => Presentation::Unsigned,
        };
        Ok(field)
    }

    /// Whether it holds text: characters that end at a NUL, if there is one.
    pub fn is_text(&self) -> bool {
        let words = self.type_text.strip_prefix("const ").unwrap_or(&self.type_text);
        match self.shape {
            Shape::Scalar { .. } => false,
            Shape::Array { .. } => words == "char",
            Shape::DataLoc | Shape::DataLocArray { .. } | Shape::RelLoc => {
                words.split_once(' ').is_some_and(|(_, element)| element.starts_with("char["))
            }
        }
    }

    /// Size in bytes of one value, if it has a fixed one.
    pub(super) fn value_size(&self) -> Option<usize> {
        match self.shape {
            Shape::Scalar { size } | Shape::Array { element_size: size, .. } => Some(size),
            Shape::DataLoc | Shape::DataLocArray { .. } | Shape::RelLoc => None,
        }
    }
}

fn shape(type_text: &str, brackets: Option<&str>, size: usize) -> Option<Shape> {
    if type_text.starts_with("__rel_loc ") {
        return (size == 4 && brackets.is_none()).then_some(Shape::RelLoc);
    }
    if let Some(element) = type_text.strip_prefix("__data_loc ") {
        // Arrays of strings keep their brackets in the type: `char[][2]`.
        let count = element.split_once("[][").map(|(_, count)| count.strip_suffix(']'));
        return match count {
            _ if brackets.is_some() => None,
            None => (size == 4).then_some(Shape::DataLoc),
            Some(count) => {
                let count: usize = count?.parse().ok()?;
                (count > 0 && count.checked_mul(4) == Some(size)).then_some(Shape::DataLocArray { count })
            }
        };
    }
    let Some(brackets) = brackets else { return Some(Shape::Scalar { size }) };
    // Kprobe events say `[]` and the size of the whole. Before 5.17 some tracepoints say the name
    // of a constant.
    let element_size = match brackets.parse::<usize>() {
        Ok(count) => size.checked_div(count).filter(|element| element.checked_mul(count) == Some(size))?,
        Err(_) => element_size(type_text)?,
    };
    let count = size.checked_div(element_size)?;
    (count.checked_mul(element_size) == Some(size)).then_some(Shape::Array { element_size, count })
}

/// Size in bytes of an arithmetic type on x86-64.
fn element_size(type_text: &str) -> Option<usize> {
    let words = type_text.strip_prefix("const ").unwrap_or(type_text);
    let words = words.strip_prefix("unsigned ").or_else(|| words.strip_prefix("signed ")).unwrap_or(words);
    Some(match words.trim_start_matches("__") {
        "char" | "u8" | "s8" | "bool" => 1,
        "short" | "u16" | "s16" => 2,
        "int" | "unsigned" | "u32" | "s32" => 4,
        "long" | "long long" | "u64" | "s64" => 8,
        _ => return None,
    })
}
