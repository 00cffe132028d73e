//! Replicas whose cores have ended: by an error of the state machine, or because they were stopped.

use std::sync::Arc;

use bytes::Bytes;
use ebla_model::Reason;
use futures::FutureExt as _;

use super::cluster::{Cluster, LIVENESS_TIMEOUT, QUICK, Transport, until};
use crate::raft::{Fault, ProposeError};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_core_that_ended_by_an_error_leads_no_more_and_says_why() {
    let cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    assert!(node.group.is_running());
    let fault = Fault::with_reason(Reason::ResourceExhausted, "no space left on the device");
    node.machine.fail(fault.clone());
    let outcome = node.group.propose(vec![Bytes::from_static(b"first")], None).await.remove(0);
    assert_eq!(outcome, Err(ProposeError::Unknown), "the followers have it");
    let failed = tokio::time::timeout(LIVENESS_TIMEOUT, node.group.failed()).await.unwrap();
    assert_eq!(failed, fault);
    let status = node.group.status();
    assert!(!node.group.is_running() && node.group.leadership().is_none());
    assert_eq!((status.is_leader, status.leader), (false, None));
    until("the watchers see it", || !node.group.watch().borrow().is_leader).await;
    until("another leader", || cluster.leader_now().is_some_and(|now| now != leader)).await;
    cluster.write("second").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_core_that_was_stopped_has_not_failed() {
    let cluster = Cluster::start(1, Transport::Direct, QUICK).await;
    let group = Arc::clone(&cluster.node(cluster.leader().await).group);
    group.stop().await;
    assert!(!group.is_running());
    assert!(group.failed().now_or_never().is_none());
}
