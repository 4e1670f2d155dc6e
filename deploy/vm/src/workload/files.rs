//! A script of changes of tracefs, carried out over the real one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getpgid, getsid};

use crate::script::{Ground, Opening, carry_out};

/// Prints what every step was answered.
pub(crate) fn run(tracefs: &Path, script: &Path, output: &mut impl Write) -> io::Result<()> {
    let said = carry_out(&fs::read_to_string(script)?, &Mounted(tracefs.to_owned()));
    output.write_all(said.as_bytes())
}

/// Room for the first read of a file.
const FIRST_READ_BYTES: usize = 64 << 10;

struct Mounted(PathBuf);

fn errno<T>(answer: io::Result<T>) -> Result<T, i32> {
    answer.map_err(|error| error.raw_os_error().unwrap_or(-1))
}

impl Ground for Mounted {
    fn read(&self, file: &str) -> Result<String, i32> {
        // In one read: some files answer only one.
        let mut text = Vec::with_capacity(FIRST_READ_BYTES);
        errno(File::open(self.0.join(file)).and_then(|mut file| file.read_to_end(&mut text)))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn write(&self, file: &str, opening: Opening, text: &str) -> Result<(), i32> {
        let mut options = OpenOptions::new();
        match opening {
            Opening::Plain => options.write(true),
            Opening::Truncated => options.write(true).truncate(true),
            Opening::Appending => options.append(true),
        };
        // One write, so that the answer belongs to all of it.
        errno(options.open(self.0.join(file)).and_then(|mut file| file.write(text.as_bytes()).map(drop)))
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, i32> {
        let entries = errno(fs::read_dir(self.0.join(directory)))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    fn make_instance(&self, name: &str) -> Result<(), i32> {
        errno(fs::create_dir(self.0.join("instances").join(name)))
    }

    fn remove_instance(&self, name: &str) -> Result<(), i32> {
        errno(fs::remove_dir(self.0.join("instances").join(name)))
    }

    fn run(&self, function: &str, times: u64) {
        for _ in 0..times {
            // Whether there is such a process does not matter.
            let _answer: Result<Pid, _> = match function {
                "__x64_sys_getpgid" => getpgid(Some(Pid::from_raw(1))),
                _ => getsid(Some(Pid::from_raw(1))),
            };
        }
    }
}
