//! Hits of probes: current counts, and hits over time.

use crate::api::profile_service_client::ProfileServiceClient;
use crate::api::{GetHitProfilesRequest, HitProfile, HitSeries, ListHitRatesRequest, ListHitRatesResponse};
use crate::client::{Client, MAX_MESSAGE_BYTES};
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
    pub async fn hit_profiles(&self, name_glob: &str) -> Result<Vec<HitProfile>, Error> {
        let request = GetHitProfilesRequest { name_glob: name_glob.to_owned(), ..Default::default() };
        self.select_hit_profiles(request).await
    }

    /// Reads the current hit counts of all probes that a request selects, by name and by labels.
    pub async fn select_hit_profiles(
        &self,
        request: GetHitProfilesRequest,
    ) -> Result<Vec<HitProfile>, Error> {
        let response =
            self.call(request, async |request| self.probes().get_hit_profiles(request).await).await?;
        Ok(response.profiles)
    }

    /// Reads all hits of the past that a request selects, page by page. The token of the request is
    /// not used.
    pub async fn hit_rates(&self, mut request: ListHitRatesRequest) -> Result<HitRates, Error> {
        let mut rates = HitRates::default();
        request.page_token.clear();
        loop {
            let page = self.hit_rates_page(request.clone()).await?;
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

    /// Reads one page of hits of the past.
    async fn hit_rates_page(&self, request: ListHitRatesRequest) -> Result<ListHitRatesResponse, Error> {
        let service =
            || ProfileServiceClient::new(self.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        self.call(request, async |request| service().list_hit_rates(request).await).await
    }
}
