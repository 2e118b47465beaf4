//! A participant behind TLS is believed only with a certificate of its name from an authority that is believed; real
//! certificates, real sockets.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use lapse::participants::http::{Address, HttpParticipant, Style};
use lapse_participants::kit::{CallError, Participant, Reply};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};

use super::client::command;
use super::served::response;

/// A server on localhost that answers no command of a batch, and the PEM of its authority.
fn server(name: &str) -> (String, Vec<u8>) {
    lapse::tls::install();
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, config) = (stream.unwrap(), config.clone());
            let mut tls = ServerConnection::new(config).unwrap();
            let mut tls = Stream::new(&mut tls, &mut stream);
            // Whoever does not believe the certificate says nothing.
            let mut request = [0; 16 * 1024];
            if tls.read(&mut request).is_ok() {
                let _ = tls.write_all(&response("200 OK", "", "[]"));
            }
        }
    });
    (format!("https://localhost:{port}"), cert.pem().into_bytes())
}

async fn call(url: &str, authorities: &[u8]) -> Result<Vec<Reply>, CallError> {
    let address = Address {
        url: url.to_owned(),
        authorities: authorities.to_vec(),
        ..Address::default()
    };
    let participant = HttpParticipant::new("orders", &address, Style::Batch, 1).unwrap();
    participant.call("CancelOrder", &[command("A-1")]).await
}

#[tokio::test]
async fn only_a_certificate_of_its_name_from_a_known_authority_is_believed() {
    let (right, authority) = server("localhost");
    let (of_another, other_authority) = server("shop.example");

    assert_eq!(call(&right, &authority).await, Ok(Vec::new()));

    for (url, authorities) in [
        (&right, &[][..]),
        (&right, &other_authority),
        (&of_another, &other_authority),
    ] {
        let refused = call(url, authorities).await;
        assert!(
            matches!(refused, Err(CallError::Unreachable(_))),
            "{refused:?}"
        );
    }
}

#[test]
fn a_file_that_holds_no_authority_is_refused_at_once() {
    lapse::tls::install();
    let address = Address {
        url: "https://localhost".to_owned(),
        authorities: b"no PEM".to_vec(),
        ..Address::default()
    };
    assert!(HttpParticipant::new("orders", &address, Style::Batch, 1).is_err());
}
