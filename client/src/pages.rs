//! Lists that the daemon sends page by page, read as a whole.

use crate::api::{
    DeclarationProblem, ForeignEvent, HitProfile, HitSeries, ListForeignProbesRequest, ListFunctionsRequest,
    ListFunctionsResponse, ListHitsRequest, ListProbesRequest, Probe,
};
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
    /// Lists all probes whose names match a glob. An empty glob matches all.
    pub async fn list_probes(&self, name_glob: &str) -> Result<Vec<Probe>, Error> {
        let request = ListProbesRequest { name_glob: name_glob.to_owned(), ..Default::default() };
        self.select_probes(request).await
    }

    /// Lists all probes that a request selects, by name and by labels. Page size and token of the request are
    /// not used.
    pub async fn select_probes(&self, request: ListProbesRequest) -> Result<Vec<Probe>, Error> {
        Ok(self.select_probes_and_problems(request).await?.0)
    }

    /// Lists the probes that a request selects, and the problems of files that declare probes on
    /// the daemon's host.
    pub async fn select_probes_and_problems(
        &self,
        mut request: ListProbesRequest,
    ) -> Result<(Vec<Probe>, Vec<DeclarationProblem>), Error> {
        request.page_size = 1000;
        request.page_token.clear();
        let (mut probes, mut problems) = (Vec::new(), Vec::new());
        loop {
            let page = self.list_probes_page(request.clone()).await?;
            probes.extend(page.probes);
            problems.extend(page.declaration_problems);
            if page.next_page_token.is_empty() {
                return Ok((probes, problems));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Finds functions by name. Page size and token of the request are not used. The answer has suggestions when
    /// it has no function.
    pub async fn list_functions(
        &self,
        mut request: ListFunctionsRequest,
    ) -> Result<ListFunctionsResponse, Error> {
        request.page_size = 10_000;
        request.page_token.clear();
        let mut all = ListFunctionsResponse::default();
        loop {
            let page = self.list_functions_page(request.clone()).await?;
            all.functions.extend(page.functions);
            all.suggestions = page.suggestions;
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Lists all foreign kprobe events whose names match a glob. An empty glob matches all.
    pub async fn foreign_probes(&self, name_glob: &str) -> Result<Vec<ForeignEvent>, Error> {
        let mut request = ListForeignProbesRequest {
            page_size: 1000,
            name_glob: name_glob.to_owned(),
            ..Default::default()
        };
        let mut events = Vec::new();
        loop {
            let page = self.foreign_probes_page(request.clone()).await?;
            events.extend(page.events);
            if page.next_page_token.is_empty() {
                return Ok(events);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Reads the current hit counts of all probes that a request selects, by name and by labels. The
    /// range of the request is not used.
    pub async fn select_hits(&self, request: ListHitsRequest) -> Result<Vec<HitProfile>, Error> {
        let ListHitsRequest { name_glob, label_selector, with_own, .. } = request;
        let request = ListHitsRequest { name_glob, label_selector, with_own, ..Default::default() };
        Ok(self.list_hits_page(request).await?.profiles)
    }

    /// Reads all hits of the past that a request selects, from its `start_time` on. The token of the request is
    /// not used.
    pub async fn hits_over_time(&self, mut request: ListHitsRequest) -> Result<HitRates, Error> {
        let mut rates = HitRates::default();
        request.page_token.clear();
        loop {
            let page = self.list_hits_page(request.clone()).await?;
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
