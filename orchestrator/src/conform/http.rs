//! The wire of a participant over HTTP: requests as they should not be.
//!
//! Relies on the client of [`crate::participants::http`], and on a plain socket where a connection is cut. Never: sends what a
//! case did not ask for.

use std::time::Duration;

use async_trait::async_trait;
use lapse_participants::kit::CallError;
use reqwest::Url;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Cut, End, Sent, Taken, Wire};
use crate::config::Secret;
use crate::participants::http::{Address, Endpoint, Request, problem, whole};

const PATH: &str = "/v1/commands";
/// So long may an answer to garbage take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const ANSWER_MAX: usize = 16 * 1024 * 1024;

/// Requests to one base URL.
pub struct HttpWire {
    endpoint: Endpoint,
    url: Url,
    token: Secret,
}

impl HttpWire {
    /// # Errors
    /// If the address is none.
    pub fn new(address: &Address) -> anyhow::Result<HttpWire> {
        let base = address.url.trim_end_matches('/');
        Ok(HttpWire {
            endpoint: Endpoint::new(address)?,
            url: Url::parse(&format!("{base}{PATH}"))?,
            token: address.token.clone(),
        })
    }

    fn raw(&self, body: &str) -> Vec<u8> {
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port_or_known_default().unwrap_or(80);
        let authorization = if self.token.is_empty() {
            String::new()
        } else {
            format!("Authorization: Bearer {}\r\n", self.token.reveal())
        };
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n{authorization}Content-Length: {}\r\n\r\n",
            self.url.path(),
            body.len()
        );
        [head.as_bytes(), body.as_bytes()].concat()
    }

    async fn send_and_cut(&self, body: &str, cut: Cut) -> std::io::Result<()> {
        let host = self.url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = self.url.port_or_known_default().unwrap_or(80);
        let mut stream = TcpStream::connect((host, port)).await?;
        let raw = self.raw(body);
        let sent = match cut.sent {
            Sent::Half => raw.len() - body.len() / 2,
            Sent::Whole => raw.len(),
        };
        stream.write_all(&raw[..sent]).await?;
        tokio::time::sleep(cut.after).await;
        match cut.end {
            End::Closed => stream.shutdown().await,
            End::Reset => stream.set_zero_linger(),
        }
    }
}

fn array(entries: &[String]) -> String {
    format!("[{}]", entries.join(","))
}

#[async_trait]
impl Wire for HttpWire {
    async fn bytes(&self, bytes: Vec<u8>) -> Result<Taken, CallError> {
        let request = Request {
            path: PATH,
            headers: Vec::new(),
            body: bytes,
            timeout: ANSWERS_WITHIN,
        };
        let response = self.endpoint.send(request).await?;
        let status = response.status();
        if status == reqwest::StatusCode::OK {
            return Ok(Taken::Answered(whole(response, ANSWER_MAX).await?));
        }
        Ok(Taken::Refused(status.as_u16(), problem(response).await))
    }

    async fn batch(&self, entries: &[String]) -> Result<Taken, CallError> {
        self.bytes(array(entries).into_bytes()).await
    }

    async fn cut(&self, entries: &[String], cut: Cut) -> Option<std::io::Result<()>> {
        // Under TLS a plain socket has nothing to say.
        if self.url.scheme() != "http" {
            return None;
        }
        Some(self.send_and_cut(&array(entries), cut).await)
    }
}
