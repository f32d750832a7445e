// SPDX-License-Identifier: MIT OR Apache-2.0
//! GPU time of jobs, as measured by the nodes' brokers.
//!
//! A command of the administrator fetches the answer of `weft status --json` from a node, for
//! example `ssh {node} weft status --json`. Jobs are identified by the gang that Slurm's plugin
//! gives them, `slurm-JOB`, and by the user that the kernel reports: no user can claim another
//! user's job. A node that does not answer is counted and reported; its jobs keep their last value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::commands::Hands;
use weft_cluster::Ns;

/// Number of nodes that are asked at the same time.
const AT_A_TIME: usize = 16;

/// Largest GPU time reported for each job, node by node.
#[derive(Debug, Default)]
pub struct Service {
    worked: BTreeMap<(u64, u32, String), Ns>,
    /// Number of nodes that answered last time, and of nodes that were asked.
    pub answered: usize,
    pub asked: usize,
}

impl Service {
    /// Asks these nodes.
    pub fn ask(&mut self, hands: &dyn Hands, command: &str, nodes: &BTreeSet<String>) {
        (self.answered, self.asked) = (0, nodes.len());
        let nodes: Vec<&String> = nodes.iter().collect();
        for some in nodes.chunks(AT_A_TIME) {
            let answers: Vec<(&String, String)> = std::thread::scope(|scope| {
                let asked: Vec<_> = some
                    .iter()
                    .map(|node| (*node, scope.spawn(|| hands.run(&words(command, node)))))
                    .collect();
                let heard = asked.into_iter().filter_map(|(node, answer)| {
                    let done = answer.join().ok().filter(|done| done.trouble.is_none())?;
                    Some((node, done.stdout))
                });
                heard.collect()
            });
            for (node, answer) in answers {
                self.hear(node, &answer);
            }
        }
    }

    /// Records a node's answer.
    fn hear(&mut self, node: &str, answer: &str) {
        let Ok(status) = serde_json::from_str::<Value>(answer) else {
            return;
        };
        let rows = |name: &str| status[name].as_array().cloned().unwrap_or_default();
        if !status["clients"].is_array() {
            return;
        }
        self.answered += 1;
        let ended = rows("ended").into_iter().map(|row| row["last"].clone());
        let mut sums: BTreeMap<(u64, u32), Ns> = BTreeMap::new();
        for row in rows("clients").into_iter().chain(ended) {
            let gang = row["gang"].as_str().unwrap_or_default();
            let job = gang.rsplit_once("slurm-").and_then(|(_, job)| job.parse().ok());
            let uid = row["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok());
            if let (Some(job), Some(uid), Some(worked)) = (job, uid, row["outcome"]["gpu_ns"].as_u64()) {
                *sums.entry((job, uid)).or_default() += worked;
            }
        }
        for ((job, uid), worked) in sums {
            // A broker forgets ended clients; the value recorded here stays.
            let most = self.worked.entry((job, uid, node.to_string())).or_default();
            *most = worked.max(*most);
        }
    }

    /// GPU time by job and user, summed over the nodes, ns.
    pub fn worked(&self) -> BTreeMap<(u64, u32), Ns> {
        let mut sums = BTreeMap::new();
        for ((job, uid, _), worked) in &self.worked {
            *sums.entry((*job, *uid)).or_default() += worked;
        }
        sums
    }

    /// Forgets all other jobs.
    pub fn keep(&mut self, jobs: &BTreeSet<u64>) {
        self.worked.retain(|(job, ..), _| jobs.contains(job));
    }
}

/// A shell's words, with the node in place of `{node}`. A node's name is the administrator's.
fn words(command: &str, node: &str) -> Vec<String> {
    ["sh", "-c", &command.replace("{node}", node)]
        .map(str::to_string)
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_a_job_are_summed_over_processes_and_nodes() {
        let mut service = Service::default();
        let client = |gang: &str, ns: u64| format!(r#"{{"uid": 3, "gang": "{gang}", "outcome": {{"gpu_ns": {ns}}}}}"#);
        let two = format!("{}, {}", client("3:slurm-7", 5), client("3:slurm-7", 6));
        let ended = client("slurm-7", 100);
        service.hear(
            "n1",
            &format!(r#"{{"clients": [{two}], "ended": [{{"last": {ended}}}]}}"#),
        );
        service.hear(
            "n2",
            &format!(r#"{{"clients": [{}, {}]}}"#, client("slurm-7", 1), client("x", 9)),
        );
        service.hear("n3", "no broker");
        service.hear("n3", "{}");
        assert_eq!(
            (service.worked(), service.answered),
            (BTreeMap::from([((7, 3), 112)]), 2)
        );
        // The node forgets ended clients; the service does not.
        service.hear("n1", &format!(r#"{{"clients": [{two}]}}"#));
        assert_eq!(service.worked()[&(7, 3)], 112);
        service.keep(&BTreeSet::new());
        assert!(service.worked().is_empty());
    }

    #[test]
    fn the_command_names_the_node() {
        assert_eq!(
            words("ssh {node} weft status --json", "n1")[2],
            "ssh n1 weft status --json"
        );
    }
}
