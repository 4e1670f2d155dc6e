//! The Prometheus endpoint `/metrics`.
//!
//! Owns serving and writing metrics. Which series exist is decided in [`super::metrics`].

#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::metrics::{Family, Kind, Metrics, Point, Sources, Value};
use super::open::refused;
use crate::health::{NETWORK_HINT, is_of_closed_network};
use crate::shutdown::Tasks;
use crate::start_error::StartError;
use kprobed_trace::pipeline::View;

/// Connections at a time. A Prometheus has one.
const MAX_CONNECTIONS: usize = 16;

/// What a scraper may take for its handshake, and for the head of its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a scrape may take: the default of `scrape_timeout` in Prometheus.
const SCRAPE: Duration = Duration::from_secs(10);

/// What a connection may take: a handshake is not in it, and reading the answer is.
const CONNECTION: Duration = PATIENCE.saturating_add(SCRAPE).saturating_add(PATIENCE);

/// Content type of the answer (OpenMetrics 1.0).
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What serves `/metrics`.
#[derive(Debug)]
pub struct Prometheus {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    scrape: Arc<Scrape>,
}

/// What answers requests.
#[derive(Debug)]
struct Scrape {
    sources: Sources,
    selection: View,
    /// One reads the ledger at a time.
    turn: Mutex<()>,
}

type Answer = Response<Full<Bytes>>;

impl Prometheus {
    /// Listens.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<ServerConfig>,
        selection: View,
        sources: Sources,
    ) -> Result<Self, StartError> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let why = format!("cannot listen on `{address}` (`export.prometheus.listen`): {error}");
            if is_of_closed_network(&error) { refused(why).fix(NETWORK_HINT) } else { refused(why) }
        })?;
        let scrape = Arc::new(Scrape { sources, selection, turn: Mutex::new(()) });
        Ok(Self { listener, tls: tls.map(Arc::new), scrape })
    }

    /// Serves until the daemon stops.
    pub async fn run(self, tasks: Tasks) {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // Further connections wait in the kernel's queue.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = tasks.stopping().cancelled() => return,
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a scraper");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (tls, scrape, stopping) =
                (self.tls.clone(), Arc::clone(&self.scrape), tasks.stopping().clone());
            tasks.spawn("scraper", async move {
                let served = async {
                    match tls {
                        None => serve(socket, scrape).await,
                        Some(tls) => over_tls(socket, tls.into(), scrape).await,
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = stopping.cancelled() => {}
                }
                drop(permit);
            });
        }
    }
}

async fn over_tls(socket: TcpStream, tls: TlsAcceptor, scrape: Arc<Scrape>) {
    match tokio::time::timeout(PATIENCE, tls.accept(socket)).await {
        Ok(Ok(socket)) => serve(socket, scrape).await,
        Ok(Err(error)) => tracing::debug!(%error, "a scraper did not finish its handshake"),
        Err(_elapsed) => tracing::debug!("a scraper took too long for its handshake"),
    }
}

async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin, scrape: Arc<Scrape>) {
    let answer = move |request: Request<Incoming>| {
        let scrape = Arc::clone(&scrape);
        async move { scrape.answer(&request).await }
    };
    answer_one(socket, answer).await;
}

/// Answers one request. There are few connections: one that is kept, or whose answer is not read, would keep others
/// out.
async fn answer_one<F: Future<Output = Answer>>(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(move |request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), service);
    match tokio::time::timeout(CONNECTION, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "the connection of a scraper ended"),
        Err(_elapsed) => tracing::debug!("a scraper took too long to read its answer"),
    }
}

impl Scrape {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "there is only /metrics\n".to_owned());
        }
        match tokio::time::timeout(SCRAPE, self.metrics()).await {
            Ok(Ok(text)) => {
                let mut answer = plain(StatusCode::OK, text);
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
                answer
            }
            Ok(Err(error)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
            Err(_elapsed) => {
                let why = "the daemon is busy with the kernel: the ledger cannot be read now\n";
                plain(StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
            }
        }
    }

    /// The text of a scrape, or why there is none.
    async fn metrics(&self) -> Result<String, String> {
        let _turn = self.turn.lock().await;
        let figures = self.sources.read(&self.selection).await.map_err(|error| error.to_string())?;
        text(figures).map_err(|error| format!("cannot write the metrics: {error}"))
    }
}

fn plain(status: StatusCode, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// The figures in the text format of OpenMetrics 1.0.
///
/// # Errors
/// None that the library documents: it writes into memory.
fn text(figures: Metrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families().iter().try_for_each(|family| of_family(&mut encoder, family))
    }
}

fn of_family(encoder: &mut DescriptorEncoder<'_>, family: &Family<'_>) -> fmt::Result {
    if family.points.is_empty() {
        return Ok(());
    }
    let name = family.name.replace('.', "_");
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(&name, family.help, None, kind)?;
    for Point { labels, value } in &family.points {
        if labels.is_empty() {
            return sample(&mut metric, family.kind, *value);
        }
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, &**value)).collect();
        sample(&mut metric.encode_family(&labels)?, family.kind, *value)?;
    }
    Ok(())
}

fn sample(metric: &mut MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    /// Without an exemplar.
    const NONE: Option<&Exemplar<[(&str, &str); 0], u64>> = None;
    match (kind, value) {
        (Kind::Counter, Value::Count(count)) => metric.encode_counter(&count, NONE),
        (Kind::Counter, Value::Number(number)) => metric.encode_counter(&number, NONE),
        (Kind::Gauge, Value::Count(count)) => metric.encode_gauge(&count),
        (Kind::Gauge, Value::Number(number)) => metric.encode_gauge(&number),
    }
}
