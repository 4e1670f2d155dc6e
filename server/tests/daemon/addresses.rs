//! Test of what a client learns of kernel addresses that may not see them.

use kprobed::config::Listen;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use kprobed_proto::v1::check_access_request::Object;
use kprobed_proto::v1::probe_service_client::ProbeServiceClient;
use kprobed_proto::v1::{CheckAccessRequest, CheckProbeRequest, CreateProbeRequest, UpdateProbeRequest};
use tonic::Code;

use crate::server::{PROBE, Server};

/// Everything is allowed but to see addresses.
const NO_ADDRESSES: &str = "[[role.deny]]\nreads = [\"addresses\"]\n";

async fn asked(limits: &str, place: &str) -> Result<Vec<String>, Code> {
    let server = Server::open(Listen::default(), limits).await;
    let mut client = AccessServiceClient::new(server.local().await.unwrap());
    let definition = Some(Object::Definition(format!("p:x/y {place}")));
    let request =
        CheckAccessRequest { method: "CreateProbe".to_owned(), object: definition, ..Default::default() };
    client
        .check_access(request)
        .await
        .map(|answer| answer.into_inner().functions)
        .map_err(|status| status.code())
}

/// The function at an address, asked for often enough, says where the kernel is.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_rights_has_no_place_that_is_an_address() {
    assert_eq!(asked(NO_ADDRESSES, "0xffffffff81000000").await, Err(Code::PermissionDenied));
    let named = asked(NO_ADDRESSES, "do_sys_openat2").await.unwrap();
    assert_eq!(named, ["do_sys_openat2"]);
    assert!(asked("", "0xffffffff81000000").await.is_ok());
}

/// The verdict on an address names the function there, also of a text with a mistake.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_has_no_place_that_is_an_address() {
    let server = Server::open(Listen::default(), NO_ADDRESSES).await;
    let mut probes = ProbeServiceClient::new(server.local().await.unwrap());
    for definition in ["r:x/y 0xffffffff81200010", "r:x/y 0xffffffff81200010 a=$nosuch"] {
        let definition = definition.to_owned();
        let create =
            CreateProbeRequest { definition: definition.clone(), validate_only: true, ..Default::default() };
        let update = UpdateProbeRequest {
            name: PROBE.to_owned(),
            definition: Some(definition),
            validate_only: true,
            ..Default::default()
        };
        for refused in
            [probes.create_probe(create).await.unwrap_err(), probes.update_probe(update).await.unwrap_err()]
        {
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
            assert!(refused.message().contains("needs a role that may see addresses"), "{refused:?}");
        }
    }
}

/// Neither the verdict nor the explanation says what is at an address.
#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_has_no_place_that_is_an_address() {
    for (limits, is_explained) in [(NO_ADDRESSES, false), ("", true)] {
        let server = Server::open(Listen::default(), limits).await;
        let mut probes = ProbeServiceClient::new(server.local().await.unwrap());
        let definition = "p:x/y 0xffffffff81200010".to_owned();
        let check = CheckProbeRequest { definition, explain: true, ..Default::default() };
        let answer = probes.check_probe(check).await.unwrap().into_inner();
        assert_eq!(!answer.explanation.is_empty(), is_explained, "{answer:?}");
        let is_refused = answer.diagnostics.iter().any(|found| found.code == "ADDRESS_NOT_ALLOWED");
        assert_eq!(is_refused, !is_explained, "{answer:?}");
    }
}
