//! The gRPC connection to an OTLP receiver.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Extensions, Request};

use crate::config::Problem;
use crate::config::export::{ClientTls, NetworkAddress, OTLP, Otlp, ServerUrl};
use crate::export::SinkError;
use crate::export::open::refused;
use crate::export::sink::causes;
use crate::start_error::StartError;

/// A receiver may be gone without a word: it is asked this often whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// How a receiver is reached.
#[derive(Clone, Debug)]
pub struct Connection {
    endpoint: ServerUrl,
    tls: Option<Tls>,
    metadata: MetadataMap,
}

#[derive(Clone, Debug)]
struct Tls {
    config: Arc<ClientConfig>,
    /// Name in the receiver's certificate, if it is not the host of the address.
    domain: Option<String>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Connection {
    /// For settings that were judged.
    ///
    /// # Errors
    /// A file has changed since.
    pub fn new(settings: &Otlp) -> Result<Self, StartError> {
        let endpoint = ServerUrl::parse(&settings.endpoint, OTLP)
            .map_err(|error| refused(format_args!("`export.otlp.endpoint`: {error}")))?;
        let tls = settings.tls.as_ref().filter(|_| endpoint.is_tls).map(tls).transpose().map_err(refused)?;
        let mut metadata = MetadataMap::new();
        for (name, value) in &settings.headers {
            let name = AsciiMetadataKey::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(mut value)) = (name, AsciiMetadataValue::try_from(value.reveal())) {
                value.set_sensitive(true);
                metadata.insert(name, value);
            }
        }
        Ok(Self { endpoint, tls, metadata })
    }

    /// Connects.
    pub(super) async fn open(&self) -> Result<Channel, SinkError> {
        let failed =
            |error: &dyn Error| SinkError::new(format_args!("connect to `{}`", self.endpoint), causes(error));
        let uri = format!("http://{}", self.endpoint.address);
        let endpoint = Endpoint::from_shared(uri)
            .map_err(|error| failed(&error))?
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let (address, tls) = (self.endpoint.address.clone(), self.tls.clone());
        let connector = tower::service_fn(move |_: Uri| {
            let (address, tls) = (address.clone(), tls.clone());
            async move { connect(address, tls).await.map(TokioIo::new) }
        });
        endpoint.connect_with_connector(connector).await.map_err(|error| failed(&error))
    }

    /// A request with the headers of the configuration.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        Request::from_parts(self.metadata.clone(), Extensions::default(), message)
    }
}

async fn connect(address: NetworkAddress, tls: Option<Tls>) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(tls.domain.unwrap_or(address.host))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(TlsConnector::from(tls.config).connect(name, stream).await?))
}

fn tls(files: &ClientTls) -> Result<Tls, Problem> {
    let mut config = crate::config::client_config("export.otlp.tls", files)?;
    config.alpn_protocols.push(b"h2".to_vec());
    Ok(Tls { config: config.into(), domain: files.domain.clone() })
}
