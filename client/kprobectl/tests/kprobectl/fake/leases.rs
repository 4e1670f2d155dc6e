//! Fake lease service: one hold after the other, whose end is noted.

use std::sync::{Arc, Mutex};

use kprobed_client::api::lease_service_server::LeaseService;
use kprobed_client::api::*;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response};

use super::services::{Answer, BoxedStream, Services};

/// Notes its end.
struct Held(Arc<Mutex<Vec<String>>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("hold ended".to_owned());
    }
}

#[tonic::async_trait]
impl LeaseService for Services {
    type HoldProbesStream = BoxedStream<HoldProbesResponse>;

    async fn hold_probes(&self, _: Request<HoldProbesRequest>) -> Answer<Self::HoldProbesStream> {
        self.log.lock().unwrap().push("hold".to_owned());
        let held = Held(Arc::clone(&self.log));
        let first = HoldProbesResponse { holder: "h-1".to_owned(), vanished_after: None };
        let rest = tokio_stream::pending().map(move |answer| {
            // It lives as long as the stream.
            let _ = &held;
            answer
        });
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(rest))))
    }
}
