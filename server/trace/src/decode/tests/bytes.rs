//! Tests of decoding with random bytes, and with damaged records.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn event() -> CompiledFormat {
    let mut fields = PROBE.to_vec();
    fields.extend([
        ("u64 a", 16, 8),
        ("__data_loc char[] s", 24, 4),
        ("__data_loc char[][3] t", 28, 12),
        ("u16 g[]", 40, 6),
        ("__data_loc char[] __kpd_g0", 46, 4),
        ("__data_loc char[] __kpd_g3", 50, 4),
        ("__data_loc char[] __kpd_end", 54, 4),
    ]);
    plan(&format(&fields, ""))
}

fn tracepoint() -> CompiledFormat {
    let fields = [("__data_loc char[] s", 8, 4), ("__rel_loc char[] r", 12, 4), ("char c[16]", 16, 16)];
    plan(&format(&fields, ""))
}

/// Every value can be reached, none beyond, and everything has the length that the wire format
/// promises.
fn check(plan: &CompiledFormat, columns: &Columns) {
    let rows = columns.len();
    for (field, column) in plan.schema().fields.iter().zip(&columns.fields) {
        let per_row = field.array_len.map_or(1, |count| count as usize);
        let count = rows * per_row;
        assert!((0..rows).all(|row| (0..per_row).all(|element| column.value(row, element).is_some())));
        assert_eq!(column.value(rows, 0), None);
        assert_eq!(column.values.rows(), if field.kind == FieldKind::String { 0 } else { rows });
        let is_string = field.kind == FieldKind::String;
        assert_eq!(column.offsets.len(), if is_string { (count + 1) * 4 } else { 0 });
        assert!(column.faults.is_empty() || column.faults.len() == count.div_ceil(8));
    }
    let common = [&columns.tids, &columns.flags, &columns.preempt_counts].map(Packed::rows);
    assert_eq!(common, [rows; 3]);
}

/// A word that may well be a descriptor of a short record.
fn near_descriptor() -> impl Strategy<Value = [u8; 4]> {
    prop_oneof![
        (50_usize..90, 0_usize..20).prop_map(|(offset, length)| descriptor(offset, length)),
        Just(descriptor(58, 2)),
        any::<[u8; 4]>(),
    ]
}

proptest! {
    #[test]
    fn any_records_are_survived(records in vec(vec(any::<u8>(), 0..100), 0..12)) {
        for plan in [event(), tracepoint()] {
            let mut columns = plan.columns();
            for mut record in records.clone() {
                let before = columns.len();
                if let Some(id) = record.first_chunk_mut() {
                    *id = [0x70, 0x05];
                }
                let decoded = plan.decode(&record, 0, &mut columns).is_ok();
                prop_assert_eq!(columns.len(), before + usize::from(decoded));
                check(&plan, &columns);
            }
        }
    }

    #[test]
    fn any_descriptors_are_survived(
        records in vec((vec(near_descriptor(), 12), vec(any::<u8>(), 0..32)), 0..20),
    ) {
        for plan in [event(), tracepoint()] {
            let mut columns = plan.columns();
            for (descriptors, data) in &records {
                let record = [HEAD, &descriptors.concat(), data].concat();
                let before = columns.len();
                let decoded = plan.decode(&record, 0, &mut columns).is_ok();
                prop_assert_eq!(columns.len(), before + usize::from(decoded));
                check(&plan, &columns);
            }
        }
    }

    #[test]
    fn any_format_is_survived(
        fields in vec((
            "(__data_loc char\\[\\]|u64|u16|char) (a|b|__kpd_g0|__kpd_end|__probe_ip)(\\[\\]|\\[4\\])?",
            prop_oneof![0_usize..80, any::<usize>()],
            0_usize..20,
        ), 0..5),
        record in vec(any::<u8>(), 0..100),
    ) {
        let mut text = format!("name: e\nID: 1392\nformat:\n{COMMON}");
        for (declaration, offset, size) in fields {
            text.push_str(&field_line(&declaration, offset, size, 0));
        }
        let Ok(format) = Format::parse(&(text + "\nprint fmt: \"\"\n")) else { return Ok(()) };
        let Ok(plan) = CompiledFormat::compile(&format, &CompileOptions::default()) else { return Ok(()) };
        let mut columns = plan.columns();
        let record = [HEAD, &record].concat();
        let decoded = plan.decode(&record, 0, &mut columns).is_ok();
        prop_assert_eq!(columns.len(), usize::from(decoded));
        check(&plan, &columns);
    }
}
