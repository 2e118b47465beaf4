//! A receiver of webhooks on a real socket: answers by a script, keeps what came, verifies as a receiver should.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::Utc;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::until;

/// How old a post may be, seconds.
const TOLERANCE_S: i64 = 300;

/// What the receiver does with a post.
#[derive(Clone)]
pub enum Does {
    /// Takes it.
    Take,
    /// Answers with this status.
    Answer(u16),
    /// Answers with this status and a header.
    With(u16, &'static str, String),
    /// Does not answer.
    Hang,
    /// Takes it, with a body that has no end.
    TakeWithoutEnd,
}

/// What came.
#[derive(Clone, Debug)]
pub struct Post {
    pub headers: HeaderMap,
    pub body: String,
}

#[derive(Default)]
struct Shared {
    script: Mutex<VecDeque<Does>>,
    always: Mutex<Option<Does>>,
    posts: Mutex<Vec<Post>>,
}

/// Gone when dropped.
pub struct Receiver {
    shared: Arc<Shared>,
    pub address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl Receiver {
    /// Does these one after the other, then takes everything.
    pub async fn start(script: impl IntoIterator<Item = Does>) -> Receiver {
        Receiver::start_at(([127, 0, 0, 1], 0).into(), script).await
    }

    pub async fn start_at(address: SocketAddr, script: impl IntoIterator<Item = Does>) -> Receiver {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let shared = Arc::new(Shared::default());
        shared.script.lock().unwrap().extend(script);
        let address = listener.local_addr().expect("it is bound");
        let router = Router::new()
            .fallback(receive)
            .with_state(Arc::clone(&shared));
        let serving = tokio::spawn(async move {
            axum::serve(listener, router)
                .await
                .expect("the receiver serves");
        });
        Receiver {
            shared,
            address,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Does this for ever.
    pub async fn always(does: Does) -> Receiver {
        let receiver = Receiver::start([]).await;
        *receiver.shared.always.lock().unwrap() = Some(does);
        receiver
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks/s3cret-path", self.address)
    }

    pub fn posts(&self) -> Vec<Post> {
        self.shared.posts.lock().unwrap().clone()
    }

    /// The posts once there are so many.
    pub async fn got(&self, count: usize) -> Vec<Post> {
        until(
            &format!("{count} posts have come"),
            Duration::from_secs(20),
            || async {
                let posts = self.posts();
                (posts.len() >= count).then_some(posts)
            },
        )
        .await
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let body = String::from_utf8(body.to_vec()).expect("JSON is text");
    shared.posts.lock().unwrap().push(Post { headers, body });
    let always = shared.always.lock().unwrap().clone();
    let next = always.or_else(|| shared.script.lock().unwrap().pop_front());
    match next.unwrap_or(Does::Take) {
        Does::Take => StatusCode::NO_CONTENT.into_response(),
        Does::Answer(status) => (
            StatusCode::from_u16(status).expect("a status"),
            "not now,\n\u{7}please",
        )
            .into_response(),
        Does::With(status, header, value) => (
            StatusCode::from_u16(status).expect("a status"),
            [(header, value)],
        )
            .into_response(),
        Does::Hang => std::future::pending().await,
        Does::TakeWithoutEnd => {
            let endless = futures::stream::repeat_with(|| {
                Ok::<_, std::convert::Infallible>(Bytes::from_static(&[b'x'; 4_096]))
            });
            Body::from_stream(endless).into_response()
        }
    }
}

impl Post {
    pub fn id(&self) -> String {
        self.header("webhook-id")
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("the body is JSON")
    }

    pub fn header(&self, name: &str) -> String {
        let value = self.headers.get(name).expect(name);
        value.to_str().expect("text").to_owned()
    }

    /// As a receiver does it whose key is this one.
    pub fn verify(&self, secret: &str) -> Result<(), &'static str> {
        let timestamp = self.header("webhook-timestamp");
        let sent: i64 = timestamp.parse().map_err(|_| "no timestamp")?;
        if (Utc::now().timestamp() - sent).abs() > TOLERANCE_S {
            return Err("too old");
        }
        let key = secret.strip_prefix("whsec_").expect("a key");
        let key = STANDARD.decode(key).expect("a key");
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
        mac.update(format!("{}.{timestamp}.{}", self.id(), self.body).as_bytes());
        let expected = STANDARD.encode(mac.finalize().into_bytes());
        self.header("webhook-signature")
            .split(' ')
            .any(|signature| signature == format!("v1,{expected}"))
            .then_some(())
            .ok_or("wrong signature")
    }
}
