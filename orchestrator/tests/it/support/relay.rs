//! A way to a server that can fall silent: connections stay open, and nothing comes through any more.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// On threads of its own, so that a test may stop the clock of its runtime.
pub struct Relay {
    /// Where it listens.
    pub port: u16,
    silence: Arc<Silence>,
}

#[derive(Default)]
struct Silence {
    is_there: AtomicBool,
    /// It begins behind this.
    behind: Mutex<Option<&'static str>>,
}

impl Relay {
    /// In front of the server there.
    pub fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let silence = Arc::<Silence>::default();
        let shared = silence.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let to = (client.try_clone(), server.try_clone());
                let (Ok(from_client), Ok(from_server)) = to else {
                    continue;
                };
                let (one, other) = (shared.clone(), shared.clone());
                thread::spawn(move || copy(from_client, server, &one));
                thread::spawn(move || copy(from_server, client, &other));
            }
        });
        Relay { port, silence }
    }

    /// Once this has come through nothing does any more, and nobody is told.
    pub fn fall_silent_behind(&self, text: &'static str) {
        *self.silence.behind.lock().expect("no panic") = Some(text);
    }

    /// Whether it has.
    pub fn is_silent(&self) -> bool {
        self.silence.is_there.load(Ordering::Relaxed)
    }
}

impl Silence {
    fn is_behind(&self, bytes: &[u8]) -> bool {
        let text = *self.behind.lock().expect("no panic");
        text.is_some_and(|text| String::from_utf8_lossy(bytes).contains(text))
    }
}

/// What brings the silence goes through, its answer does not.
fn copy(mut from: TcpStream, mut to: TcpStream, silence: &Silence) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(read) = from.read(&mut bytes) {
        if silence.is_behind(&bytes[..read]) {
            silence.is_there.store(true, Ordering::Relaxed);
        } else if silence.is_there.load(Ordering::Relaxed) {
            continue;
        }
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// What came of this when its server fell silent in the middle, by a clock that is stopped then; none after five minutes.
pub async fn in_silence<T>(relay: &Relay, work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    while !relay.is_silent() {
        let early = tokio::time::timeout(Duration::from_millis(20), work.as_mut()).await;
        assert!(early.is_err(), "it was answered before");
    }
    tokio::time::pause();
    let limit = Duration::from_secs(300);
    tokio::time::timeout(limit, work).await.ok()
}
