// SPDX-License-Identifier: MIT OR Apache-2.0
//! A periodic check that the node's broker answers, by `weft status --json`.
//!
//! Each query is a process with a time limit, so a stopped or stuck broker counts as not answering.
//! A connection is not enough: the kernel accepts it even if the broker is stuck.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;

/// Number of consecutive unanswered queries after which the broker counts as gone. A busy node may
/// miss one.
const PATIENCE_QUESTIONS: u32 = 2;

/// How the plugin queries the broker.
#[derive(Debug, Clone)]
pub struct BrokerProbe {
    /// The `weft` command.
    pub weft: PathBuf,
    /// The broker's socket.
    pub socket: PathBuf,
    /// Time between queries.
    pub period: Duration,
    /// The longest time that an answer may take.
    pub bound: Duration,
}

impl BrokerProbe {
    /// Whether the broker answers now.
    pub async fn answers(&self) -> bool {
        let mut command = Command::new(&self.weft);
        command
            .args(["status", "--json"])
            .env("WEFT_SOCKET", &self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        match tokio::time::timeout(self.bound, command.status()).await {
            Ok(Ok(code)) => code.success(),
            Ok(Err(error)) => {
                log::error!("cannot run {}: {error}", self.weft.display());
                false
            }
            Err(_) => false,
        }
    }

    /// Queries the broker and sends whether it answers, until no receiver is left.
    pub async fn watch(self, told: watch::Sender<bool>) {
        let mut missed = 0;
        while !told.is_closed() {
            missed = if self.answers().await { 0 } else { missed + 1 };
            let alive = match missed {
                0 => true,
                // Too few misses to decide: the last value stays.
                few if few < PATIENCE_QUESTIONS => *told.borrow(),
                _ => false,
            };
            told.send_if_modified(|was| {
                let changed = *was != alive;
                if changed && alive {
                    log::info!("the broker answers at {}", self.socket.display());
                } else if changed {
                    log::warn!("no broker answers at {}: no share is healthy", self.socket.display());
                }
                *was = alive;
                changed
            });
            tokio::time::sleep(self.period).await;
        }
    }
}
