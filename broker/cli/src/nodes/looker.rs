//! One thread per node, and the answers of a look at all nodes.
//!
//! A look does not wait for a thread that its node delays, for example by a name that does not
//! resolve: the node counts as silent until it has answered.
#![forbid(unsafe_code)]

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::fetch::fetch;
use super::series::{self, NodeReport};
use crate::node_address::NodeAddress;

/// Time beyond a node's bound after which the node counts as silent.
const SLACK: Duration = Duration::from_millis(250);

/// Stack of a node's thread, bytes: the C library resolves names on it.
const STACK_BYTES: usize = 512 << 10;

/// Report of a node, or the reason for its silence.
pub type NodeAnswer = Result<NodeReport, String>;

struct NodeThread {
    address: NodeAddress,
    asks: SyncSender<()>,
    /// Whether it was asked and has not answered yet.
    busy: bool,
}

/// Asks all nodes at the same time. Its threads end with it.
pub struct Looker {
    nodes: Vec<NodeThread>,
    answers: Receiver<(usize, NodeAnswer)>,
    patience: Duration,
}

impl Looker {
    /// Starts a thread for each node.
    pub fn start(addresses: Vec<NodeAddress>, patience: Duration) -> Result<Looker> {
        let (tells, answers) = channel();
        let mut nodes = Vec::new();
        for (number, address) in addresses.into_iter().enumerate() {
            let (asks, asked) = sync_channel(1);
            let (tells, place) = (Sender::clone(&tells), address.place.clone());
            let thread = std::thread::Builder::new()
                .name("weft-node".into())
                .stack_size(STACK_BYTES);
            let work = move || {
                while asked.recv().is_ok() {
                    let answer = fetch(&place, patience).and_then(|text| series::report(&text));
                    if tells.send((number, answer)).is_err() {
                        return;
                    }
                }
            };
            thread.spawn(work).context("cannot start a thread for each node")?;
            let busy = false;
            nodes.push(NodeThread { address, asks, busy });
        }
        Ok(Looker {
            nodes,
            answers,
            patience,
        })
    }

    /// The nodes' names and addresses, in their order.
    pub fn names(&self) -> Vec<(String, String)> {
        let addresses = self.nodes.iter().map(|node| &node.address);
        addresses
            .map(|address| (address.name.clone(), address.place.to_string()))
            .collect()
    }

    /// The nodes' answers, in their order. Takes at most the nodes' bound and [`SLACK`].
    pub fn look(&mut self) -> Vec<NodeAnswer> {
        let deadline = Instant::now() + self.patience + SLACK;
        let mut answers: Vec<Option<NodeAnswer>> = vec![None; self.nodes.len()];
        for node in &mut self.nodes {
            // A node that is still busy answers late, and this look takes that answer.
            node.busy = node.busy || node.asks.try_send(()).is_ok();
        }
        while answers.iter().any(Option::is_none) {
            match self
                .answers
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok((number, answer)) => {
                    if let (Some(node), Some(place)) = (self.nodes.get_mut(number), answers.get_mut(number)) {
                        node.busy = false;
                        *place = Some(answer);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let silent = || Err(format!("no answer within {:?}", self.patience));
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(silent))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::super::series::tests::text_of;
    use super::*;
    use crate::node_address::NodePlace;

    /// A node whose broker answers every request with this text.
    fn node(text: String) -> NodeAddress {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("bound").port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("came");
                // Closing with an unread request would lose the answer.
                let _ = stream.read(&mut [0; 4096]);
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n\r\n{text}");
            }
        });
        let place = NodePlace::Tcp("127.0.0.1".to_string(), port);
        let name = format!("n{port}");
        NodeAddress { name, place }
    }

    #[test]
    fn a_silent_node_keeps_no_other_waiting() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = silent.local_addr().expect("bound").port();
        let place = NodePlace::Tcp("127.0.0.1".to_string(), port);
        let name = "silent".to_string();
        let nodes = vec![
            node(text_of(1.0, &[(1, "alone", 1.0, 0.0)])),
            NodeAddress { name, place },
            node("nonsense 1\n".to_string()),
        ];
        let mut looker = Looker::start(nodes, Duration::from_millis(300)).expect("started");
        for _ in 0..2 {
            let answers = looker.look();
            let [Ok(good), Err(silent), Err(stranger)] = &answers[..] else {
                panic!("{answers:?}")
            };
            assert_eq!(good.jobs.len(), 1);
            assert_eq!(silent, "no answer within 300ms");
            assert!(stranger.contains("not from a weft broker"), "{stranger}");
        }
    }
}
