//! Idempotency records: requests that were carried out, so that clients can repeat calls safely.
//!
//! Owns their table, and how long it remembers a request. Never carries one out.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sqlx::{QueryBuilder, Row as _, SqliteConnection};

use super::{ROWS, Store, StoreError, to_ns};
use kprobed_lang::model::ProbeUid;

/// How long a request is remembered.
const REMEMBERED: Duration = Duration::from_hours(24);

/// A request that its client may repeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The account of the principal that asks: each has ids of its own.
    pub principal: String,
    /// The client's id.
    pub id: String,
    /// What it asks for: the kind of change, and a digest of the bytes of its message.
    pub fingerprint: String,
}

/// Remembers requests within the transaction that carries them out, each with the probe that it is about.
pub(super) async fn remember(
    transaction: &mut SqliteConnection,
    requests: &[(&RequestKey, ProbeUid)],
) -> Result<(), StoreError> {
    if requests.is_empty() {
        return Ok(());
    }
    let now = SystemTime::now();
    sqlx::query("DELETE FROM request WHERE time_ns < ?")
        .bind(to_ns(now.checked_sub(REMEMBERED).unwrap_or(SystemTime::UNIX_EPOCH)))
        .execute(&mut *transaction)
        .await?;
    for requests in requests.chunks(ROWS) {
        let mut insert = QueryBuilder::new(
            "INSERT OR REPLACE INTO request (principal, id, fingerprint, probe_uid, time_ns) ",
        );
        insert.push_values(requests, |mut row, (RequestKey { principal, id, fingerprint }, uid)| {
            row.push_bind(principal)
                .push_bind(id)
                .push_bind(fingerprint)
                .push_bind(uid.0)
                .push_bind(to_ns(now));
        });
        insert.build().persistent(requests.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// Forgets a request, since it was not carried out after all.
pub(super) async fn forget(
    transaction: &mut SqliteConnection,
    request: Option<&RequestKey>,
) -> Result<(), StoreError> {
    let Some(RequestKey { principal, id, .. }) = request else { return Ok(()) };
    sqlx::query("DELETE FROM request WHERE principal = ? AND id = ?")
        .bind(principal)
        .bind(id)
        .execute(transaction)
        .await?;
    Ok(())
}

impl Store {
    /// The probe that this request was about, if it was carried out before.
    ///
    /// # Errors
    /// [`StoreError::RequestReused`] if the id was used for another request,
    /// [`StoreError::Database`].
    pub(crate) async fn carried_out(&self, request: &RequestKey) -> Result<Option<ProbeUid>, StoreError> {
        let read = async |connection: &mut SqliteConnection| {
            let row =
                sqlx::query("SELECT fingerprint, probe_uid FROM request WHERE principal = ? AND id = ?")
                    .bind(&request.principal)
                    .bind(&request.id)
                    .fetch_optional(connection)
                    .await?;
            let Some(row) = row else { return Ok(None) };
            if row.try_get::<String, _>("fingerprint")? != request.fingerprint {
                return Err(StoreError::RequestReused(request.id.clone()));
            }
            Ok(Some(ProbeUid(row.try_get("probe_uid")?)))
        };
        self.database.read(read).await
    }
}
