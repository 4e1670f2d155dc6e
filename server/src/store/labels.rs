//! Labels of probes in the database.
//!
//! Owns their table, which is written within the transaction of the probe's row. Never checks a
//! label.

use std::collections::HashMap;

use sqlx::{QueryBuilder, SqliteConnection};

use super::bad::{BadValue, CheckedRow};
use super::{ROWS, StoreError};
use kprobed_lang::model::{Labels, ProbeUid};

/// What a bad label costs.
const LEFT_OUT: &str = "the probe does not have this label, until a client sets its labels again";

/// Replaces the labels of a probe within the transaction that writes its row.
pub(super) async fn write(
    transaction: &mut SqliteConnection,
    uid: ProbeUid,
    labels: &Labels,
) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM probe_label WHERE probe_uid = ?").bind(uid.0).execute(&mut *transaction).await?;
    add(transaction, &[(uid, labels)]).await
}

/// Writes the labels of probes within the transaction that makes their rows.
pub(super) async fn add(
    transaction: &mut SqliteConnection,
    labels: &[(ProbeUid, &Labels)],
) -> Result<(), StoreError> {
    let all = labels.iter().flat_map(|(uid, labels)| labels.iter().map(|pair| (*uid, pair)));
    let all: Vec<_> = all.collect();
    for labels in all.chunks(ROWS) {
        let mut insert = QueryBuilder::new("INSERT INTO probe_label (probe_uid, key, value) ");
        insert.push_values(labels, |mut row, (uid, (key, value))| {
            row.push_bind(uid.0).push_bind(*key).push_bind(*value);
        });
        insert.build().persistent(labels.len() == 1).execute(&mut *transaction).await?;
    }
    Ok(())
}

/// The labels of all probes that have any.
pub(super) async fn read(
    connection: &mut SqliteConnection,
    found: &mut Vec<BadValue>,
) -> Result<HashMap<ProbeUid, Labels>, StoreError> {
    let rows = sqlx::query("SELECT probe_uid, key, value FROM probe_label").fetch_all(connection).await?;
    let mut pairs = HashMap::<_, Vec<(String, String)>>::new();
    for row in &rows {
        let mut row = CheckedRow::new(row, "probe_label", "probe_uid", found);
        let uid: Option<i64> = row.need("probe_uid", LEFT_OUT);
        let (key, value): (Option<String>, Option<String>) =
            (row.need("key", LEFT_OUT), row.need("value", LEFT_OUT));
        let (Some(uid), Some(key), Some(value)) = (uid, key, value) else { continue };
        if let Err(error) = Labels::new([(key.clone(), value.clone())]) {
            row.note("key", &error, LEFT_OUT);
            continue;
        }
        pairs.entry(ProbeUid(uid)).or_default().push((key, value));
    }
    // One by one they are good; if there are too many, none is.
    Ok(pairs.into_iter().map(|(uid, pairs)| (uid, Labels::new(pairs).unwrap_or_default())).collect())
}
