//! Tests of `observe` and `hits`: filters, selectors and fields that the daemon refuses.

use insta::assert_snapshot;
use kprobed_client::event::StreamRequest;

use super::Host;

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_is_refused_at_its_place() {
    let host = Host::with_probes().await;
    assert_snapshot!(host.run(&["observe", "--filter", "dfd = 3"]), @"
    exit: 1
    -- stdout
    -- stderr
    error: `=` is not an operator [INVALID_OP]
      | dfd = 3
      |     ^
    hint: write `==`
    ");
    assert_snapshot!(host.run(&["observe", "-q", "--comm", "cat", "--filter", "dfd = 3"]), @r#"
    exit: 1
    -- stdout
    -- stderr
    error: `=` is not an operator [INVALID_OP]
      | (dfd = 3) && (comm == "cat")
      |      ^
    hint: write `==`
    "#);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_and_a_field_that_no_probe_has_are_refused() {
    let host = Host::with_probes().await;
    // The daemon reads selectors of labels too: for the notes, or for the stream.
    for quiet in [&[][..], &["-q"]] {
        let told = host.run(&[&["observe", "-l", "team storage"], quiet].concat());
        assert!(told.starts_with("exit: 1") && told.contains("  | team storage"), "{told}");
    }
    let told = host.run(&["observe", "kprobes/open", "kprobes/read", "-n", "1", "--fields", "nosuch", "-q"]);
    assert!(told.contains("| nosuch"), "the daemon refuses what no probe has: {told}");
    let told = host.run(&["hits", "--since", "1h", "--step", "1m", "-l", "team storage"]);
    assert!(told.starts_with("exit: 1") && told.contains("  | team storage"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_has_the_text_that_was_refused() {
    let host = Host::with_probes().await;
    let client = host.client().await;
    for (request, text) in [
        (StreamRequest::new().label_selector("team storage"), "team storage"),
        (StreamRequest::new().probe("*/open").filter("dfd = 3"), "dfd = 3"),
    ] {
        let error = client.stream_events(request).await.map(drop).unwrap_err();
        assert_eq!(error.rpc().unwrap().diagnostics.as_ref().unwrap().text, text);
    }
}
