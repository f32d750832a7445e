//! List of nodes: those given by option, those in weft.toml, or Slurm's.
#![forbid(unsafe_code)]

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::config::keys::ConfigSection;
use crate::config::{ConfigSources, VARIABLE};
use crate::node_address::{DEFAULT_PORT, MOST_NODES, NodeAddress, NodePlace, parse_list};

/// Longest time that Slurm may take to list its nodes.
const SLURM_PATIENCE: Duration = Duration::from_secs(5);

/// Interval at which Slurm's command is checked for its end.
const SLURM_STEP: Duration = Duration::from_millis(10);

/// The nodes: those given by option, else those in weft.toml, else Slurm's.
pub(super) fn nodes(given: Option<&[NodeAddress]>) -> Result<Vec<NodeAddress>> {
    if let Some(given) = given {
        return Ok(given.to_vec());
    }
    let loaded = ConfigSources::of_environment(false).load();
    if let Some(list) = loaded.text(ConfigSection::Cluster, "nodes") {
        // The file's reader has checked the list.
        return parse_list(list).map(|nodes| nodes.to_vec()).map_err(anyhow::Error::msg);
    }
    let said = match slurm() {
        Ok(said) => said,
        Err(error) if error.downcast_ref().map(std::io::Error::kind) == Some(std::io::ErrorKind::NotFound) => {
            bail!(
                "no nodes given: set --nodes HOST:PORT,..., or [cluster] nodes in weft.toml ({VARIABLE}); \
                 Slurm was not found either (scontrol)"
            )
        }
        Err(error) => return Err(error.context("asking Slurm for its nodes (scontrol show nodes)")),
    };
    let nodes = of_slurm(&said);
    match nodes.len() {
        0 => bail!("Slurm has no nodes (scontrol show nodes); give --nodes HOST:PORT,..."),
        1..=MOST_NODES => Ok(nodes),
        count => bail!("Slurm has {count} nodes, more than the {MOST_NODES} of one view; give --nodes"),
    }
}

/// Output of `scontrol show nodes`, a line for each node.
fn slurm() -> Result<String> {
    let mut child = Command::new("scontrol")
        .args(["--oneliner", "show", "nodes"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // Read while it runs, because a pipe holds less than a thousand nodes.
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
        read.is_some_and(|read| read.is_ok()).then_some(text)
    });
    let deadline = Instant::now() + SLURM_PATIENCE;
    let ended = loop {
        match child.try_wait().context("waiting for scontrol")? {
            Some(ended) => break ended,
            None if Instant::now() < deadline => std::thread::sleep(SLURM_STEP),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("no answer within {SLURM_PATIENCE:?}");
            }
        }
    };
    match reader.join().ok().flatten() {
        Some(text) if ended.success() => Ok(text),
        _ => bail!("scontrol ended with {ended}"),
    }
}

/// Slurm's nodes with GPUs or shards, or all nodes if no node lists any.
fn of_slurm(said: &str) -> Vec<NodeAddress> {
    let field = |line: &str, name: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|word| word.strip_prefix(name).map(str::to_string))
    };
    let nodes: Vec<(bool, NodeAddress)> = said
        .lines()
        .filter_map(|line| {
            let name = field(line, "NodeName=")?;
            let host = field(line, "NodeAddr=").unwrap_or_else(|| name.clone());
            let gres = field(line, "Gres=").unwrap_or_default();
            let place = NodePlace::Tcp(host, DEFAULT_PORT);
            Some((
                ["gpu", "shard"].iter().any(|kind| gres.contains(kind)),
                NodeAddress { name, place },
            ))
        })
        .collect();
    let any = nodes.iter().any(|(has_gpus, _)| *has_gpus);
    let kept = nodes.into_iter().filter(|(has_gpus, _)| *has_gpus || !any);
    kept.map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_names_its_nodes_with_gpus() {
        let said = "NodeName=n1 Arch=x86_64 Gres=gpu:2,shard:160 NodeAddr=10.0.0.1 NodeHostName=n1 State=IDLE\n\
                    NodeName=login Arch=x86_64 Gres=(null) NodeAddr=10.0.0.9 State=IDLE\n\
                    NodeName=n2 Gres=shard:80(S:0) State=DOWN\nnonsense\n";
        let shown = |said: &str| {
            let nodes = of_slurm(said).into_iter();
            nodes
                .map(|node| format!("{} {}", node.name, node.place))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(said), ["n1 10.0.0.1:9431", "n2 n2:9431"]);
        assert_eq!(
            shown("NodeName=a NodeAddr=b Gres=(null)\nNodeName=c NodeAddr=d\n"),
            ["a b:9431", "c d:9431"]
        );
        assert!(of_slurm("").is_empty());
    }
}
