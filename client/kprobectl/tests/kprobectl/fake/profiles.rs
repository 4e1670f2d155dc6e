//! Fake service of hits over time: two pages of one probe in two boots.

use kprobed_client::api::profile_service_server::ProfileService;
use kprobed_client::api::*;
use tonic::{Request, Response};

use super::answers;
use super::services::{Answer, Services};

/// Minutes from noon on, with their seconds that are known and their hits.
fn series(boot: &str, kernel: &str, first_minute: i64, points: &[(u32, u64)]) -> HitSeries {
    let point = |(minute, (covered_seconds, hits)): (i64, &(u32, u64))| HitRate {
        start_time: answers::profile(60 * minute, 0).time,
        covered_seconds: *covered_seconds,
        hits: *hits,
        nmissed: 0,
        hits_per_second: (*covered_seconds > 0).then(|| *hits as f64 / f64::from(*covered_seconds)),
    };
    HitSeries {
        probe: "kprobes/open".to_owned(),
        probe_uid: 1,
        boot_id: boot.to_owned(),
        kernel_release: kernel.to_owned(),
        points: (first_minute..).zip(points).map(point).collect(),
    }
}

#[tonic::async_trait]
impl ProfileService for Services {
    async fn list_hit_rates(&self, request: Request<ListHitRatesRequest>) -> Answer<ListHitRatesResponse> {
        let request = request.into_inner();
        if request.label_selector.contains("+3") {
            return Err(answers::refused(&request.label_selector));
        }
        if request.label_selector == "team=nobody" {
            return Ok(Response::new(ListHitRatesResponse { step_seconds: 60, ..Default::default() }));
        }
        let (series, next) = if request.page_token.is_empty() {
            (series("b0", "6.1.0", 0, &[(30, 60), (60, 0), (0, 0), (60, 30)]), "1")
        } else {
            (series("b1", "6.12.0", 5, &[(20, 10)]), "")
        };
        Ok(Response::new(ListHitRatesResponse {
            series: vec![series],
            step_seconds: request.step_seconds.next_multiple_of(60),
            next_page_token: next.to_owned(),
        }))
    }
}
