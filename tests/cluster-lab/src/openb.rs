// SPDX-License-Identifier: MIT OR Apache-2.0
//! The public trace openb (Alibaba, cluster-trace-gpu-v2023): nodes, and pods with their requests.
//! It lies outside the repository.

use std::path::Path;

use anyhow::{Context, Result};

use weft_cluster::{ClusterNode, NodeId, WHOLE_GPU_MILLI, WorkerAsk};

/// Its file of pods.
pub const PODS: &str = "openb_pod_list_default.csv";
/// Its file of nodes with GPUs.
const NODES: &str = "openb_node_list_gpu_node.csv";

/// A pod.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TracePod {
    /// Its request.
    pub ask: WorkerAsk,
    /// Arrival, seconds.
    pub came: f64,
    /// Run time, seconds; 0 if it never ran.
    pub ran: f64,
}

/// The trace.
#[derive(Debug, Clone)]
pub struct OpenbTrace {
    /// Nodes in the order of the file.
    pub nodes: Vec<ClusterNode>,
    /// Pods in the order of the file.
    pub pods: Vec<TracePod>,
}

impl OpenbTrace {
    /// GPUs of all nodes, thousandths.
    pub fn gpu_milli(&self) -> u64 {
        self.nodes.iter().map(ClusterNode::free_milli).sum()
    }
}

/// Rows of a table, reduced to the cells of these columns.
fn rows<'a>(text: &'a str, columns: &[&str]) -> Result<Vec<Vec<&'a str>>> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let at = |name: &&str| {
        head.iter()
            .position(|found| found == name)
            .with_context(|| format!("no column {name}"))
    };
    let at: Vec<usize> = columns.iter().map(at).collect::<Result<_>>()?;
    let row = |(number, line): (usize, &'a str)| {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |at: &usize| {
            cells
                .get(*at)
                .copied()
                .with_context(|| format!("line {}: too short", number + 2))
        };
        at.iter().map(cell).collect::<Result<Vec<&str>>>()
    };
    lines.enumerate().map(row).collect()
}

fn number(cell: &str) -> Result<u32> {
    cell.parse::<u32>().with_context(|| format!("{cell:?} is no number"))
}

fn nodes(text: &str) -> Result<Vec<ClusterNode>> {
    let rows = rows(text, &["cpu_milli", "memory_mib", "gpu"])?;
    let node = |(at, row): (usize, Vec<&str>)| {
        let [cpu_milli, memory_mib, gpus] = [number(row[0])?, number(row[1])?, number(row[2])?];
        Ok(ClusterNode::new(
            NodeId(at as u32),
            cpu_milli,
            memory_mib,
            gpus as usize,
        ))
    };
    rows.into_iter().enumerate().map(node).collect()
}

fn pods(text: &str) -> Result<Vec<TracePod>> {
    let columns = [
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ];
    let pod = |row: Vec<&str>| {
        let gpus = number(row[2])?;
        let gpu_milli = if gpus == 0 {
            0
        } else {
            number(row[3])?.min(WHOLE_GPU_MILLI)
        };
        let ask = WorkerAsk {
            cpu_milli: number(row[0])?,
            memory_mib: number(row[1])?,
            gpus,
            gpu_milli,
        };
        // A pod that was never scheduled or deleted has no time there.
        let time = |cell: &str| cell.parse::<f64>().ok();
        let ran = time(row[5])
            .zip(time(row[6]))
            .map_or(0.0, |(deleted, scheduled)| deleted - scheduled);
        Ok(TracePod {
            ask,
            came: time(row[4]).unwrap_or(0.0),
            ran: ran.max(0.0),
        })
    };
    rows(text, &columns)?.into_iter().map(pod).collect()
}

/// Reads the trace of a folder.
pub fn read(folder: &Path) -> Result<OpenbTrace> {
    let text = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))
    };
    Ok(OpenbTrace {
        nodes: nodes(&text(NODES)?).context(NODES)?,
        pods: pods(&text(PODS)?).context(PODS)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_gpu_and_one_that_never_ran_are_read() {
        let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
                    a,6000,12288,1,460,,LS,Running,10,110,20\n\
                    b,1000,1024,0,0,,BE,Failed,30,40,\n";
        let pods = pods(text).unwrap();
        assert_eq!((pods[0].ask.gpu_milli, pods[0].came, pods[0].ran), (460, 10.0, 90.0));
        assert_eq!((pods[1].ask.gpus, pods[1].ran), (0, 0.0));
        assert!(super::pods("name,cpu_milli\na,1\n").is_err());
    }
}
