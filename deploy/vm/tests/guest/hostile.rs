//! Clients that are broken, or mean harm: they cost others little, and are told what is wrong.

use anyhow::{Context as _, Result, ensure};
use kprobed_client::api::{CreateProbeRequest, UpdateProbeRequest};
use kprobed_client::event::StreamRequest;

use crate::Test;
use crate::fixture::Fixture;

pub(crate) const TESTS: &[Test] = &[("what_is_echoed_fits_into_trailers", what_is_echoed_fits_into_trailers)];

fn refused(outcome: Result<impl std::fmt::Debug, kprobed_client::Error>) -> Result<kprobed_client::RpcError> {
    match outcome {
        Err(kprobed_client::Error::Rpc(error)) => Ok(*error),
        other => anyhow::bail!("{other:?}"),
    }
}

fn what_is_echoed_fits_into_trailers(fixture: &Fixture) -> Result<()> {
    let guest = fixture.daemon()?;
    // Just below what gRPC takes as a message.
    let many = "a=%di ".repeat(500_000);
    let definition = format!("p:x vfs_read {many} b=%nosuch");
    let error = guest.refusal(&definition)?;
    let found = error.diagnostics.context("no diagnostics")?;
    ensure!(!error.reason.is_empty() && found.text.len() < 4096, "{} {}", error.reason, found.text.len());
    guest.add("p:x vfs_read a=%di")?;
    let filter = format!("{}a == 1", "(".repeat(20_000));
    let update =
        UpdateProbeRequest { name: "x".to_owned(), filter: Some(filter.clone()), ..Default::default() };
    let error = refused(guest.wait_for(guest.client.update_probe(update))?)?;
    ensure!(error.reason == "BAD_FILTER", "{error:?}");
    let shown = error.diagnostics.context("no diagnostics")?;
    ensure!(shown.text.contains(" bytes)") && shown.text.len() < 4096, "{}", shown.text);
    let name = "n".repeat(1 << 20);
    let error = refused(guest.wait_for(guest.client.get_probe(&name))?)?;
    ensure!(error.message.len() < 4096 && error.message.contains("bytes) ..."), "{}", error.message);
    let label = CreateProbeRequest {
        definition: "p:y vfs_read".to_owned(),
        labels: [("k".to_owned(), "v".repeat(1 << 20))].into(),
        ..Default::default()
    };
    let error = refused(guest.wait_for(guest.client.create_probe(label))?)?;
    ensure!(error.reason == "BAD_LABEL", "{error:?}");
    let request = StreamRequest::new().filter(&filter);
    let error = refused(guest.wait_for(guest.client.stream_events(request))?.map(|_| ()))?;
    ensure!(error.message.len() < 4096, "{}", error.message);
    Ok(())
}
