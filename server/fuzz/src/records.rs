//! Sub-buffers of the ring, and the events in them.

use std::sync::OnceLock;

use kprobed::decode::{Columns, Plan, PlanOptions, PlanTable};
use kprobed::ring::{Page, PageLayout, Record};
use kprobed::tracefs::format::Format;

use super::format::check_columns;

/// The layout of the pages in the corpus.
const HEADER_PAGE: &str = include_str!("../../tests/fixtures/ring/small-mix/header_page");

/// The events in the corpus.
const FORMATS: [&str; 6] = [
    include_str!("../../tests/fixtures/ring/small-mix/formats/perfu__f0.format"),
    include_str!("../../tests/fixtures/ring/small-mix/formats/perfu__f4.format"),
    include_str!("../../tests/fixtures/ring/small-mix/formats/perfu__n4.format"),
    include_str!("../../tests/fixtures/ring/small-mix/formats/perfu__n6.format"),
    include_str!("../../tests/fixtures/ring/small-mix/formats/raw_syscalls__sys_enter.format"),
    include_str!("../../tests/fixtures/ring/small-mix/formats/raw_syscalls__sys_exit.format"),
];

/// Where the corpus has the word that counts the committed bytes, and where the records begin.
const COMMIT_AT: usize = 8;
const DATA_AT: usize = 16;

/// Records lie in the page and end with its data or with an error; a page that ends after one of them gives the same records up to
/// there; and it makes no difference to the values into how many batches they are decoded.
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
    let middle = records.len() / 2;
    if let Some(last) = records.get(middle) {
        check_cut(data, &layout, &records[..=middle], end_of(data, last) - DATA_AT);
    }
    check_decoding(&records, middle);
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

fn plans() -> &'static [Plan] {
    static PLANS: OnceLock<Vec<Plan>> = OnceLock::new();
    PLANS.get_or_init(|| {
        let plan = |text: &&str| {
            let format = Format::parse(text).expect("a format of the corpus");
            Plan::compile(&format, &PlanOptions::default()).expect("a plan for it")
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
            assert_eq!(whole.timestamps_ns[row], batch.timestamps_ns[at]);
            assert_eq!(whole.tids[row], batch.tids[at]);
            for ((column, same), field) in whole.fields.iter().zip(&batch.fields).zip(&whole.schema().fields)
            {
                for element in 0..field.array_len.unwrap_or(1) as usize {
                    assert_eq!(column.value(row, element), same.value(at, element));
                }
            }
        }
    }
}

/// The columns of all plans, with the records that they know.
fn decoded(records: &[Record<'_>]) -> Vec<Columns> {
    let mut table = PlanTable::default();
    for plan in plans() {
        table.insert(plan.id(), (plan, plan.columns()));
    }
    for record in records {
        if let Some((plan, columns)) = table.lookup_mut(record.payload) {
            let before = columns.len();
            let decoded = plan.decode(record.payload, record.timestamp_ns, columns).is_ok();
            assert_eq!(columns.len(), before + usize::from(decoded));
        }
    }
    table.iter_mut().map(|(_, (_, columns))| columns.take()).collect()
}
