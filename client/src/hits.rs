//! Hits of probes: current counts, and hits over time.

use crate::api::{HitProfile, HitSeries, ListHitsRequest};
use crate::client::Client;
use crate::error::Error;

/// Hits by intervals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HitRates {
    /// Length of the intervals in seconds: that of the request, or the next longer one that the
    /// daemon has.
    pub step_seconds: u32,
    /// One for each probe in each boot.
    pub series: Vec<HitSeries>,
}

impl Client {
    /// Reads the current hit counts of all probes whose names match a glob. An empty glob matches
    /// all.
    pub async fn hits(&self, name_glob: &str) -> Result<Vec<HitProfile>, Error> {
        self.select_hits(ListHitsRequest { name_glob: name_glob.to_owned(), ..Default::default() }).await
    }

    /// Reads the current hit counts of all probes that a request selects, by name and by labels. The
    /// range of the request is not used.
    pub async fn select_hits(&self, request: ListHitsRequest) -> Result<Vec<HitProfile>, Error> {
        let ListHitsRequest { name_glob, label_selector, with_own, .. } = request;
        let request = ListHitsRequest { name_glob, label_selector, with_own, ..Default::default() };
        let response = self.call(request, async |request| self.probes().list_hits(request).await).await?;
        Ok(response.profiles)
    }

    /// Reads all hits of the past that a request selects, from its `start_time` on, page by page. The
    /// token of the request is not used.
    pub async fn hits_over_time(&self, mut request: ListHitsRequest) -> Result<HitRates, Error> {
        let mut rates = HitRates::default();
        request.page_token.clear();
        loop {
            let asked = request.clone();
            let page = self.call(asked, async |request| self.probes().list_hits(request).await).await?;
            if !rates.series.is_empty() && page.step_seconds != rates.step_seconds {
                // The daemon has rolled up the intervals between two pages: begin again with the
                // longer step.
                rates.series.clear();
                rates.step_seconds = page.step_seconds;
                request.step_seconds = page.step_seconds;
                request.page_token.clear();
                continue;
            }
            rates.step_seconds = page.step_seconds;
            rates.series.extend(page.series);
            if page.next_page_token.is_empty() {
                return Ok(rates);
            }
            request.page_token = page.next_page_token;
        }
    }
}
