//! The in-process broker of `lapse dev` and of tests: librdkafka's own mock behind real sockets.
//!
//! For trying things out: nothing survives the process, a partition keeps 5 MiB, and it has no admin interface, no
//! append time and no transactions. Other processes may connect to [`Broker::address`]. The first member of a consumer
//! group waits 3 s for its partitions; the mock fixes that delay and no property reaches it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use crate::kafka::{Error, Settings, topics};

/// Runs until it is dropped.
pub struct Broker {
    address: String,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

enum Order {
    Down,
    Up,
    Topics(Box<Settings>, Sender<Result<(), Error>>),
}

type Cluster = MockCluster<'static, DefaultProducerContext>;

impl Broker {
    /// Starts one with the topics of these settings; their brokers are ignored.
    pub fn start(settings: &Settings) -> Result<Self, Error> {
        let (orders, received) = mpsc::channel();
        let (started, address) = mpsc::channel();
        // The cluster's handle can't leave the thread that made it.
        let thread = thread::Builder::new()
            .name("kafka-broker".into())
            .spawn(move || run(&started, &received))
            .map_err(|e| failed("start the in-process broker", &e.to_string()))?;
        let address = address
            .recv()
            .map_err(|e| failed("start the in-process broker", &e.to_string()))??;
        let broker = Broker {
            address,
            orders: Some(orders),
            thread: Some(thread),
        };
        broker.create_topics(settings)?;
        Ok(broker)
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes the topics of these settings.
    pub fn create_topics(&self, settings: &Settings) -> Result<(), Error> {
        let (done, result) = mpsc::channel();
        self.order(Order::Topics(Box::new(settings.clone()), done));
        result
            .recv()
            .map_err(|e| failed("create topics", &e.to_string()))?
    }

    /// Cuts all connections and accepts no new ones.
    pub fn down(&self) {
        self.order(Order::Down);
    }

    /// Accepts connections again; nothing was lost meanwhile.
    pub fn up(&self) {
        self.order(Order::Up);
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // If the thread is gone, so is the broker, and whoever asks will notice.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(started: &Sender<Result<String, Error>>, orders: &Receiver<Order>) {
    let cluster = match Cluster::new(1) {
        Ok(cluster) => cluster,
        Err(e) => {
            let _ = started.send(Err(failed("start the in-process broker", &e.to_string())));
            return;
        }
    };
    let _ = started.send(Ok(cluster.bootstrap_servers()));
    while let Ok(order) = orders.recv() {
        let result = match order {
            Order::Down => cluster.broker_down(-1),
            Order::Up => cluster.broker_up(-1),
            Order::Topics(settings, done) => {
                let _ = done.send(topics::create_embedded(&settings, &cluster));
                Ok(())
            }
        };
        if let Err(e) = result {
            tracing::warn!(error = %e, "in-process broker");
        }
    }
}

fn failed(doing: &str, error: &str) -> Error {
    Error::Broker {
        doing: doing.into(),
        error: error.into(),
    }
}
