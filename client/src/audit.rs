//! Audit log of a daemon.
//!
//! Owns the call and its stream. Verifying the chain is the crate `kprobed-audit`'s.

use std::collections::VecDeque;

use tonic::Streaming;

use crate::api::{AuditEntry, AuditFilter, AuditHead, ReadAuditRequest, ReadAuditResponse};
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
        while self.ready.is_empty() {
            let Some(message) = self.stream.message().await? else { return Ok(None) };
            self.ready = message.entries.into();
        }
        Ok(self.ready.pop_front())
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

    /// The last entries that match, the oldest first, and the number of the last entry that was read.
    ///
    /// Looks back from the end of the log, further each time. For a caller who may not see where that is, it
    /// reads the whole log.
    ///
    /// # Errors
    /// A request that the daemon refuses, or a daemon that cannot be reached.
    pub async fn newest_audit_entries(
        &self,
        filter: &AuditFilter,
        count: usize,
    ) -> Result<(VecDeque<AuditEntry>, u64), Error> {
        let end = self.host().await.ok().and_then(|host| host.audit_head).map_or(0, |head| head.sequence);
        let mut reach = count as u64;
        loop {
            let after = end.saturating_sub(reach);
            let request = ReadAuditRequest { after, follow: false, filter: Some(filter.clone()) };
            let mut stream = self.read_audit(request).await?;
            let is_whole = after == 0 || stream.after().sequence > after;
            let (mut newest, mut last) = (VecDeque::new(), end);
            while let Some(entry) = stream.next().await? {
                last = last.max(entry.sequence);
                newest.push_back(entry);
                if newest.len() > count {
                    newest.pop_front();
                }
            }
            if is_whole || newest.len() >= count {
                return Ok((newest, last));
            }
            reach = reach.saturating_mul(4).max(256);
        }
    }
}
