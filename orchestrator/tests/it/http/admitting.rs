//! Who may come in: on every route, with every kind of token; and how much, how fast.

use std::time::Duration;

use lapse::config::{Access, Token};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{get, post, problem, problem_of, url};
use crate::support::live::{Live, Running};

/// Time-outs are ten seconds; machines that run all tests at once are slow.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(25);

/// A Lapse that knows two full tokens and one that may only look, with their secrets.
async fn guarded() -> (Live, [String; 3]) {
    let mut live = Live::in_process().await;
    let mut add = |name: &str, access| {
        let (secret, token) = Token::generate(access).expect("there is randomness");
        live.config.http.tokens.insert(name.to_owned(), token);
        secret
    };
    let secrets = [
        add("ann", Access::Full),
        add("bob", Access::Full),
        add("eye", Access::ReadOnly),
    ];
    (live, secrets)
}

/// A request to a route, with an empty JSON body where it is a POST.
fn request(live: &Live, method: &str, path: &str) -> RequestBuilder {
    let method: Method = method.parse().expect("a method");
    let path = path.replace("{id}", "1");
    let request = reqwest::Client::new().request(method.clone(), url(live, &path));
    if method == Method::POST {
        return request.json(&json!({}));
    }
    request
}

async fn sent(request: RequestBuilder) -> Response {
    request.send().await.expect("it answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_but_the_probes_needs_a_token_that_is_known() {
    let (live, [ann, bob, eye]) = guarded().await;
    let service = Running::at_once(&live.config).await;
    let routes = lapse::http::paths();
    assert!(routes.len() >= 9, "{routes:?}");
    let nowhere = [
        ("GET", "/"),
        ("GET", "/v1/nonesuch"),
        ("DELETE", "/metrics"),
        ("POST", "/livez/"),
    ];
    let mut refusals = std::collections::BTreeSet::new();

    for (method, path) in routes.iter().chain(&nowhere) {
        let what = format!("{method} {path}");
        let is_open = ["/livez", "/readyz"].contains(path);
        let wrong = [
            None,
            Some("Bearer wrong".to_owned()),
            Some("Bearer ".to_owned()),
            Some(format!("Bearer {ann}x")),
            Some(format!("Basic {ann}")),
            Some(ann.clone()),
            // What stands in the settings opens nothing.
            Some(format!("Bearer {}", live.config.http.tokens["ann"])),
        ];
        for authorization in wrong {
            let mut request = request(&live, method, path);
            if let Some(value) = &authorization {
                request = request.header("authorization", value);
            }
            let answer = sent(request).await;
            if is_open {
                assert_ne!(answer.status(), StatusCode::UNAUTHORIZED, "{what}");
                continue;
            }
            let asks = answer.headers().get("www-authenticate").cloned();
            assert_eq!(
                asks.as_ref().and_then(|value| value.to_str().ok()),
                Some("Bearer realm=\"lapse\""),
                "{what}"
            );
            let body = problem_of(answer, StatusCode::UNAUTHORIZED, &what).await;
            refusals.insert(body.to_string());
        }
        for secret in [&ann, &bob] {
            let answer = sent(request(&live, method, path).bearer_auth(secret)).await;
            let status = answer.status();
            assert!(![401, 403].contains(&status.as_u16()), "{what}: {status}");
        }
        let looked = sent(request(&live, method, path).bearer_auth(&eye))
            .await
            .status();
        let expected = *method != "GET" && !is_open;
        assert_eq!(
            looked == StatusCode::FORBIDDEN,
            expected,
            "{what}: {looked}"
        );
        assert_ne!(looked, StatusCode::UNAUTHORIZED, "{what}");
    }
    assert_eq!(refusals.len(), 1, "always the same body: {refusals:?}");
    let lower_case =
        request(&live, "GET", "/metrics").header("authorization", format!("bearer {eye}"));
    assert_eq!(sent(lower_case).await.status(), StatusCode::OK);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_or_no_json_is_refused_by_its_status() {
    let live = Live::in_process().await;
    let service = Running::at_once(&live.config).await;
    let posts = lapse::http::paths()
        .into_iter()
        .filter(|(method, _)| *method == "POST");

    for (_, path) in posts {
        let path = path.replace("{id}", "1");
        let large = json!({ "reason": "x".repeat(1024 * 1024) });
        problem_of(
            post(&live, &path, &large).await,
            StatusCode::PAYLOAD_TOO_LARGE,
            &path,
        )
        .await;
        let form = reqwest::Client::new()
            .post(url(&live, &path))
            .header("content-type", "application/x-www-form-urlencoded")
            .body("reason=because");
        problem_of(sent(form).await, StatusCode::UNSUPPORTED_MEDIA_TYPE, &path).await;
        let untyped = reqwest::Client::new().post(url(&live, &path)).body("{}");
        problem_of(
            sent(untyped).await,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            &path,
        )
        .await;
    }
    let with_charset = reqwest::Client::new()
        .post(url(&live, "/v1/sagas/nonesuch"))
        .header("content-type", "Application/JSON; charset=utf-8")
        .body(json!({ "order_id": "o1", "cause": "buyer" }).to_string());
    problem(sent(with_charset).await, StatusCode::NOT_FOUND).await;
    assert_eq!(get(&live, "/livez").await.status(), StatusCode::OK);
    service.stop().await;
}

/// Three clients that never get to the end: in the head, in a body of known length, in one of chunks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_get_to_the_end_is_given_up() {
    let live = Live::in_process().await;
    let service = Running::at_once(&live.config).await;
    let head = "POST /v1/sagas/x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

    let given_up = futures::future::join_all([
        answer_to(&live, "GET /livez HTTP/1.1\r\nhost: lo".to_owned()),
        answer_to(&live, format!("{head}content-length: 100\r\n\r\n{{")),
        answer_to(
            &live,
            format!("{head}transfer-encoding: chunked\r\n\r\n1\r\n{{\r\n"),
        ),
        answer_to(&live, String::new()),
        answer_to(&live, "P".to_owned()),
    ]);
    let answers = tokio::time::timeout(GIVEN_UP_WITHIN, given_up)
        .await
        .expect("all are given up");

    assert!(!answers[0].contains("200"), "{}", answers[0]);
    assert!(answers[1].starts_with("HTTP/1.1 408 "), "{}", answers[1]);
    assert!(answers[2].starts_with("HTTP/1.1 408 "), "{}", answers[2]);
    assert_eq!(get(&live, "/livez").await.status(), StatusCode::OK);
    service.stop().await;
}

/// Everything that comes back until the other side closes.
async fn answer_to(live: &Live, beginning: String) -> String {
    let mut stream = TcpStream::connect(live.config.http.listen)
        .await
        .expect("it listens");
    stream
        .write_all(beginning.as_bytes())
        .await
        .expect("it takes the beginning");
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tokens_only_what_is_for_this_machine_comes_in() {
    let live = Live::in_process().await;
    let service = Running::at_once(&live.config).await;
    let asked_as = async |host: &str| {
        let request = reqwest::Client::new().get(url(&live, "/v1/dead-letters"));
        let answer = request.header("host", host).send().await;
        answer.expect("an answer").status()
    };

    for host in ["localhost", "LOCALHOST:8100", "127.0.0.1:1", "[::1]:8100"] {
        assert_eq!(asked_as(host).await, StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8100",
        "10.0.0.1",
        "localhost.evil.example",
    ] {
        let status = asked_as(host).await;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    service.stop().await;
}
