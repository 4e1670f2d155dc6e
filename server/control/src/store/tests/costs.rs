//! Tests of stored calibrations.

use super::*;

#[tokio::test]
async fn the_last_calibration_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path()).await;
    assert_eq!(store.calibration().await.unwrap(), None);
    for host in ["a", "b"] {
        store.set_calibration(host, "{}").await.unwrap();
        assert_eq!(store.calibration().await.unwrap(), Some((host.to_owned(), "{}".to_owned())));
    }
}
