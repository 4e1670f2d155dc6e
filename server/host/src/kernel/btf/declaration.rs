//! BTF types written as C declarations and function prototypes.
//!
//! Bounded in depth and length: a file can describe types whose text grows exponentially.

use std::fmt::Write as _;

use super::types::{Kind, Modifier, Prototype, TypeId};
use super::{Btf, BtfError};

/// Pointers, arrays and functions around each other: what is deeper is not shown.
const DEPTH_MAX: usize = 32;

/// Bytes of a text. Depth alone is not a bound: functions that take functions write text that
/// doubles, or worse, with every level.
const TEXT_MAX_BYTES: usize = 16 << 10;

impl Btf {
    /// A type without a name, such as `const char *`.
    ///
    /// # Errors
    /// [`BtfError`] for broken references, and for a text of more than 16 KiB.
    pub fn type_text(&self, id: TypeId) -> Result<String, BtfError> {
        self.declaration(id, "")
    }

    /// A declaration of something of this type, such as `const char *name` or
    /// `int (*done)(void *)`.
    ///
    /// # Errors
    /// [`BtfError`] for broken references, and for a text of more than 16 KiB.
    pub fn declaration(&self, id: TypeId, name: &str) -> Result<String, BtfError> {
        self.around(id, name.to_owned(), 0)
    }

    /// The prototype of a function of that name:
    /// `ssize_t vfs_read(struct file *file, char *buf, size_t count, loff_t *pos)`.
    ///
    /// # Errors
    /// [`BtfError`] for broken references, and for a text of more than 16 KiB.
    pub fn prototype_text(&self, prototype: &Prototype<'_>, name: &str) -> Result<String, BtfError> {
        let declarator = format!("{name}({})", self.parameters_text(prototype, prototype.result, 0)?);
        self.around(prototype.result, declarator, 0)
    }

    /// C writes a type around what is declared: this puts one level of it around `inner`, and goes
    /// on with what is left.
    fn around(&self, id: TypeId, inner: String, depth: usize) -> Result<String, BtfError> {
        if depth > DEPTH_MAX {
            return Err(BtfError::TooDeep { id });
        }
        let ty = self.ty(id)?;
        let base = |word: &str| {
            let name = if ty.name.is_empty() { "{...}" } else { ty.name };
            let word = if word.is_empty() { name.to_owned() } else { format!("{word} {name}") };
            joined(&word, &inner)
        };
        let text = match ty.kind {
            Kind::Void => joined("void", &inner),
            Kind::Int(_) | Kind::Float(_) | Kind::Declaration | Kind::Modifier(Modifier::Typedef, _) => {
                base("")
            }
            Kind::Composite(composite) => base(if composite.is_union { "union" } else { "struct" }),
            Kind::Forward { union } => base(if union { "union" } else { "struct" }),
            Kind::Enum { .. } => base("enum"),
            Kind::Pointer(target) => {
                let target_kind = self.ty(target)?.kind;
                let inner = match target_kind {
                    Kind::Array { .. } | Kind::Prototype(_) => format!("(*{inner})"),
                    _ => format!("*{inner}"),
                };
                self.around(target, inner, depth + 1)?
            }
            Kind::Array { element, count: 0 } => self.around(element, format!("{inner}[]"), depth + 1)?,
            Kind::Array { element, count } => self.around(element, format!("{inner}[{count}]"), depth + 1)?,
            Kind::Prototype(prototype) => {
                let parameters = self.parameters_text(&prototype, id, depth + 1)?;
                self.around(prototype.result, format!("{inner}({parameters})"), depth + 1)?
            }
            Kind::Function(prototype) => self.around(prototype, inner, depth + 1)?,
            Kind::Modifier(modifier, target) => {
                let word = match modifier {
                    Modifier::Const => "const",
                    Modifier::Volatile => "volatile",
                    Modifier::Restrict => "restrict",
                    Modifier::Tag | Modifier::Typedef => "",
                };
                let pointer = matches!(self.ty(target)?.kind, Kind::Pointer(_));
                match (word.is_empty(), pointer) {
                    // A tag such as `user` is not C, and does not affect the layout.
                    (true, _) => self.around(target, inner, depth + 1)?,
                    // `char *const p`: after the star.
                    (false, true) => self.around(target, joined(&format!(" {word}"), &inner), depth + 1)?,
                    (false, false) => format!("{word} {}", self.around(target, inner, depth + 1)?),
                }
            }
        };
        bounded(id, text)
    }

    /// The parameters of `of`, with a comma between them.
    fn parameters_text(
        &self,
        prototype: &Prototype<'_>,
        of: TypeId,
        depth: usize,
    ) -> Result<String, BtfError> {
        let mut text = String::new();
        for parameter in prototype.parameters() {
            let parameter = parameter?;
            let separator = if text.is_empty() { "" } else { ", " };
            let shown = if parameter.ty == TypeId::VOID {
                "...".to_owned()
            } else {
                self.around(parameter.ty, parameter.name.to_owned(), depth + 1)?
            };
            // Writing to a string does not fail.
            let _written = write!(text, "{separator}{shown}");
            text = bounded(of, text)?;
        }
        Ok(if text.is_empty() { "void".to_owned() } else { text })
    }
}

/// The text of this type, unless it is too long.
fn bounded(id: TypeId, text: String) -> Result<String, BtfError> {
    let short = text.len() <= TEXT_MAX_BYTES;
    if short { Ok(text) } else { Err(BtfError::TooLong { id, max_bytes: TEXT_MAX_BYTES }) }
}

/// A type and the declarator, with a blank between them if that is not empty.
fn joined(ty: &str, inner: &str) -> String {
    if inner.is_empty() { ty.to_owned() } else { format!("{ty} {inner}") }
}
