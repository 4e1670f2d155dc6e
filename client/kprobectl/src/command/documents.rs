//! Documents of probes from files, directories and standard input.
//!
//! Owns which files a directory stands for, and that each probe has one document.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kprobed_document::{PlacedDocument, Problem};

use super::input::content;
use super::{Exit, Failure};

/// A document and the file that has it.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) entry: PlacedDocument,
    /// As it was named, or found below a directory that was.
    pub(super) file: String,
}

impl Declared {
    pub(super) fn name(&self) -> &str {
        &self.entry.document.name
    }

    /// Where its definition is, for messages.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.file, self.entry.definition_place)
    }
}

/// Ends of the names of files that a directory is searched for.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Whether a path stands for documents: a directory, or a file with such a name.
pub(super) fn are_in(path: &Path) -> bool {
    path.is_dir() || is_named_so(path)
}

fn is_named_so(path: &Path) -> bool {
    path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Reads all documents.
///
/// # Errors
/// When one cannot be read, with all problems of all files.
pub(super) async fn read(paths: &[PathBuf], recursive: bool) -> Result<Vec<Declared>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        collect(path, recursive, &mut files)?;
    }
    let mut all: Vec<Declared> = Vec::new();
    let mut seen: HashMap<String, String> = HashMap::new();
    let mut failures = Vec::new();
    for path in files {
        let file =
            if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let text = content(&path).await?;
        match kprobed_document::read(&text) {
            Ok(entries) => {
                for entry in entries {
                    let declared = Declared { entry, file: file.clone() };
                    let place = format!("{file}:{}", declared.entry.name_place);
                    if let Some(first) = seen.insert(declared.name().to_owned(), place) {
                        failures.push(failure(&file, &again(&declared, &first, &text)));
                    }
                    all.push(declared);
                }
            }
            Err(problems) => failures.extend(problems.iter().map(|problem| failure(&file, problem))),
        }
    }
    if let Some(failure) = Failure::all(failures) {
        return Err(failure);
    }
    if all.is_empty() {
        let hint =
            "`kprobectl get NAME -o yaml` prints one; a directory is searched for *.yaml, *.yml and *.json";
        return Err(Failure::usage("there is no document of a probe in what was given", hint));
    }
    Ok(all)
}

/// What is wrong with a file, with the line.
fn failure(file: &str, problem: &Problem) -> Failure {
    let message =
        format!("{file}:{}: {}\n{}", problem.place, problem.message.replace('\n', "\\n"), problem.shown());
    let hint = (!problem.hint.is_empty()).then(|| problem.hint.clone());
    Failure::new(Exit::Usage, message.trim_end(), hint)
}

/// A document of a probe that has one already.
fn again(declared: &Declared, first: &str, text: &str) -> Problem {
    let place = declared.entry.name_place;
    Problem {
        place,
        line: text.lines().nth(place.line - 1).unwrap_or_default().to_owned(),
        message: format!("`{}` has a document already: {first}", declared.name()),
        hint: "leave one of them out".to_owned(),
    }
}

/// The files of a path: the file itself, or the files of a directory, without hidden ones.
fn collect(path: &Path, recursive: bool, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if path == Path::new("-") || !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let failure = |why: io::Error| Failure::unreadable(path, &why);
    let entries = fs::read_dir(path).map_err(failure)?.collect::<io::Result<Vec<_>>>().map_err(failure)?;
    let mut found: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    found.sort();
    for inner in found {
        let is_hidden = inner.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        // A link to a directory could lead back here.
        if inner.is_dir() && !inner.is_symlink() {
            if recursive && !is_hidden {
                collect(&inner, recursive, files)?;
            }
        } else if is_named_so(&inner) && !is_hidden && !inner.is_dir() {
            files.push(inner);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("inner")).unwrap();
        fs::create_dir(path(".git")).unwrap();
        std::os::unix::fs::symlink(directory.path(), path("loop")).unwrap();
        for name in ["b.yaml", "a.json", ".c.yaml", "notes.txt", "inner/d.yml", ".git/e.yaml"] {
            fs::write(path(name), "").unwrap();
        }
        let found = |recursive| {
            let mut files = Vec::new();
            collect(directory.path(), recursive, &mut files).unwrap();
            files
        };
        assert_eq!(found(false), [path("a.json"), path("b.yaml")]);
        assert_eq!(found(true), [path("a.json"), path("b.yaml"), path("inner/d.yml")]);
    }
}
