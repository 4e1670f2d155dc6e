//! Tests of bad values: garbage in each column of each table costs its row, and never the start.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use kprobed_trace::spool::Cursor;

use super::*;
use crate::error;
use kprobed_lang::model::StateRecord;

const TIME: SystemTime = SystemTime::UNIX_EPOCH;

/// A database that has a row in each table.
async fn made(directory: &Path) {
    let store = open(directory).await;
    let begun = begin(&store, &new_probe("one")).await.unwrap();
    let one = settle(&store, begun, Some(key("made", "create"))).await.unwrap();
    let uid = one.uid;
    create(&store, new_probe_with("other", |spec| spec.metadata = Metadata::default())).await.unwrap();
    let state = StateRecord {
        uid,
        time: TIME,
        state: "ARMED".to_owned(),
        reason: String::new(),
        message: String::new(),
        hint: String::new(),
    };
    store.add_states(&[state]).await.unwrap();
    for second in [5, 6, 7210] {
        look(&store, second).await;
    }
    let keep = HitRetention { minutes: Duration::ZERO, hours: Duration::from_hours(48) };
    store.roll_up(from_ns(3_700_000_000_000), &keep).await.unwrap();
    let place = Cursor { boot_id: BOOT.parse().unwrap(), epoch: 7, sequence: 8 };
    store.set_exporter_place("x", place).await.unwrap();
    store.set_calibration("here", "{}").await.unwrap();
    let mut change = edit(Some(&one), Some(&settings(&one, true, "x == 1", "tier=1", 2)), None);
    store.begin(&mut [&mut change]).await.unwrap();
    store.close().await;
}

const BOOT: &str = "01234567-89ab-cdef-0123-456789abcdef";

async fn look(store: &Store, second: u64) {
    let mut counters = store.counters(BOOT, "6.1", |_| true).await.unwrap();
    let time = TIME + Duration::from_secs(second);
    let counted = Counted {
        uid: ProbeUid(1),
        name: ProbeName::new("kprobes", "one").unwrap(),
        hits: Hits { hits: second, nmissed: 0 },
        created: TIME,
    };
    let since = counters.watched_until().unwrap_or(time);
    let tick = Tick { since, time, counts: vec![counted], of: TickOf::All };
    store.add_tick(&mut counters, &tick, true).await.unwrap();
}

