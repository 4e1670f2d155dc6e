//! Property: parser of `hist` files.

use kprobed_host::tracefs::hist::{HistKey, HistTable, HistTrigger, HistValue, HistVariable, KeyForm};

/// Triggers of the forms that keys can have. Each reads the first table of the corpus that has such
/// keys.
fn triggers() -> Vec<HistTrigger> {
    let key = |field: &str, form| HistKey { field: field.to_owned(), form };
    [
        vec![key("path", KeyForm::Text), key("common_pid", KeyForm::Execname), key("dfd", KeyForm::Number)],
        vec![key("n", KeyForm::Log2), key("m", KeyForm::Buckets(10)), key("fn", KeyForm::SymbolOffset)],
        vec![key("stacktrace", KeyForm::Stack), key("common_pid", KeyForm::Execname)],
    ]
    .into_iter()
    .map(|keys| HistTrigger {
        keys,
        sums: vec!["n".to_owned()],
        variable: HistVariable::Mark("kprobed_7".to_owned()),
        rows: 2048,
        clock: None,
        action: None,
        filter: String::new(),
    })
    .collect()
}

/// What is read has the form that was requested, and as many rows as the file says.
pub fn check(data: &[u8]) {
    for trigger in triggers() {
        for tables in 0..3 {
            let Ok(table) = HistTable::parse(data, &trigger, tables) else { continue };
            assert!(tables > 0, "a table out of nothing");
            let announced = format!("\n    Entries: {}\n", table.rows.len());
            assert!(data.windows(announced.len()).any(|part| part == announced.as_bytes()));
            for row in &table.rows {
                assert_eq!((row.keys.len(), row.sums.len()), (trigger.keys.len(), 1));
                for (key, value) in trigger.keys.iter().zip(&row.keys) {
                    assert!(fits(key.form, value), "{key} is {value:?}");
                }
            }
        }
    }
}

fn fits(form: KeyForm, value: &HistValue) -> bool {
    match value {
        HistValue::Number(_) => form == KeyForm::Number,
        HistValue::Log2(exponent) => form == KeyForm::Log2 && *exponent <= 64,
        HistValue::Bucket(..) => matches!(form, KeyForm::Buckets(_)),
        HistValue::Symbol(_) => matches!(form, KeyForm::Symbol | KeyForm::SymbolOffset),
        HistValue::Thread { .. } => form == KeyForm::Execname,
        HistValue::Text(_) => form == KeyForm::Text,
        HistValue::Stack(_) => form == KeyForm::Stack,
    }
}
