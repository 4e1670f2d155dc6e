//! Requests to read the configuration again.
//!
//! Owns what a request and its answer are. The command line of the daemon, which knows where the file is,
//! carries them out; nothing here reads it.

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::auth::Caller;
use crate::config::{ConfigError, SettingChange, TlsError};

/// Why nothing was put in force.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// The file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A request.
#[derive(Debug)]
pub struct ReloadRequest {
    /// Only compare.
    pub validate_only: bool,
    /// Who asks, for the audit log.
    pub caller: Caller,
    /// For the answer.
    pub reply: oneshot::Sender<Result<Vec<SettingChange>, ReloadError>>,
}

/// Requests that wait. More wait in their callers.
const QUEUE: usize = 4;

/// Asks for reloads.
#[derive(Clone, Debug)]
pub struct Reloads(mpsc::Sender<ReloadRequest>);

/// The other end: what is to be carried out.
pub type ReloadQueue = mpsc::Receiver<ReloadRequest>;

impl Reloads {
    /// Both ends.
    pub fn new() -> (Self, ReloadQueue) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Asks, and waits for the answer. Absent if the daemon is stopping.
    pub async fn ask(
        &self,
        caller: &Caller,
        validate_only: bool,
    ) -> Option<Result<Vec<SettingChange>, ReloadError>> {
        let (reply, answer) = oneshot::channel();
        let request = ReloadRequest { validate_only, caller: caller.clone(), reply };
        self.0.send(request).await.ok()?;
        answer.await.ok()
    }
}
