//! The definitions to check: one of the command line, those of a file, or those of all files of a
//! directory.
//!
//! Owns which files count, and the error for one that cannot be read. A file is read as documents
//! if its name ends as theirs do, and as lines of `kprobe_events` otherwise.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::run::{Request, RunError};
use crate::declared::is_document;
use kprobed_lang::definition::{CutDefinition, Cutter};

/// A definition, and where it begins: `FILE:LINE`, or the line alone of the only file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AskedDefinition {
    pub(super) file: Option<String>,
    pub(super) line: Option<u64>,
    pub(super) text: String,
}

/// Reads all definitions.
pub(super) fn definitions(request: &Request) -> Result<Vec<AskedDefinition>, RunError> {
    let one = |text: &String| AskedDefinition { file: None, line: None, text: text.clone() };
    let mut asked: Vec<AskedDefinition> = request.definition.iter().map(one).collect();
    if let Some(path) = &request.file {
        let files = files(path)?;
        let are_several = files.len() > 1 || path.is_dir();
        for file in files {
            let name = are_several.then(|| file.display().to_string());
            let found = if is_named_as_document(&file) { documents(&file)? } else { lines(&file)? };
            asked.extend(found.into_iter().map(|(line, text)| AskedDefinition {
                file: name.clone(),
                line: Some(line),
                text,
            }));
        }
    }
    if asked.is_empty() { Err(RunError::NoDefinition) } else { Ok(asked) }
}

/// The files that a path stands for, by name. Hidden ones of a directory are left out, as its tools
/// do.
fn files(path: &Path) -> Result<Vec<PathBuf>, RunError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |source| RunError::Definitions { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // Symbolic links count: a mounted ConfigMap has nothing else.
        if !is_hidden && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

fn is_named_as_document(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_document)
}

fn read(path: &Path) -> Result<Vec<u8>, RunError> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    bytes.map_err(|source| RunError::Definitions { path: path.to_owned(), source })
}

/// The kernel's lines, each with the number of the line that it begins on.
fn lines(path: &Path) -> Result<Vec<(u64, String)>, RunError> {
    let mut cutter = Cutter::default();
    cutter.push(&read(path)?);
    let mut cut: Vec<CutDefinition> = std::iter::from_fn(|| cutter.next_complete()).collect();
    cut.extend(cutter.finish());
    Ok(cut.into_iter().map(|one| (one.line, one.text)).collect())
}

/// The definitions of documents, each with the number of the line that has it.
fn documents(path: &Path) -> Result<Vec<(u64, String)>, RunError> {
    let refused = |line: usize, message: String, hint: String| RunError::Document {
        path: path.to_owned(),
        line,
        message,
        hint,
    };
    let text = String::from_utf8(read(path)?)
        .map_err(|_not_utf8| refused(1, "it is not UTF-8".to_owned(), String::new()))?;
    let entries = kprobed_document::read(&text).map_err(|problems| match problems.into_iter().next() {
        Some(first) => refused(first.place.line, first.message, first.hint),
        None => refused(1, "it cannot be read".to_owned(), String::new()),
    })?;
    let definition = |entry: kprobed_document::PlacedDocument| {
        (entry.definition_place.line as u64, entry.document.definition)
    };
    Ok(entries.into_iter().map(definition).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::Format;

    fn asked(path: &Path) -> Result<Vec<AskedDefinition>, RunError> {
        let request = Request {
            kernels: Vec::new(),
            only_differences: false,
            definition: None,
            file: Some(path.to_owned()),
            format: Format::Text,
        };
        definitions(&request)
    }

    #[test]
    fn a_directory_has_lines_and_documents() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("b.yaml", "probe: g/e\ndefinition: p:g/e f a=%di\n---\nprobe: g/h\ndefinition: p:g/h f\n");
        write("a.txt", "# a comment\np:g/x vfs_read\n");
        write(".hidden.yaml", "{");
        fs::create_dir(directory.path().join("more")).unwrap();
        let found = asked(directory.path()).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|one| {
                let file = one.file.as_deref().and_then(|file| file.rsplit_once('/')).map(|(_, name)| name);
                (file.unwrap_or_default(), one.line, one.text.as_str())
            })
            .collect();
        assert_eq!(
            told,
            [
                ("a.txt", Some(2), "p:g/x vfs_read"),
                ("b.yaml", Some(2), "p:g/e f a=%di"),
                ("b.yaml", Some(5), "p:g/h f")
            ]
        );
        let alone = asked(&directory.path().join("b.yaml")).unwrap();
        assert!(alone.len() == 2 && alone.iter().all(|one| one.file.is_none()));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bad.yaml");
        fs::write(&file, "probe: g/e\ndefinition: p:g/e f\nnosuch: 1\n").unwrap();
        let said = asked(&file).unwrap_err().to_string();
        assert!(said.contains("bad.yaml`:3: ") && said.contains("nosuch"), "{said}");
        fs::write(&file, b"\xff").unwrap();
        assert!(asked(&file).unwrap_err().to_string().contains("not UTF-8"));
        assert!(matches!(asked(&directory.path().join("gone")), Err(RunError::Definitions { .. })));
        fs::remove_file(&file).unwrap();
        assert!(matches!(asked(directory.path()), Err(RunError::NoDefinition)));
    }
}
