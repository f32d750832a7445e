// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stand-in for the kubelet's side of Dynamic Resource Allocation, for tests/cluster/test_dra.py.
//!
//!   dra-kubelet register SOCKET                          registers the driver behind it
//!   dra-kubelet prepare SOCKET NAMESPACE NAME UID...     one call for all these claims
//!   dra-kubelet unprepare SOCKET NAMESPACE NAME UID...
//!
//! It prints the answer as JSON. Each call is a process, so it has no more state than a kubelet
//! that starts anew.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use weft_device_plugin::dra::api::dra_plugin_client::DraPluginClient;
use weft_device_plugin::dra::api::registration::registration_client::RegistrationClient;
use weft_device_plugin::dra::api::registration::{InfoRequest, RegistrationStatus};
use weft_device_plugin::dra::api::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};

/// The kubelet's limit for a call, s.
const CALL_BOUND: Duration = Duration::from_secs(45);

async fn connect(path: String) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    // The kubelet bounds each of its calls, too.
    let endpoint = Endpoint::from_static("http://driver").timeout(CALL_BOUND);
    endpoint.connect_with_connector(connect).await
}

async fn answer(word: &str, socket: &str, rest: &[String]) -> Result<Value, Box<dyn std::error::Error>> {
    let channel = connect(socket.to_string()).await?;
    let mut client = DraPluginClient::new(channel.clone());
    let claims = rest.chunks_exact(3).map(|claim| Claim {
        namespace: claim[0].clone(),
        name: claim[1].clone(),
        uid: claim[2].clone(),
    });
    let claims = claims.collect();
    match word {
        "register" => {
            let mut client = RegistrationClient::new(channel);
            let info = client.get_info(InfoRequest {}).await?.into_inner();
            let status = RegistrationStatus {
                plugin_registered: true,
                error: String::new(),
            };
            client.notify_registration_status(status).await?;
            Ok(
                json!({"type": info.r#type, "name": info.name, "endpoint": info.endpoint,
                      "versions": info.supported_versions}),
            )
        }
        "prepare" => {
            let answer = client
                .node_prepare_resources(NodePrepareResourcesRequest { claims })
                .await?;
            let claims = answer.into_inner().claims.into_iter().map(|(uid, claim)| {
                let devices: Vec<Value> = claim
                    .devices
                    .iter()
                    .map(|device| {
                        json!({"requests": device.request_names, "pool": device.pool_name,
                           "device": device.device_name, "cdi": device.cdi_device_ids})
                    })
                    .collect();
                (uid, json!({"devices": devices, "error": claim.error}))
            });
            Ok(Value::Object(claims.collect::<Map<_, _>>()))
        }
        "unprepare" => {
            let answer = client
                .node_unprepare_resources(NodeUnprepareResourcesRequest { claims })
                .await?;
            let claims = answer.into_inner().claims.into_iter();
            Ok(Value::Object(
                claims
                    .map(|(uid, claim)| (uid, json!({"error": claim.error})))
                    .collect(),
            ))
        }
        _ => Err(format!("{word} is no call").into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [word, socket, rest @ ..] = words.as_slice() else {
        return Err("write CALL SOCKET [CLAIM...]".into());
    };
    println!("{}", answer(word, socket, rest).await?);
    Ok(())
}
