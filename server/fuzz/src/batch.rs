//! Property: stored batch messages, read again from disk.

use std::sync::Arc;

use kprobed_trace::decode::{Columns, Packed};
use kprobed_trace::wire::read_batch;

use super::format::check_fields;
use super::records::plans;

/// A group that fits a schema has as many rows as it says, and columns in which every value can be
/// reached.
pub fn check(data: &[u8]) {
    let Some(batch) = read_batch(data) else { return };
    for group in batch.groups {
        for plan in plans() {
            let rows = group.rows as usize;
            if let Some(columns) = Columns::from_message(Arc::clone(plan.schema()), group.clone()) {
                assert_eq!(columns.len(), rows);
                check_heads(&columns);
                check_fields(&columns);
            }
        }
    }
}

/// Thread ids and other common columns have a value for every row, or are left out.
pub(crate) fn check_heads(columns: &Columns) {
    let heads = [&columns.tids, &columns.flags, &columns.preempt_counts, &columns.ips, &columns.return_ips]
        .map(Packed::rows);
    assert!(heads.into_iter().all(|rows| rows == 0 || rows == columns.len()), "{heads:?}");
}
