//! Test of what a client learns of kernel addresses that may not see them.

use kprobed::config::Listen;
use kprobed_proto::v1::CheckAccessRequest;
use kprobed_proto::v1::access_service_client::AccessServiceClient;
use kprobed_proto::v1::check_access_request::Object;
use tonic::Code;

use crate::server::Server;

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
