//! Audit log of a daemon.
//!
//! Owns the call and its stream. Verifying the chain is the crate `kprobed-audit`'s.

use std::collections::VecDeque;

use tonic::Streaming;

use crate::api::{AuditEntry, AuditHead, ReadAuditRequest, ReadAuditResponse};
use crate::client::Client;
use crate::error::Error;

/// Entries of the audit log, the oldest first.
#[derive(Debug)]
pub struct AuditStream {
    stream: Streaming<ReadAuditResponse>,
    after: AuditHead,
    ready: VecDeque<AuditEntry>,
}

impl AuditStream {
    /// The entry before the first that can follow: the chain begins there.
    pub const fn after(&self) -> &AuditHead {
        &self.after
    }

    /// The next entry. Absent at the end of the log; a call that follows waits for it.
    ///
    /// # Errors
    /// A stream that the daemon ended.
    pub async fn next(&mut self) -> Result<Option<AuditEntry>, Error> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(Some(entry));
            }
            let Some(message) = self.stream.message().await? else { return Ok(None) };
            self.ready.extend(message.entries);
        }
    }
}

impl Client {
    /// Reads the audit log.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn read_audit(&self, request: ReadAuditRequest) -> Result<AuditStream, Error> {
        let mut stream = self.begin(request, async |request| self.audit().read_audit(request).await).await?;
        let first = stream.message().await?.and_then(|message| message.after);
        let after = first.ok_or(Error::Incomplete("after"))?;
        Ok(AuditStream { stream, after, ready: VecDeque::new() })
    }
}
