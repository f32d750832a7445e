// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to the API server as a service account: JSON over HTTPS, one connection a request.
//!
//! The driver makes a request or two a minute, so there is no pool and no watch. Token and
//! certificates are read for each request, since the kubelet renews them. Each request has a bound.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// The longest time that a request may take, s. The kubelet waits 45 s for a claim.
const REQUEST_BOUND: Duration = Duration::from_secs(10);

/// The longest answer that is read, bytes: an object of the API server has 1.5 MiB at most.
const LONGEST_ANSWER_BYTES: usize = 4 << 20;

/// An API server, and the folder with this process's account.
#[derive(Debug, Clone)]
pub struct ApiServer {
    /// `HOST:PORT`, a name or an address; `[ADDRESS]:PORT` with IPv6.
    pub address: String,
    /// The folder with `token` and `ca.crt`.
    pub account: PathBuf,
}

impl ApiServer {
    /// The address from the variables that each container of a pod has. `None` outside of pods.
    pub fn address_of_pod() -> Option<String> {
        let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
        let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?;
        Some(match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        })
    }

    /// The object at this path, or `None` if there is none.
    pub async fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.request(Method::GET, path, None).await? {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            answer => accepted(Method::GET, path, answer).map(Some),
        }
    }

    /// Sends an object. Returns it as the server stored it.
    pub async fn send(&self, method: Method, path: &str, object: &Value) -> Result<Value> {
        let answer = self.request(method.clone(), path, Some(object)).await?;
        accepted(method, path, answer)
    }

    async fn request(&self, method: Method, path: &str, object: Option<&Value>) -> Result<(StatusCode, Value)> {
        let (address, bound) = (&self.address, REQUEST_BOUND.as_secs());
        tokio::time::timeout(REQUEST_BOUND, self.exchange(method, path, object))
            .await
            .unwrap_or_else(|_| bail!("no answer within {bound} s"))
            .with_context(|| format!("API server at {address}"))
    }

    async fn exchange(&self, method: Method, path: &str, object: Option<&Value>) -> Result<(StatusCode, Value)> {
        let file = |name: &str| self.account.join(name);
        let token = std::fs::read_to_string(file("token"))
            .with_context(|| format!("cannot read {}", file("token").display()))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(file("ca.crt"))
            .with_context(|| format!("cannot read {}", file("ca.crt").display()))?
        {
            roots.add(certificate.with_context(|| format!("{} is not PEM", file("ca.crt").display()))?)?;
        }
        let client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (host, _) = self.address.rsplit_once(':').context("write HOST:PORT")?;
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_string())?;
        let stream = TcpStream::connect(&self.address).await?;
        let stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let body = object.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.address)
            .header(USER_AGENT, concat!("weft/", env!("CARGO_PKG_VERSION")))
            .header(AUTHORIZATION, format!("Bearer {}", token.trim()))
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER_BYTES).collect().await;
        connection.abort();
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

/// The object of a successful answer, or an error with the server's reason.
fn accepted(method: Method, path: &str, (status, body): (StatusCode, Value)) -> Result<Value> {
    let reason = body["message"].as_str().unwrap_or("no reason given");
    ensure!(status.is_success(), "{method} {path}: {status}: {reason}");
    ensure!(body.is_object(), "{method} {path}: the answer is not an object");
    Ok(body)
}
