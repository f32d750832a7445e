// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernels and labels: each text once, by number.
#![forbid(unsafe_code)]

use std::collections::HashMap;

/// The names of all clients, each kept once.
#[derive(Debug)]
pub(super) struct Names {
    by_name: HashMap<Box<str>, u32>,
    /// The names, and each as JSON text.
    names: Vec<(Box<str>, Box<str>)>,
}

impl Default for Names {
    fn default() -> Names {
        let mut names = Names {
            by_name: HashMap::new(),
            names: Vec::new(),
        };
        names.intern("");
        names
    }
}

impl Names {
    pub(super) fn intern(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        let json = serde_json::Value::from(name).to_string();
        self.names.push((name.into(), json.into()));
        self.by_name.insert(name.into(), id);
        id
    }

    pub(super) fn name(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("", |(name, _)| name)
    }

    pub(super) fn json(&self, id: u32) -> &str {
        self.names.get(id as usize).map_or("\"\"", |(_, json)| json)
    }
}