/// What the daemon does with the database when it starts, and then. Returns its bad values.
async fn start(directory: &Path, what: &str) -> Vec<BadValue> {
    let store = Store::open(directory, TIME).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(set_aside_in(directory).unwrap().is_empty(), "{what}");
    let probes = store.probes().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(probes.len(), 2, "{what}: nothing is dropped");
    let other = probes.iter().find(|probe| probe.record.name.event() == "other");
    assert!(other.is_some_and(|other| other.unreadable.is_none() && other.record.spec.enabled), "{what}");
    for probe in probes.iter().filter(|probe| probe.unreadable.is_some()) {
        assert!(!probe.record.spec.enabled && probe.record.uid != ProbeUid(2), "{what}");
    }
    assert_eq!(store.journal().await.unwrap().len(), 1, "{what}");
    for uid in [1, 2] {
        store.states_of(ProbeUid(uid)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    store.exporter_place("x").await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let rates = RateQuery {
        start: TIME,
        end: TIME + Duration::from_hours(3),
        step_s: 3600,
        names: None,
        uids: None,
        after: 0,
    };
    store.rates(&rates).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.audit_page(0, 100).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.check().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let found = store.bad_values();
    // It goes on: a look, a roll-up, an entry, a new probe, and the deletion of the bad one.
    look(&store, 7220).await;
    let keep = HitRetention { minutes: Duration::ZERO, hours: Duration::from_hours(48) };
    store.roll_up(from_ns(7_300_000_000_000), &keep).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.forget_old(TIME, &keep).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    store.add_audit(&[entry()]).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    for probe in probes.iter().filter(|probe| probe.unreadable.is_some()) {
        let mut deletion = edit(Some(&probe.record), None, None);
        store.begin(&mut [&mut deletion]).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        store.settle(&[&deletion]).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let left = store.probes().await.unwrap();
        assert!(left.len() == 1 && left.iter().all(|probe| probe.unreadable.is_none()), "{what}: {left:?}");
    }
    store.close().await;
    found
}

/// The columns of all tables, with their types.
async fn columns(path: &Path) -> Vec<(String, String, String)> {
    let mut connection = options(path).connect().await.unwrap();
    let all = sqlx::query_as(
        "SELECT t.name, c.name, c.type FROM sqlite_master AS t, pragma_table_info(t.name) AS c \
         WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' AND t.name NOT LIKE '\\_sqlx%' ESCAPE '\\'",
    );
    let all = all.fetch_all(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    all
}

/// Overwrites a value of the first row. Returns whether the table can have it.
async fn spoil(path: &Path, table: &str, column: &str, garbage: &str) -> bool {
    let plain = options(path).foreign_keys(false).pragma("ignore_check_constraints", "1");
    let mut connection = plain.connect().await.unwrap();
    // Bytes of a row can have any type, whatever the table says.
    let statements = [
        "PRAGMA writable_schema = 1".to_owned(),
        format!(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, ') STRICT, WITHOUT', ') WITHOUT'), ') STRICT', ')') \
             WHERE name = '{table}'"
        ),
        "PRAGMA writable_schema = RESET".to_owned(),
    ];
    let schema: String = sqlx::query_scalar("SELECT sql FROM sqlite_schema WHERE name = ?")
        .bind(table)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    for statement in statements {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    }
    let first: String = sqlx::query_scalar("SELECT name FROM pragma_table_info(?) WHERE pk = 1")
        .bind(table)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let update =
        format!("UPDATE {table} SET {column} = {garbage} WHERE {first} = (SELECT min({first}) FROM {table})");
    let spoiled = sqlx::query(sqlx::AssertSqlSafe(update)).execute(&mut connection).await;
    sqlx::query("PRAGMA writable_schema = 1").execute(&mut connection).await.unwrap();
    sqlx::query("UPDATE sqlite_schema SET sql = ? WHERE name = ?")
        .bind(schema)
        .bind(table)
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    spoiled.is_ok_and(|spoiled| spoiled.rows_affected() > 0)
}

/// Tables of which nothing is read at the start, or whose damage has a place of its own: the verification of the audit
/// log names its rows, and hits are numbers.
const SAY_IT_ELSEWHERE: [&str; 7] =
    ["audit", "audit_anchor", "hit_hour", "hit_minute", "hit_span", "request", "reserve"];

#[tokio::test]
async fn garbage_in_any_column_costs_its_row_and_is_said() {
    simulated::stay_on_one_cpu();
    let template = tempfile::tempdir().unwrap();
    made(template.path()).await;
    let database = template.path().join("kprobed.db");
    let (mut spoiled, mut said, mut failed) = (0, 0, Vec::new());
    for (table, column, kind) in columns(&database).await {
        let of_another_type = if kind == "INTEGER" { "'garbage'" } else { "x'fffefd'" };
        let not_utf8 = "CAST(x'fffefd' AS TEXT)";
        for garbage in [not_utf8, of_another_type, "'garbage '", "-1", "9223372036854775807", "x'00'"] {
            let is_number = ["hit_hour", "hit_minute"].contains(&table.as_str());
            if is_number && !garbage.starts_with(['-', '9']) {
                continue;
            }
            let what = format!("{garbage} in `{column}` of `{table}`");
            let directory = tempfile::tempdir().unwrap();
            std::fs::copy(&database, directory.path().join("kprobed.db")).unwrap();
            if !spoil(&directory.path().join("kprobed.db"), &table, &column, garbage).await {
                continue;
            }
            spoiled += 1;
            let started = AssertUnwindSafe(start(directory.path(), &what)).catch_unwind().await;
            let found = match started {
                Ok(found) => found,
                Err(panic) => {
                    failed.push(format!("{what}: {:?}", panic.downcast_ref::<String>()));
                    continue;
                }
            };
            let is_said = found.iter().any(|bad| bad.table == table && bad.column == column);
            said += i32::from(is_said);
            // A key is what a row is found by.
            let is_key = (table.as_str(), column.as_str()) == ("exporter", "name") || column == "id";
            let must_be = [not_utf8, of_another_type].contains(&garbage) && !is_key;
            if !is_said && must_be && !SAY_IT_ELSEWHERE.contains(&table.as_str()) {
                failed.push(format!("{what} is not said: {found:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(spoiled > 150 && said > 30, "{spoiled} {said}");
}

/// SQLite writes no row with a value of a wrong kind, even if another column is changed.
#[tokio::test]
async fn a_refused_change_of_a_damaged_row_says_what_to_do_and_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let one = create(&store, new_probe("one")).await.unwrap();
    create(&store, new_probe("other")).await.unwrap();
    store.close().await;
    assert!(spoil(&directory.path().join("kprobed.db"), "probe", "name", "x'fffefd'").await);
    let store = open(directory.path()).await;
    let probes = store.probes().await.unwrap();
    let (bad, good): (Vec<_>, Vec<_>) = probes.iter().partition(|probe| probe.unreadable.is_some());
    assert!(bad.len() == 1 && good.len() == 1 && bad[0].record.uid == one.uid, "{probes:?}");
    let change = edit(Some(&one), Some(&settings(&one, true, "x == 2", "", 2)), None);
    let refused = error::Error::from(store.settle(&[&change]).await.unwrap_err());
    assert_eq!(refused.reason.name, "DATABASE_CORRUPT");
    let what =
        "a row of it is damaged and cannot be changed: cannot store BLOB value in TEXT column probe.name";
    assert!(refused.message.ends_with(what), "{refused}");
    let fix = refused.value("fix").unwrap();
    assert!(fix.contains("`kprobectl delete NAME`") && fix.contains("`kprobectl doctor` names it"), "{fix}");
    assert!(store.bad_values().iter().any(|bad| bad.column == "name" && bad.row == "1"));
    let mut deletion = edit(Some(&bad[0].record), None, None);
    store.begin(&mut [&mut deletion]).await.unwrap();
    store.settle(&[&deletion]).await.unwrap();
    assert_eq!(store.probes().await.unwrap().len(), 1);
}

/// The places of a JSON value at which garbage is put.
fn places(value: &serde_json::Value, at: &str, all: &mut Vec<String>) {
    if !at.is_empty() {
        all.push(at.to_owned());
    }
    if let serde_json::Value::Object(fields) = value {
        for (field, value) in fields {
            places(value, &format!("{at}/{field}"), all);
        }
    }
}

/// A value of a wrong kind anywhere in a record costs the probe, which can be deleted, and nothing else. Its event is
/// found by the lines that can still be read.
#[tokio::test]
async fn garbage_in_any_field_of_a_record_costs_its_row_and_is_said() {
    simulated::stay_on_one_cpu();
    let template = tempfile::tempdir().unwrap();
    made(template.path()).await;
    let database = template.path().join("kprobed.db");
    let record = open(template.path()).await.probes().await.unwrap().remove(0).record;
    let whole = serde_json::to_value(&record).unwrap();
    let mut all = Vec::new();
    places(&whole, "", &mut all);
    let mut said = 0;
    for place in all {
        for garbage in [serde_json::json!([[]]), serde_json::json!("/ -5"), serde_json::json!(-5)] {
            let mut spoiled = whole.clone();
            *spoiled.pointer_mut(&place).unwrap() = garbage.clone();
            // A text in place of a text, and what means nothing else, is not damage that can be seen.
            let is_read = serde_json::from_value::<Record>(spoiled.clone()).is_ok();
            let directory = tempfile::tempdir().unwrap();
            std::fs::copy(&database, directory.path().join("kprobed.db")).unwrap();
            let text = spoiled.to_string().replace('\'', "''");
            assert!(
                spoil(&directory.path().join("kprobed.db"), "probe", "record", &format!("'{text}'")).await
            );
            let what = format!("{garbage} at {place}");
            let store = open(directory.path()).await;
            let found =
                store.probes().await.unwrap().into_iter().find(|probe| probe.record.uid == record.uid);
            let found = found.unwrap_or_else(|| panic!("{what}: it is dropped"));
            if !is_read {
                assert!(found.unreadable.is_some() && found.record.name == record.name, "{what}");
                let lines = [&found.record.kernel_listing, &found.record.kernel_definition];
                assert!(lines.iter().any(|line| **line == record.kernel_listing), "{what}: {found:?}");
            }
            store.close().await;
            let bad = start(directory.path(), &what).await;
            assert!(is_read || bad.iter().any(|bad| bad.to_string().contains("kprobectl delete")), "{what}");
            said += i32::from(!is_read);
        }
    }
    assert!(said > 40, "{said}");
}

/// A record that ends in the middle, wherever that is.
#[tokio::test]
async fn a_record_that_is_cut_costs_its_row() {
    let template = tempfile::tempdir().unwrap();
    made(template.path()).await;
    let record = open(template.path()).await.probes().await.unwrap().remove(0).record;
    let text = serde_json::to_string(&record).unwrap();
    for cut in (0..text.len()).step_by(97) {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(template.path().join("kprobed.db"), copy.path().join("kprobed.db")).unwrap();
        let garbage = format!("'{}'", text[..cut].replace('\'', "''"));
        assert!(spoil(&copy.path().join("kprobed.db"), "probe", "record", &garbage).await);
        let said: Vec<_> = start(copy.path(), "cut").await.iter().map(ToString::to_string).collect();
        let is_said = |text: &String| text.contains("record") && text.contains("kprobectl delete");
        assert!(said.iter().any(is_said), "{said:?}");
    }
}
