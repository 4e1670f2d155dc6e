//! Property: parser of `format` files, and the compiled forms of them.

use kprobed_host::tracefs::format::Format;
use kprobed_trace::decode::{Columns, CompileOptions, CompiledFormat, Packed};

/// The text ends at the first NUL; what follows is the rest of a record.
pub fn check(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == 0);
    let Some(Ok(text)) = parts.next().map(std::str::from_utf8) else { return };
    let lines = text.lines().count().max(1);
    let format = match Format::parse(text) {
        Ok(format) => format,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
            return;
        }
    };
    assert!(text.contains(&format.name));
    let Ok(plan) = CompiledFormat::compile(&format, &CompileOptions::default()) else { return };
    assert_eq!(plan.id(), format.id);
    assert!(plan.schema().fields.len() <= format.fields.len());
    let record = [&format.id.to_le_bytes()[..], parts.next().unwrap_or_default()].concat();
    let mut columns = plan.columns();
    for _ in 0..2 {
        let before = columns.len();
        let decoded = plan.decode(&record, 1, &mut columns).is_ok();
        assert_eq!(columns.len(), before + usize::from(decoded), "a record is one row or none");
        check_columns(&columns);
    }
}

/// Every value can be reached, none beyond, and everything has the length that the wire format
/// promises.
pub(crate) fn check_columns(columns: &Columns) {
    let rows = columns.len();
    assert_eq!([&columns.tids, &columns.flags, &columns.preempt_counts].map(Packed::rows), [rows; 3]);
    check_fields(columns);
}

/// As [`check_columns`], for the fields of the schema.
pub(crate) fn check_fields(columns: &Columns) {
    let rows = columns.len();
    assert_eq!(columns.schema().fields.len(), columns.fields.len());
    for (field, column) in columns.schema().fields.iter().zip(&columns.fields) {
        let per_row = field.array_len.map_or(1, |count| count as usize);
        let count = rows * per_row;
        assert_eq!(column.values.rows(), if field.kind.is_text() { 0 } else { rows });
        assert!(column.faults.is_empty() || column.faults.len() == count.div_ceil(8));
        assert_eq!(column.value(rows, 0), None);
        let last = rows.checked_sub(1);
        assert!(last.is_none_or(|row| per_row == 0 || column.value(row, per_row - 1).is_some()));
    }
}
