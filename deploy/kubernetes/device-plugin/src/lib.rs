// SPDX-License-Identifier: MIT OR Apache-2.0
//! Offers shares of each GPU of a node to Kubernetes, for jobs under weft: as a device plugin, or
//! as a driver of Dynamic Resource Allocation (`dra`).
//!
//! The kubelet counts shares and hands them to containers. A container that has a share starts with
//! weft's library, the socket of the node's broker, and the GPU of its share. `shares` and `edits`
//! decide and are pure. `registration` serves them to the kubelet. `health` polls the broker.
#![forbid(unsafe_code)]

/// The protocol with the kubelet, `v1beta1`, generated from `proto/deviceplugin.proto`.
pub mod api {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("v1beta1");
}

pub mod api_server;
pub mod dra;
pub mod edits;
pub mod gpus;
pub mod health;
pub mod install;
pub mod registration;
pub mod service;
pub mod shares;
pub mod weft;
