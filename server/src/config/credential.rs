//! Paths of credentials: `$CREDENTIALS_DIRECTORY/NAME` in a setting is the file that systemd has for the service
//! (`LoadCredential=NAME:PATH` in its unit, systemd.exec(5)).
//!
//! Owns which text is such a path, and what it stands for. Never reads a file. The other variables of the environment
//! mean nothing in a path: a configuration says the same wherever it is read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};

/// The variable by which systemd names the directory.
const VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// How a setting begins that means a file in it.
const PREFIX: &str = "$CREDENTIALS_DIRECTORY";

/// For paths of files with secrets and certificates.
pub(in crate::config) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let written = PathBuf::deserialize(deserializer)?;
    resolved(written, std::env::var_os(VARIABLE)).map_err(D::Error::custom)
}

/// The same for a path that need not be there.
pub(in crate::config) fn optional_path<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    path(deserializer).map(Some)
}

/// What a path stands for, if systemd's directory is this one.
fn resolved(written: PathBuf, directory: Option<OsString>) -> Result<PathBuf, String> {
    let Ok(name) = written.strip_prefix(PREFIX) else { return Ok(written) };
    match directory {
        Some(directory) if !directory.is_empty() => Ok(Path::new(&directory).join(name)),
        _ => Err(format!(
            "the environment has no `{VARIABLE}`, which systemd sets for a unit with `LoadCredential=`"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_a_file_of_the_service() {
        let of = |written: &str, directory: Option<&str>| resolved(written.into(), directory.map(Into::into));
        let directory = Some("/run/credentials/kprobed.service");
        assert_eq!(
            of("$CREDENTIALS_DIRECTORY/server.key", directory).unwrap(),
            Path::new("/run/credentials/kprobed.service/server.key")
        );
        for plain in
            ["/etc/kprobed/server.key", "/etc/$CREDENTIALS_DIRECTORY/key", "$CREDENTIALS_DIRECTORYX/key"]
        {
            assert_eq!(of(plain, directory).unwrap(), Path::new(plain));
            assert_eq!(of(plain, None).unwrap(), Path::new(plain));
        }
        for unset in [None, Some("")] {
            let error = of("$CREDENTIALS_DIRECTORY/server.key", unset).unwrap_err();
            assert!(
                error.contains("no `CREDENTIALS_DIRECTORY`") && error.contains("`LoadCredential=`"),
                "{error}"
            );
        }
    }
}
