//! Debug information from servers, by build id (debuginfod(8)).
//!
//! Owns one request: GET over HTTP or HTTPS, into the cache that other clients of debuginfod share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::{HOST, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use kprobed_lines::LinesError;
use tokio::fs;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::search::{Build, Places};
use crate::progress::Progress;

/// How long a server may be silent: a kernel is unpacked from its package first.
const PATIENCE: Duration = Duration::from_secs(90);

/// Addresses that answer with another one, at most.
const REDIRECTS_MAX: usize = 5;

/// The largest file that is taken: kernels have a gigabyte.
const BYTES_MAX: u64 = 4 << 30;

/// What a stream to a server can do.
trait Way: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Way for T {}

/// The path of the debug information of a build, after it was fetched. `None`: no server has it, or there is none.
pub(super) async fn debug_information(build: &Build, places: &Places) -> Result<Option<PathBuf>, LinesError> {
    let is_id = !build.id.is_empty() && build.id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(cache) = places.downloads.as_ref().filter(|_| is_id) else { return Ok(None) };
    let path = cache.join(&build.id).join("debuginfo");
    let mut failed = None;
    for server in &places.servers {
        let address = format!("{}/buildid/{}/debuginfo", server.trim_end_matches('/'), build.id);
        match fetch(&address, &path).await {
            Ok(true) => return Ok(Some(path)),
            Ok(false) => {}
            Err(why) => failed = Some(LinesError::new(format!("`{address}`: {why}"))),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Fetches a file. `false`: the server does not have it.
async fn fetch(address: &str, path: &Path) -> Result<bool, String> {
    let mut address = address.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let uri: Uri = address.parse().map_err(|_error| format!("`{address}` is not an address"))?;
        let (response, _carried) = patient(get(&uri)).await?;
        match response.status() {
            StatusCode::OK => return save(response, path).await.map(|()| true),
            StatusCode::NOT_FOUND => return Ok(false),
            status if status.is_redirection() => {
                let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
                let next = next.ok_or_else(|| format!("the server answers {status} without an address"))?;
                address = if next.starts_with('/') {
                    let (scheme, authority) = (uri.scheme_str().unwrap_or("http"), uri.authority());
                    format!("{scheme}://{}{next}", authority.map(ToString::to_string).unwrap_or_default())
                } else {
                    next.to_owned()
                };
            }
            status => return Err(format!("the server answers {status}")),
        }
    }
    Err(format!("more than {REDIRECTS_MAX} servers name another one"))
}

async fn patient<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let waited = tokio::time::timeout(PATIENCE, work).await;
    waited.map_err(|_elapsed| format!("no answer within {PATIENCE:?}"))?
}

/// An answer, and the connection that it comes over.
type Answer = (Response<Incoming>, JoinSet<hyper::Result<()>>);

async fn get(uri: &Uri) -> Result<Answer, String> {
    let failed = |why: &dyn std::fmt::Display| why.to_string();
    let host = uri.host().ok_or("it has no host")?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err("it is neither http nor https".to_owned()),
    };
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    // An address of IPv6 stands in brackets.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((name, port)).await.map_err(|why| failed(&why))?;
    let stream: Box<dyn Way> = if is_tls {
        let server = ServerName::try_from(name.to_owned()).map_err(|why| failed(&why))?;
        Box::new(tls()?.connect(server, stream).await.map_err(|why| failed(&why))?)
    } else {
        Box::new(stream)
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|why| failed(&why))?;
    let mut carried = JoinSet::new();
    carried.spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let request = Request::get(path)
        .header(HOST, authority)
        .header(USER_AGENT, concat!("kprobectl/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|why| failed(&why))?;
    let response = sender.send_request(request).await.map_err(|why| failed(&why))?;
    Ok((response, carried))
}

/// TLS that trusts what this machine trusts.
fn tls() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("this machine has no certificates of authorities: install ca-certificates".to_owned());
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn mebibytes(bytes: u64) -> usize {
    usize::try_from(bytes >> 20).unwrap_or(usize::MAX)
}

/// Writes an answer to a file that appears when it is whole.
async fn save(response: Response<Incoming>, path: &Path) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot write `{}`: {why}", path.display());
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory).await.map_err(|why| failed(&why))?;
    let temporary = directory.join(format!("debuginfo.{}.tmp", std::process::id()));
    let written = async {
        let mut file = fs::File::create(&temporary).await.map_err(|why| failed(&why))?;
        let (mut body, mut count) = (response.into_body(), 0_u64);
        let whole = body.size_hint().exact().map(mebibytes);
        let progress = whole.map(|whole| Progress::on_terminal("downloading debug information, MiB", whole));
        while let Some(frame) =
            patient(async { body.frame().await.transpose().map_err(|why| why.to_string()) }).await?
        {
            let Ok(data) = frame.into_data() else { continue };
            count = count.saturating_add(data.len() as u64);
            if count > BYTES_MAX {
                return Err(format!("it is larger than {} GiB", BYTES_MAX >> 30));
            }
            file.write_all(&data).await.map_err(|why| failed(&why))?;
            if let Some(progress) = &progress {
                progress.set(mebibytes(count));
            }
        }
        file.sync_all().await.map_err(|why| failed(&why))?;
        fs::rename(&temporary, path).await.map_err(|why| failed(&why))
    };
    let written = written.await;
    if written.is_err() {
        fs::remove_file(&temporary).await.ok();
    }
    written
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that answers each request for a path with these bytes, and all others with 404.
    async fn server(answers: &'static [(&'static str, &'static str)]) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                let path = request.split(' ').nth(1).unwrap();
                let answer = answers.iter().find(|(known, _)| *known == path).map(|(_, answer)| *answer);
                let answer = answer.unwrap_or("HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (address, serving)
    }

    fn places(directory: &Path, servers: Vec<String>) -> Places {
        Places { downloads: Some(directory.to_owned()), servers, ..Places::default() }
    }

    fn build(id: &str) -> Build {
        Build { release: "6.1".to_owned(), id: id.to_owned(), module: None }
    }

    const FILE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\x7fELF";

    #[tokio::test]
    async fn a_file_comes_from_the_first_server_that_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let (empty, _without) = server(&[]).await;
        let (full, _serving) = server(&[
            ("/buildid/0a0a/debuginfo", FILE),
            (
                "/buildid/0b0b/debuginfo",
                "HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
            ),
            ("/elsewhere", FILE),
            ("/buildid/0c0c/debuginfo", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"),
        ])
        .await;
        let places = places(directory.path(), vec![empty.clone(), format!("{full}/")]);
        for id in ["0a0a", "0b0b"] {
            let path = debug_information(&build(id), &places).await.unwrap().unwrap();
            assert_eq!(path, directory.path().join(id).join("debuginfo"));
            assert_eq!(std::fs::read(path).unwrap(), b"\x7fELF");
        }
        assert_eq!(debug_information(&build("0e0e"), &places).await.unwrap(), None);
        // An id is a part of a path.
        assert_eq!(debug_information(&build("../x"), &places).await.unwrap(), None);
        let error = debug_information(&build("0c0c"), &places).await.unwrap_err();
        assert!(error.message().contains("answers 500"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_is_cut_off_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (full, _serving) = server(&[(
            "/buildid/0d0d/debuginfo",
            "HTTP/1.1 200 OK\r\nContent-Length: 400\r\nConnection: close\r\n\r\n\x7fELF",
        )])
        .await;
        let places = places(directory.path(), vec![full]);
        assert!(debug_information(&build("0d0d"), &places).await.is_err());
        assert_eq!(std::fs::read_dir(directory.path().join("0d0d")).unwrap().count(), 0);
        // No server answers there.
        let silent =
            Places { servers: vec!["http://127.0.0.1:1".to_owned(), "ftp://a".to_owned()], ..places };
        let error = debug_information(&build("0d0d"), &silent).await.unwrap_err();
        assert!(error.message().contains("neither http nor https"), "{error}");
    }
}
