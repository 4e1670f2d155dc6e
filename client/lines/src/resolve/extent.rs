//! The lines of a function in its source, by which a line is found again in another build.
//!
//! Owns where a function begins and ends. Never reads a source.

use std::collections::BTreeSet;

use super::places::{Found, file, functions, lines_with_code, next_function};
use crate::anchor::Extent;
use crate::error::{LinesError, Result};
use crate::model::{Declaration, Function, Source};

/// The lines of a function in a source: the one of this path, or the only one of this file name.
pub(super) fn extent(of: &dyn Source, name: &str, path: &str) -> Result<Extent> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut found: Vec<Extent> = Vec::new();
    for Found { number, declared } in functions(of, name, Some(&file_name(path)))? {
        let unit = of.unit(number)?;
        let end = next_function(&unit, declared).unwrap_or(u32::MAX);
        let lines = lines_with_code(&unit, declared.file, declared.line.saturating_add(1)..end);
        let code: BTreeSet<u32> = lines.into_iter().map(|line| line - declared.line).collect();
        let names = [declared.line, end].map(|line| {
            let is_there = |function: &&Function| function.declared == Declaration { line, ..declared };
            unit.functions.iter().filter(is_there).map(|function| function.name.clone()).collect()
        });
        let (file, first) = (file(&unit, declared.file), declared.line);
        match found.iter_mut().find(|has| has.file == file && has.first == first) {
            Some(has) => {
                has.code.extend(code);
                if end < has.end {
                    (has.end, has.declared) = (end, names);
                }
            }
            None => found.push(Extent { file: file.to_owned(), first, end, code, declared: names }),
        }
    }
    if found.iter().any(|has| has.file == path) {
        found.retain(|has| has.file == path);
    }
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only),
        _ => Err(LinesError::new(format!("several sources or lines declare the function `{name}`"))),
    }
}
