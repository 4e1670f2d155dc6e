//! The files of a directory of declarations, read once.
//!
//! Owns which files count and how they are read. Never blocks: a pipe or device is opened only to
//! find that it is not a plain file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// Largest file, in bytes. A thousand probes take about 300 KiB.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Most files.
const MAX_FILES: usize = 1000;

/// Ends of the names of files that count.
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];

/// A file of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    /// Its name.
    pub(super) name: String,
    /// Its content, or why it cannot be read.
    pub(super) content: Result<String, String>,
}

/// The state of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// No such directory.
    Absent,
    /// It cannot be read.
    Unreadable(String),
    /// Its files, by name.
    Files(Vec<Declaration>),
}

/// Whether a file of that name counts: no hidden one, which tools write before they rename it, and
/// no copy of an editor.
pub(super) fn counts(name: &str) -> bool {
    !name.starts_with('.') && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Looks at a directory.
pub(super) fn look(directory: &Path) -> Look {
    let unreadable = |error: &io::Error| {
        Look::Unreadable(format!("cannot read the directory `{}`: {error}", directory.display()))
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Look::Absent,
        Err(error) => return unreadable(&error),
    };
    let mut names = Vec::new();
    for entry in entries {
        match entry {
            // A name that is not UTF-8 has none of the endings, so it is not a declaration.
            Ok(entry) => names.extend(entry.file_name().into_string().ok().filter(|name| counts(name))),
            Err(error) => return unreadable(&error),
        }
    }
    if names.len() > MAX_FILES {
        return Look::Unreadable(format!(
            "the directory `{}` has {} files of declarations, and can have {MAX_FILES}",
            directory.display(),
            names.len()
        ));
    }
    names.sort();
    let files = names.into_iter().filter_map(|name| {
        let content = read(&directory.join(&name)).transpose()?;
        Some(Declaration { name, content })
    });
    Look::Files(files.collect())
}

/// The content of a file. Absent when it has gone meanwhile, or is a directory.
fn read(path: &Path) -> Result<Option<String>, String> {
    // A pipe without a writer would not be opened before there is one.
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link to nothing is still there: what it led to is about to come back, or was
            // forgotten.
            return match fs::symlink_metadata(path) {
                Ok(_) => Err("it is a link to a file that does not exist".to_owned()),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(format!("it cannot be opened: {error}")),
    };
    content(file).map_err(|error| error.to_string())
}

fn content(mut file: File) -> io::Result<Option<String>> {
    let found = file.metadata()?;
    if found.is_dir() {
        return Ok(None);
    }
    let refuse = |message: String| Err(io::Error::other(message));
    if !found.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    // A user who can write the file can create any probe.
    if found.permissions().mode() & 0o002 != 0 {
        return refuse("everybody can write it: `chmod o-w` it".to_owned());
    }
    let mut bytes = Vec::new();
    (&mut file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return refuse(format!("it has more than {} MiB", MAX_FILE_BYTES >> 20));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(error) => refuse(format!("it is not UTF-8 from byte {} on", error.utf8_error().valid_up_to())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    fn names(look: &Look) -> Vec<&str> {
        let Look::Files(files) = look else { panic!("{look:?}") };
        files.iter().map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn only_whole_files_count() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in
            ["b.yaml", "a.yml", "c.json", ".b.yaml.Xy12", "b.yaml~", ".c.json.swp", "notes.txt", "README"]
        {
            fs::write(path.join(name), name).unwrap();
        }
        fs::create_dir(path.join("d.yaml")).unwrap();
        assert_eq!(names(&look(path)), ["a.yml", "b.yaml", "c.json"]);
        assert_eq!(look(&path.join("nothing")), Look::Absent);
        assert!(matches!(look(&path.join("b.yaml")), Look::Unreadable(_)));
    }

    #[test]
    fn what_cannot_be_read_is_not_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
        fs::write(path.join("b.yaml"), b"probe: \xff").unwrap();
        nix::unistd::mkfifo(&path.join("c.yaml"), Mode::S_IRWXU).unwrap();
        fs::write(path.join("d.yaml"), "").unwrap();
        fs::set_permissions(path.join("d.yaml"), fs::Permissions::from_mode(0o646)).unwrap();
        fs::write(path.join("e.yaml"), vec![b' '; 1 + (4 << 20)]).unwrap();
        fs::write(path.join("f.yaml"), "# nothing\n").unwrap();
        let Look::Files(files) = look(path) else { panic!("unreadable") };
        let said: Vec<_> = files.into_iter().map(|file| file.content).collect();
        let expected = [
            Err("it is a link to a file that does not exist"),
            Err("it is not UTF-8 from byte 7 on"),
            Err("it is not a regular file"),
            Err("everybody can write it: `chmod o-w` it"),
            Err("it has more than 4 MiB"),
            Ok("# nothing\n"),
        ];
        let expected: Vec<_> =
            expected.into_iter().map(|one| one.map(str::to_owned).map_err(str::to_owned)).collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn a_config_map_is_read_through_its_link() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for (version, text) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(path.join(version)).unwrap();
            fs::write(path.join(version).join("a.yaml"), text).unwrap();
        }
        symlink("..1", path.join("..data")).unwrap();
        symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
        let content = || match look(path) {
            Look::Files(files) => files[0].content.clone().unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(content(), "one");
        symlink("..2", path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
        assert_eq!(content(), "two");
    }
}
