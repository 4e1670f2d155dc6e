//! Files of `kprobectl`: their paths, and how they are read and replaced.

use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::{Config, ConfigError, is_name};

/// Mode of files that did not exist before: paths of keys concern their owner alone.
const MODE: u32 = 0o600;

impl Config {
    /// Where the file is.
    pub(crate) fn path() -> Result<PathBuf, ConfigError> {
        if let Some(path) = variable("KPROBECTL_CONFIG") {
            return Ok(path.into());
        }
        let directory = directory("XDG_CONFIG_HOME", ".config").ok_or(ConfigError::NoPlace)?;
        Ok(directory.join("config.yaml"))
    }

    /// Reads the file. One that does not exist is empty.
    pub(crate) fn read() -> Result<Self, ConfigError> {
        match Self::path() {
            Ok(path) => Self::read_text(&path).and_then(|text| Self::parse(&path, &text)),
            Err(ConfigError::NoPlace) => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn read_text(path: &Path) -> Result<String, ConfigError> {
        match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            result => result.map_err(|source| ConfigError::Read { path: path.to_owned(), source }),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let form = |problem| ConfigError::Form { path: path.to_owned(), problem };
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        let config: Self = super::read_yaml(text).map_err(form)?;
        for name in config.contexts.keys().chain(config.current_context.as_ref()) {
            if !is_name(name) {
                return Err(form(ConfigError::Name(name.clone()).to_string()));
            }
        }
        Ok(config)
    }

    /// Replaces the file as a whole.
    pub(crate) fn write(&self) -> Result<(), ConfigError> {
        let path = Self::path()?;
        let text = kprobed_document::yaml(self)
            .map_err(|error| ConfigError::Form { path: path.clone(), problem: error.to_string() })?;
        replace(&path, text.as_bytes())
    }

    /// Makes a context current. Only that line of the file changes, so that comments stay.
    pub(crate) fn use_context(name: &str) -> Result<(), ConfigError> {
        let path = Self::path()?;
        let text = Self::read_text(&path)?;
        let mut wanted = Self::parse(&path, &text)?;
        if !wanted.contexts.contains_key(name) {
            return Err(ConfigError::NoContext(name.to_owned()));
        }
        wanted.current_context = Some(name.to_owned());
        let edited = with_current(&text, name);
        match Self::parse(&path, &edited) {
            Ok(config) if config == wanted => replace(&path, edited.as_bytes()),
            // The key is written in a form that one line cannot replace.
            _ => wanted.write(),
        }
    }
}

/// The text with another current context.
fn with_current(text: &str, name: &str) -> String {
    let line = format!("current_context: {name}\n");
    let mut found = false;
    let mut edited: String = text
        .split_inclusive('\n')
        .map(|old| match old.strip_prefix("current_context:") {
            Some(rest) => {
                found = true;
                let comment = rest.find(" #").map(|at| rest[at..].trim_end()).unwrap_or_default();
                format!("current_context: {name}{comment}\n")
            }
            None => old.to_owned(),
        })
        .collect();
    if !found {
        edited.insert_str(0, &line);
    }
    edited
}

/// Path of the list of hosts that did not answer in the last run of a context. None: there is no
/// directory for state.
pub(crate) fn state_file(context: Option<&str>) -> Option<PathBuf> {
    of_context("failed", context, "")
}

/// Path of the roll-out of a context. None: there is no directory for state.
pub(crate) fn rollout_file(context: Option<&str>) -> Option<PathBuf> {
    of_context("rollout", context, ".json")
}

fn of_context(what: &str, context: Option<&str>, end: &str) -> Option<PathBuf> {
    let name = context.map_or_else(|| format!("{what}-without-context"), |name| format!("{what}/{name}"));
    Some(directory("XDG_STATE_HOME", ".local/state")?.join(name + end))
}

/// A directory of the user, as the XDG Base Directory Specification has them.
pub(crate) fn user_directory(name: &str, below_home: &str) -> Option<PathBuf> {
    variable(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(below_home)))
}

/// This command's directory in one of them.
fn directory(name: &str, below_home: &str) -> Option<PathBuf> {
    Some(user_directory(name, below_home)?.join("kprobectl"))
}

/// A variable of the environment, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Replaces a file so that it has either its old content or all of the new one, whenever the
/// process or the machine stops.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), ConfigError> {
    // A link stays a link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_missing| path.to_owned());
    replace_at(&path, content).map_err(|source| ConfigError::Write { path, source })
}

fn replace_at(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mode = std::fs::metadata(path).map_or(MODE, |found| found.permissions().mode() & 0o777);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = directory.join(name);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    })();
    if written.is_err() {
        // The first error is the one that matters.
        std::fs::remove_file(&new).ok();
        return written;
    }
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mistakes_have_a_place() {
        let problem = |text: &str| Config::parse(Path::new("f"), text).unwrap_err().to_string();
        assert!(problem("contexts:\n  a:\n    prot: 1\n").contains("unknown field `prot`"));
        assert!(problem("contexts:\n  a:\n    port: x\n").contains("line 3, column"));
        assert!(problem("contexts:\n  a/b: {}\n").contains("`a/b` is not a name"));
        assert_eq!(Config::parse(Path::new("f"), "# nothing\n\n").unwrap(), Config::default());
    }

    #[test]
    fn comments_survive_another_current_context() {
        let text = "# mine\ncurrent_context: a # old\ncontexts:\n  a: {} # first\n  b: {}\n";
        let edited = with_current(text, "b");
        assert_eq!(edited, "# mine\ncurrent_context: b # old\ncontexts:\n  a: {} # first\n  b: {}\n");
        assert_eq!(with_current("contexts: {}\n", "b"), "current_context: b\ncontexts: {}\n");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/config.yaml");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        replace(&path, b"one").unwrap();
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!((mode(), std::fs::read(&path).unwrap()), (0o640, b"two".to_vec()));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left over");
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "[a-z:{}\\[\\]\\n #_é-]{0,60}") {
            Config::parse(Path::new("f"), &text).ok();
        }
    }
}
