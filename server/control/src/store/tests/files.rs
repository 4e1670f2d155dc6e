//! Tests of files that are damaged, of another version, or lack a migration.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use sqlx::SqlStr;
use sqlx::migrate::{Migration, MigrationType};

use super::super::integrity::applied;
use super::*;

/// A time that is easy to recognise in names.
fn at(hour: u64) -> SystemTime {
    // 2026-01-31.
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_769_817_600 + 3600 * hour)
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

async fn with_a_probe(directory: &Path) -> ProbeUid {
    let store = open(directory).await;
    let uid = create(&store, new_probe("kept")).await.unwrap().uid;
    store.close().await;
    uid
}

/// Overwrites one page in the middle of the database, which its first page still counts.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0x5a);
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_database_is_set_aside_and_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    let before = with_a_probe(directory.path()).await;
    for round in 1..=2_usize {
        damage(&path);
        let bytes = fs::read(&path).unwrap();
        // What a crash leaves belongs to the database.
        fs::write(directory.path().join("kprobed.db-wal"), "a log that SQLite does not take").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().join("kprobed.db");
        fs::write(&copy, &bytes).unwrap();
        let refused = Store::open_file(copy.clone(), options(&copy), &MIGRATIONS, at(1)).await.unwrap_err();
        let StoreError::Damaged { damage: found, .. } = &refused else { panic!("{refused}") };
        assert!(!found.is_empty());
        ThisThreadsLog::keep();
        let store = Store::open(directory.path(), at(1)).await.unwrap();
        let aside = set_aside_in(directory.path()).unwrap();
        assert_eq!(aside.len(), round);
        let name = if round == 1 {
            "kprobed.db.damaged-20260131T010000Z"
        } else {
            "kprobed.db.damaged-20260131T010000Z.2"
        };
        let aside = &aside[round - 1];
        assert_eq!(*aside, directory.path().join(name));
        // An operator reads what was lost, why, and where it is.
        let is_said = |line: &str| {
            line.contains("the database is damaged: it was set aside")
                && line.contains(&aside.display().to_string())
                && line.contains(&format!("{found:?}"))
        };
        let log = ThisThreadsLog::text();
        assert!(log.lines().any(is_said), "{log}");
        assert!(fs::read(aside).unwrap() == bytes);
        assert_eq!((mode(aside), mode(&path)), (0o600, 0o600));
        assert!(store.probes().await.unwrap().is_empty());
        // No event of the lost database is taken for one of a new probe.
        let uid = create(&store, new_probe("new")).await.unwrap().uid;
        assert!(uid.0 > before.0 + 1_000_000_000, "{uid}");
        store.close().await;
        assert_eq!(set_aside_in(directory.path()).unwrap().len(), round);
    }
    // The next start finds nothing wrong, and the damaged database still exists.
    let store = Store::open(directory.path(), at(2)).await.unwrap();
    assert_eq!(set_aside_in(directory.path()).unwrap().len(), 2);
    store.close().await;
}

#[tokio::test]
async fn uids_go_on_after_those_that_the_history_knows() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let uid = async |event: &str| create(&store, new_probe(event)).await.unwrap().uid;
    assert_eq!(store.continue_uids_after(ProbeUid(0)).await.unwrap(), 0, "there is no history yet");
    // The database was removed: the history knows 200 probes of another one.
    assert_eq!(store.continue_uids_after(ProbeUid(200)).await.unwrap(), 200);
    assert_eq!(uid("a").await, ProbeUid(201));
    assert_eq!(store.continue_uids_after(ProbeUid(201)).await.unwrap(), 0, "it gave out that one itself");
    // An older copy of it was put back.
    assert_eq!(store.continue_uids_after(ProbeUid(205)).await.unwrap(), 4);
    assert_eq!(uid("b").await, ProbeUid(206));
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    for (hour, content) in [(1, "nonsense\n".repeat(1000)), (2, "x".repeat(600))] {
        fs::write(&path, &content).unwrap();
        let store = Store::open(directory.path(), at(hour)).await.unwrap();
        let aside = set_aside_in(directory.path()).unwrap();
        assert_eq!(fs::read_to_string(aside.last().unwrap()).unwrap(), content);
        store.check().await.unwrap();
        store.close().await;
    }
    // An interrupted start leaves an empty file.
    fs::write(&path, "").unwrap();
    Store::open(directory.path(), at(3)).await.unwrap();
    assert_eq!(set_aside_in(directory.path()).unwrap().len(), 2);
}

