//! Types of C: what they are without their other names, how large they are, and how C writes them.

use super::variable::Scene;
use crate::error::{LinesError, Result};
use crate::model::{Member, Type, TypeId};

/// Names of a type for another one, at most.
const ALIASES_MAX: usize = 64;

/// Structures without a name in one with a name, at most.
const UNNAMED_MAX: usize = 1024;

/// Arrays of arrays, at most.
const ARRAYS_MAX: usize = 16;

impl Scene<'_> {
    /// A type without its other names.
    pub(super) fn shape(&self, ty: Option<TypeId>) -> Result<Type> {
        let Some(mut id) = ty else { return Ok(Type::Other("void".to_owned())) };
        for _ in 0..ALIASES_MAX {
            match self.of.ty(id)? {
                Type::Alias { to: Some(to), .. } => id = to,
                Type::Alias { to: None, .. } => return Ok(Type::Other("void".to_owned())),
                shape => return Ok(shape),
            }
        }
        Err(LinesError::new("a type is named by itself"))
    }

    pub(super) fn bytes_of(&self, shape: &Type, depth: usize) -> Result<u64> {
        let unknown = || LinesError::new("the size of its type is not known");
        match shape {
            Type::Number { bytes, .. } | Type::Enumeration { bytes, .. } => Ok(*bytes),
            Type::Pointer { .. } => Ok(8),
            Type::Composite { bytes, .. } => bytes.ok_or_else(unknown),
            Type::Array { of, counts } if depth < ARRAYS_MAX => {
                let one = self.bytes_of(&self.shape(*of)?, depth + 1)?;
                let all = counts.iter().try_fold(one, |all, count| all.checked_mul((*count)?));
                all.ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }

    /// A member of a structure or of those without a name in it, with its offset in the outer one.
    pub(super) fn find(&self, shape: &Type, name: &str, looked: &mut usize) -> Result<Option<Member>> {
        let Type::Composite { members, .. } = shape else { return Ok(None) };
        *looked += 1;
        if *looked > UNNAMED_MAX {
            return Err(LinesError::new(
                "a structure has more structures without a name in it than any of C",
            ));
        }
        for member in members {
            if member.name.as_deref() == Some(name) {
                return Ok(Some(member.clone()));
            }
            if member.name.is_none()
                && let Some(inner) = self.find(&self.shape(member.ty)?, name, looked)?
            {
                let bit_offset = member.bit_offset.saturating_add(inner.bit_offset);
                return Ok(Some(Member { bit_offset, ..inner }));
            }
        }
        Ok(None)
    }

    /// A type as C writes it.
    pub(super) fn type_text(&self, ty: Option<TypeId>) -> String {
        let (mut ty, mut prefix, mut suffix) = (ty, String::new(), String::new());
        for _ in 0..ALIASES_MAX {
            let Some(id) = ty else { return format!("{prefix}void{suffix}") };
            match self.of.ty(id) {
                Ok(Type::Alias { name: Some(name), .. }) => return format!("{prefix}{name}{suffix}"),
                Ok(Type::Alias { prefix: word, to, .. }) => {
                    // An array of them says it twice.
                    let is_said = prefix.split(' ').any(|said| said == word);
                    if !word.is_empty() && !is_said && suffix.is_empty() {
                        prefix = format!("{prefix}{word} ");
                    } else if !word.is_empty() && !is_said {
                        prefix = format!("{word} {prefix}");
                    }
                    ty = to;
                }
                Ok(Type::Pointer { to }) => {
                    suffix = if suffix.is_empty() {
                        " *".to_owned()
                    } else {
                        format!(" *{}", suffix.trim_start())
                    };
                    ty = to;
                }
                Ok(Type::Array { of, counts }) => {
                    let counts = counts
                        .iter()
                        .map(|count| format!("[{}]", count.map_or(String::new(), |count| count.to_string())));
                    suffix += &counts.collect::<String>();
                    ty = of;
                }
                Ok(shape) => return format!("{prefix}{}{suffix}", self.shape_text(&shape)),
                Err(_) => return format!("{prefix}?{suffix}"),
            }
        }
        format!("{prefix}?{suffix}")
    }

    pub(super) fn shape_text(&self, shape: &Type) -> String {
        match shape {
            Type::Number { name, .. } | Type::Other(name) => name.clone(),
            Type::Composite { keyword, name, .. } => {
                format!("{keyword} {}", name.as_deref().unwrap_or("{...}"))
            }
            Type::Enumeration { name, .. } => format!("enum {}", name.as_deref().unwrap_or("{...}")),
            Type::Pointer { to } => format!("{} *", self.type_text(*to)),
            Type::Array { of, .. } => format!("{}[]", self.type_text(*of)),
            Type::Alias { to, .. } => self.type_text(*to),
        }
    }
}
