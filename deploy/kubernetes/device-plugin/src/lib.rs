//! A device plugin of Kubernetes that offers shares of each GPU of a node, for jobs under weft.
//!
//! The kubelet counts shares and assigns them to containers. A container with a share is started
//! with weft's library, the socket of the node's broker, and the GPU of its share. `shares` and
//! `edits` decide and are pure; `registration` serves them to the kubelet; `health` probes the
//! broker.
#![forbid(unsafe_code)]

/// The protocol with the kubelet, `v1beta1`, from `proto/deviceplugin.proto`.
pub mod api {
    #![allow(missing_docs, clippy::all)]
    tonic::include_proto!("v1beta1");
}

pub mod edits;
pub mod gpus;
pub mod health;
pub mod install;
pub mod registration;
pub mod service;
pub mod shares;