#[tokio::test]
async fn another_version_is_refused_even_if_it_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    let store = open(directory.path()).await;
    let insert = async |transaction: &mut SqliteConnection| {
        sqlx::query(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 0)",
        )
        .execute(&mut *transaction)
        .await?;
        // A page without a reference to it.
        sqlx::query("CREATE TABLE junk (a BLOB) STRICT").execute(&mut *transaction).await?;
        sqlx::query("INSERT INTO junk VALUES (zeroblob(100000))").execute(transaction).await?;
        Ok(())
    };
    store.database.write(insert).await.unwrap();
    store.close().await;
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 8192..].fill(0x5a);
    fs::write(&path, &bytes).unwrap();
    let before = names(directory.path());
    let error = Store::open(directory.path(), at(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherVersion { migration: 9999, .. }), "{error}");
    assert_eq!((names(directory.path()), fs::read(&path).unwrap()), (before, bytes));
}

/// A database whose first migration had other contents, as every one of before the first release has.
#[tokio::test]
async fn a_migration_with_other_contents_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    let other = Migrator::with_migrations(vec![step(1, "CREATE TABLE probe (uid INTEGER) STRICT")]);
    let mut connection = options(&path).create_if_missing(true).connect().await.unwrap();
    other.run(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    let before = (names(directory.path()), fs::read(&path).unwrap());
    let error = Store::open(directory.path(), at(1)).await.unwrap_err();
    assert!(matches!(error, StoreError::OtherVersion { migration: 1, .. }), "{error}");
    assert_eq!((names(directory.path()), fs::read(&path).unwrap()), before);
}

/// A migration of a later version.
fn step(version: i64, text: &'static str) -> Migration {
    Migration::new(version, "a step".into(), MigrationType::Simple, SqlStr::from_static(text), false)
}

/// What the next version knows.
fn with_one_more() -> Migrator {
    let more = step(9000, "CREATE TABLE later (a INTEGER) STRICT");
    Migrator::with_migrations(MIGRATIONS.iter().cloned().chain([more]).collect())
}

#[tokio::test]
async fn a_database_is_copied_before_it_is_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    let mut copies = Vec::new();
    for hour in 1..=4 {
        if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        // As this version leaves it.
        let store = open(directory.path()).await;
        let insert = async |transaction: &mut SqliteConnection| {
            sqlx::query("INSERT INTO request VALUES ('uid:0', 'kept', 'x', ?, 0)")
                .bind(hour)
                .execute(transaction)
                .await?;
            Ok(())
        };
        store.database.write(insert).await.unwrap();
        store.close().await;
        // The second time there is nothing to do.
        let hour = u64::try_from(hour).unwrap();
        for time in [at(hour), at(9)] {
            let store = Store::open_with(directory.path(), &with_one_more(), time).await.unwrap();
            store.close().await;
        }
        copies.push(format!("kprobed.db.backup-20260131T0{hour}0000Z"));
    }
    let kept: Vec<_> = names(directory.path()).into_iter().filter(|name| name.contains("backup")).collect();
    assert_eq!(kept, copies[2..], "the last two");
    let copy = directory.path().join(&kept[1]);
    assert_eq!(mode(&copy), 0o600);
    let mut connection = options(&copy).connect().await.unwrap();
    assert_eq!(applied(&mut connection).await.unwrap().len(), MIGRATIONS.iter().count());
    let hour: i64 =
        sqlx::query_scalar("SELECT probe_uid FROM request").fetch_one(&mut connection).await.unwrap();
    assert_eq!(hour, 4);
    // A directory that contains copies still belongs to the daemon alone.
    assert_eq!(mode(directory.path()), 0o700);
}

#[tokio::test]
async fn without_a_copy_nothing_is_brought_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kprobed.db");
    open(directory.path()).await.close().await;
    // The copy cannot be written, because a directory has its name.
    fs::create_dir(directory.path().join("kprobed.db.backup.new")).unwrap();
    let error = Store::open_with(directory.path(), &with_one_more(), at(1)).await.unwrap_err();
    assert!(error.to_string().contains("kprobed.db.backup.new"), "{error}");
    let mut connection = options(&path).connect().await.unwrap();
    assert_eq!(applied(&mut connection).await.unwrap().len(), MIGRATIONS.iter().count());
}

#[tokio::test]
async fn all_files_are_for_the_daemon_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    create(&store, new_probe("a")).await.unwrap();
    let modes: Vec<_> = names(directory.path())
        .iter()
        .map(|name| (name.clone(), mode(&directory.path().join(name))))
        .collect();
    let expected = ["kprobed.db", "kprobed.db-shm", "kprobed.db-wal", "kprobed.reserve"]
        .map(|name| (name.to_owned(), 0o600));
    assert_eq!(modes, expected);
}
