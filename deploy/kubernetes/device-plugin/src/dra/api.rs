// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocols with the kubelet, generated from `proto/dra.proto` and
//! `proto/pluginregistration.proto`.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");

/// How the kubelet registers the driver.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
