//! Tests of stored costs: calibrations, and what was taken.

use super::*;

#[tokio::test]
async fn the_last_calibration_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    assert_eq!(store.calibration().await.unwrap(), None);
    for host in ["a", "b"] {
        let stored = StoredCalibration { host: host.to_owned(), figures: "{}".to_owned() };
        store.set_calibration(&stored, SystemTime::now()).await.unwrap();
        assert_eq!(store.calibration().await.unwrap(), Some(stored));
    }
}

#[tokio::test]
async fn what_was_taken_is_added_up_by_the_day() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    let probe = |event: &str, uid, day, runs| SpentByProbe {
        uid: ProbeUid(uid),
        name: ProbeName::new("kprobes", event).unwrap(),
        creator: format!("uid:{uid}"),
        day,
        runs,
        cpu_ns: 500 * runs,
    };
    let daemon = |day, cpu_ns| SpentByDaemon { day, cpu_ns };
    store.add_spent(&[probe("b", 2, 7, 10), probe("a", 1, 7, 1)], daemon(7, 100)).await.unwrap();
    store.add_spent(&[probe("b", 2, 7, 5)], daemon(7, 50)).await.unwrap();
    store.add_spent(&[probe("b", 2, 8, 3)], daemon(8, 1)).await.unwrap();
    let all = (
        vec![probe("a", 1, 7, 1), probe("b", 2, 7, 15), probe("b", 2, 8, 3)],
        vec![daemon(7, 150), daemon(8, 1)],
    );
    assert_eq!(store.spent(7).await.unwrap(), all);
    let later = (vec![probe("b", 2, 8, 3)], vec![daemon(8, 1)]);
    assert_eq!(store.spent(8).await.unwrap(), later);
    store.forget_spent(8).await.unwrap();
    assert_eq!(store.spent(0).await.unwrap(), later);
    let noon = SystemTime::UNIX_EPOCH + Duration::from_hours(36);
    assert_eq!(day_of(noon), 1);
}
