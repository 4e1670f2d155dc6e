//! Background processes in the guest, by name: starting, signalling, waiting for them.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kprobed_vm::protocol::{Process, Status};
use nix::sys::signal::kill;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::agent::{Refusal, command};
use crate::run::convert;

type Table = HashMap<String, BackgroundProcess>;

#[derive(Debug)]
struct BackgroundProcess {
    pid: Pid,
    /// Absent while it runs.
    status: Option<Status>,
}

/// All of them, running and ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Background {
    shared: Arc<(Mutex<Table>, Condvar)>,
}

impl Background {
    /// Starts `process` under `name`, its output appended to `/run/log/NAME.log`.
    pub(crate) fn spawn(&self, name: &str, process: &Process) -> Result<(), Refusal> {
        if name.is_empty() || name.contains('/') {
            return Err(Refusal::new(format!("{name:?} is not a name for a process")));
        }
        let mut table = self.table();
        if table.get(name).is_some_and(|entry| entry.status.is_none()) {
            return Err(Refusal::new(format!("{name} is already running")));
        }
        let path = format!("/run/log/{name}.log");
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let (out, err) =
            log.and_then(|log| Ok((log.try_clone()?, log))).map_err(|error| Refusal::io(&path, &error))?;
        let mut child = command(process)?
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|error| Refusal::io(name, &error))?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(|error| Refusal::new(error.to_string()))?);
        table.insert(name.to_owned(), BackgroundProcess { pid, status: None });
        drop(table);
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        thread::spawn(move || {
            // Until it is reaped below, under the lock, its pid cannot become another process's:
            // signals hit the right one.
            waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).ok();
            let mut table = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            let status = child.wait().map_or(Status::Exited(-1), convert);
            if let Some(entry) = table.get_mut(&name) {
                entry.status = Some(status);
            }
            drop(table);
            shared.1.notify_all();
        });
        Ok(())
    }

    /// Sends `signal` to the process itself, not to what it started. An error when it has ended.
    pub(crate) fn signal(&self, name: &str, signal: i32) -> Result<(), Refusal> {
        let failed = |errno: nix::Error| Refusal::io(name, &io::Error::from(errno));
        let signal = nix::sys::signal::Signal::try_from(signal).map_err(failed)?;
        let table = self.table();
        match table.get(name) {
            Some(BackgroundProcess { pid, status: None }) => kill(*pid, signal).map_err(failed),
            Some(_) => Err(failed(nix::Error::ESRCH)),
            None => Err(unknown(name)),
        }
    }

    /// How it ended, waiting for at most `timeout`.
    pub(crate) fn wait(&self, name: &str, timeout: Duration) -> Result<Option<Status>, Refusal> {
        let deadline = Instant::now() + timeout;
        let mut table = self.table();
        loop {
            let entry = table.get(name).ok_or_else(|| unknown(name))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if entry.status.is_some() || left.is_zero() {
                return Ok(entry.status);
            }
            table = self.shared.1.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until none runs, for at most `timeout`.
    pub(crate) fn wait_for_all(&self, timeout: Duration) {
        let running = |table: &mut Table| table.values().any(|entry| entry.status.is_none());
        drop(self.shared.1.wait_timeout_while(self.table(), timeout, running));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(format!("no background process is called {name}"))
}
