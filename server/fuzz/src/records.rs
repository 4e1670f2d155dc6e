//! Property: parser of ring-buffer pages, and the decoder of their records.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use kprobed_host::ring::{Page, PageLayout, Record};
use kprobed_host::tracefs::format::Format;
use kprobed_trace::decode::{Columns, CompileOptions, CompiledFormat, Window};

use super::format::check_columns;

/// The layout of the pages in the corpus.
const HEADER_PAGE: &str = include_str!("../../fixtures/ring/small-mix/header_page");

/// The events in the corpus.
const FORMATS: [&str; 6] = [
    include_str!("../../fixtures/ring/small-mix/formats/perfu__f0.format"),
    include_str!("../../fixtures/ring/small-mix/formats/perfu__f4.format"),
    include_str!("../../fixtures/ring/small-mix/formats/perfu__n4.format"),
    include_str!("../../fixtures/ring/small-mix/formats/perfu__n6.format"),
    include_str!("../../fixtures/ring/small-mix/formats/raw_syscalls__sys_enter.format"),
    include_str!("../../fixtures/ring/small-mix/formats/raw_syscalls__sys_exit.format"),
];

/// Offsets in the corpus: of the word that counts the committed bytes, and of the first record.
const COMMIT_AT: usize = 8;
const DATA_AT: usize = 16;

/// Records are within the page and end with its data or with an error; both walks find the same
/// ones; a page that ends after one of them gives the same records up to there; and it makes no
/// difference to the values into how many batches they are decoded, or whether column by column.
pub fn check(data: &[u8]) {
    let layout = PageLayout::parse(HEADER_PAGE).expect("the layout of the corpus");
    let Ok(page) = Page::parse(data, &layout) else { return };
    assert!(page.data_bytes() <= layout.data_capacity_bytes() && DATA_AT + page.data_bytes() <= data.len());
    let mut records = Vec::new();
    let mut broken = false;
    for record in page.records() {
        assert!(!broken, "nothing follows an error");
        match record {
            Ok(record) => {
                let end = end_of(data, &record);
                assert!(end <= DATA_AT + page.data_bytes());
                assert!(records.last().is_none_or(|last| end_of(data, last) <= end));
                records.push(record);
            }
            Err(_) => broken = true,
        }
    }
    let mut each = Vec::new();
    let walked = page.records().each(|record, onward| {
        assert!(onward.starts_with(record.payload));
        each.push((record, onward));
    });
    assert_eq!(walked.is_err(), broken);
    assert!(each.iter().map(|(record, _)| record).eq(&records));
    let middle = records.len() / 2;
    if let Some(last) = records.get(middle) {
        check_cut(data, &layout, &records[..=middle], end_of(data, last) - DATA_AT);
    }
    check_decoding(&records, middle);
    check_gathering(&each);
}

fn end_of(data: &[u8], record: &Record<'_>) -> usize {
    record.payload.as_ptr() as usize - data.as_ptr() as usize + record.payload.len()
}

/// The page with fewer committed bytes.
fn check_cut(data: &[u8], layout: &PageLayout, expected: &[Record<'_>], committed: usize) {
    let mut cut = data.to_vec();
    cut[COMMIT_AT..COMMIT_AT + 8].copy_from_slice(&(committed as u64).to_le_bytes());
    let page = Page::parse(&cut, layout).expect("a shorter page");
    let records: Vec<_> = page.records().collect();
    assert_eq!(records, expected.iter().copied().map(Ok).collect::<Vec<_>>());
}

/// Plans of the events in the corpus.
pub(crate) fn plans() -> &'static [CompiledFormat] {
    static PLANS: OnceLock<Vec<CompiledFormat>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let plan = |text: &&str| {
            let format = Format::parse(text).expect("a format of the corpus");
            CompiledFormat::compile(&format, &CompileOptions::default()).expect("a plan for it")
        };
        FORMATS.iter().map(plan).collect()
    })
}

fn check_decoding(records: &[Record<'_>], middle: usize) {
    let whole = decoded(records);
    let [before, after] = [decoded(&records[..middle]), decoded(&records[middle..])];
    for ((whole, before), after) in whole.iter().zip(&before).zip(&after) {
        check_columns(whole);
        assert_eq!(whole.len(), before.len() + after.len());
        let batches = |row: usize| match row.checked_sub(before.len()) {
            None => (before, row),
            Some(row) => (after, row),
        };
        for row in 0..whole.len() {
            let (batch, at) = batches(row);
            check_row((whole, row), (batch, at));
        }
    }
}

fn check_row((columns, row): (&Columns, usize), (others, at): (&Columns, usize)) {
    assert_eq!(columns.timestamps_ns[row], others.timestamps_ns[at]);
    assert_eq!(columns.tid(row), others.tid(at));
    assert_eq!(columns.flags(row), others.flags(at));
    assert_eq!(columns.preempt_count(row), others.preempt_count(at));
    assert_eq!(columns.ip(row), others.ip(at));
    assert_eq!(columns.return_ip(row), others.return_ip(at));
    for ((column, other), field) in columns.fields.iter().zip(&others.fields).zip(&columns.schema().fields) {
        for element in 0..field.array_len.unwrap_or(1) as usize {
            assert_eq!(column.value(row, element), other.value(at, element));
        }
    }
}

/// Plans of fixed size take whole pages of records at once, through windows: the rows are those of
/// the single records, whatever bytes follow them. A record that was too short is a row too, which
/// only must be well-formed.
fn check_gathering(records: &[(Record<'_>, &[u8])]) {
    assert!(plans().iter().any(CompiledFormat::is_fixed), "the corpus has such an event");
    for plan in plans() {
        let mut one_by_one = plan.columns();
        let (mut windows, mut all) = (Vec::new(), Vec::new());
        for (record, onward) in records {
            let Some(bytes) = onward.first_chunk() else { continue };
            let window = Window { timestamp_ns: record.timestamp_ns, bytes };
            all.push(window);
            if record.payload.first_chunk().is_some_and(|id| u16::from_le_bytes(*id) == plan.id()) {
                let decoded = plan.decode(record.payload, record.timestamp_ns, &mut one_by_one);
                if plan.is_fixed() {
                    assert_eq!(decoded.is_ok(), record.payload.len() >= plan.fixed_bytes());
                }
                if decoded.is_ok() {
                    windows.push(window);
                }
            }
        }
        let mut gathered = plan.columns();
        plan.decode_fixed(&windows, &mut gathered);
        check_columns(&gathered);
        if !plan.is_fixed() {
            assert!(gathered.is_empty());
            continue;
        }
        assert_eq!(gathered.len(), one_by_one.len());
        for row in 0..gathered.len() {
            check_row((&gathered, row), (&one_by_one, row));
        }
        plan.decode_fixed(&all, &mut gathered);
        assert_eq!(gathered.len(), windows.len() + all.len());
        check_columns(&gathered);
    }
}

/// The columns of all plans, with the records that they know.
fn decoded(records: &[Record<'_>]) -> Vec<Columns> {
    let mut table = BTreeMap::new();
    for plan in plans() {
        table.insert(plan.id(), (plan, plan.columns()));
    }
    for record in records {
        let id = record.payload.first_chunk().copied().map(u16::from_le_bytes);
        if let Some((plan, columns)) = id.and_then(|id| table.get_mut(&id)) {
            let before = columns.len();
            let decoded = plan.decode(record.payload, record.timestamp_ns, columns).is_ok();
            assert_eq!(columns.len(), before + usize::from(decoded));
        }
    }
    table.into_values().map(|(_, columns)| columns).collect()
}
