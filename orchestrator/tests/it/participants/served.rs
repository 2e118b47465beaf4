//! Servers for one test: any participant behind the shop's HTTP, and sockets that answer bytes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use lapse::conform::http::HttpWire;
use lapse::conform::{Plan, Site, Subject, Wire};
use lapse::participants::http::{Address, HttpParticipant, Style};
use lapse::shop_serve::http::{Served, router};
use lapse_participants::kit::{OrderOwner, Participant};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that ends with its test's runtime.
pub async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

/// The shop's HTTP around any participant.
pub fn http<P: Participant + OrderOwner + 'static>(participant: Arc<P>) -> Router {
    router(Served {
        participant: participant.clone(),
        owner: participant,
    })
}

/// Base URL of a server.
pub fn at(server: SocketAddr) -> Address {
    lapse::tls::install();
    Address {
        url: format!("http://{server}"),
        ..Address::default()
    }
}

/// Commands and words of the reference shop's orders.
pub fn plan(action: &str, compensation: &str) -> Plan {
    Plan {
        action: action.to_owned(),
        compensation: Some(compensation.to_owned()),
        input: Value::Null,
        tenant: "default".to_owned(),
        refusals: true,
    }
}

/// In this process.
pub fn direct(participant: Arc<dyn Participant>, site: Arc<dyn Site>, plan: Plan) -> Subject {
    Subject {
        participant,
        wire: None,
        site,
        plan,
    }
}

/// Behind HTTP.
pub fn behind(server: SocketAddr, site: Arc<dyn Site>, plan: Plan) -> Subject {
    let address = at(server);
    let participant = HttpParticipant::new("conform", &address, Style::Batch, 8).unwrap();
    let wire: Arc<dyn Wire> = Arc::new(HttpWire::new(&address).unwrap());
    Subject {
        participant: Arc::new(participant),
        wire: Some(wire),
        site,
        plan,
    }
}

/// What a socket does with one request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends these bytes and closes.
    Say(Vec<u8>),
    /// Sends these bytes, then resets the connection.
    SayAndReset(Vec<u8>),
    /// Sends these bytes, and keeps the connection in silence.
    SayAndHang(Vec<u8>),
    /// Sends a 200 whose body does not end.
    SayForEver,
}

/// A socket that does the same with every request.
pub async fn socket(act: Act) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(play(stream, act.clone()));
        }
    });
    address
}

async fn play(mut stream: TcpStream, act: Act) -> std::io::Result<()> {
    read_request(&mut stream).await?;
    match act {
        Act::Say(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await
        }
        Act::SayAndReset(bytes) => {
            stream.write_all(&bytes).await?;
            stream.set_zero_linger()
        }
        Act::SayAndHang(bytes) => {
            stream.write_all(&bytes).await?;
            std::future::pending().await
        }
        Act::SayForEver => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await?;
            loop {
                stream.write_all(b"1000\r\n").await?;
                stream.write_all(&[b' '; 0x1000]).await?;
                stream.write_all(b"\r\n").await?;
            }
        }
    }
}

/// Head and body.
async fn read_request(stream: &mut TcpStream) -> std::io::Result<()> {
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let n = stream.read(&mut buffer).await?;
        read.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&read).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if n == 0 {
                return Ok(());
            }
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.trim().parse::<usize>().ok())
            .unwrap_or(0);
        if body.len() >= length || n == 0 {
            return Ok(());
        }
    }
}

/// A whole answer.
pub fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
