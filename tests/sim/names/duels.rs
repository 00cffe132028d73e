//! Pairs of calls on one name that are sent at the same moment through different servers of the mounttable.
//!
//! | duel | calls | must hold |
//! |---|---|---|
//! | replacement | the only server of a name is unmounted while another one is mounted: the node, which is empty for a moment, may be collected | the mounted server stays |
//! | refresh | a server is mounted again just before its deadline, and the name is resolved just after it, from caches that have the old deadline | the server stays |

use std::time::Duration;

use ebla_workload::bench::names::session::Session;

use super::users::{CALL, User};
use super::{AGE, GRACE, in_time, look_up};
use crate::time;

/// Calls of a pair are this far apart at most.
const APART_MAX_MICROS: u64 = 30_000;
/// For how long a server is mounted that is mounted again.
const SHORT: Duration = Duration::from_secs(2);
/// It is mounted again about this time before.
const BEFORE: Duration = Duration::from_millis(200);
/// For how long the server is mounted that must stay: until it is looked up when caches are certainly too old.
const LONG: Duration = Duration::from_secs(8);
/// Beyond a time after which something is certain.
const MARGIN: Duration = Duration::from_millis(50);

/// Duels until the load ends, each on a new name.
pub(super) async fn fight(user: User<'_>, number: u32) {
    let folder = format!("duels/{number}");
    // The folder stays, so that only the node of the name is collected.
    user.mount(&format!("{folder}/keep"), &format!("keep-{number}:1"), Duration::ZERO).await;
    for turn in 0_u32.. {
        if !user.is_running() {
            return;
        }
        let name = format!("{folder}/{turn}");
        let stays =
            if (number + turn).is_multiple_of(2) { replace(&user, &name).await } else { refresh(&user, &name).await };
        if stays {
            tokio::time::sleep(AGE + MARGIN).await;
            look(&user, &name).await;
        }
    }
}

/// Resolves the name through each server.
async fn look(user: &User<'_>, name: &str) {
    for mut session in user.sessions.iter().cloned() {
        let outcome = look_up(user.cluster, &mut session, name, CALL).await;
        user.ended("resolve", name, &outcome).await;
    }
}

/// The same at once, without pauses.
async fn look_at_once(user: &User<'_>, name: &str) {
    let looks = user.sessions.iter().cloned().map(|mut session: Session| async move {
        drop(look_up(user.cluster, &mut session, name, CALL).await);
    });
    futures::future::join_all(looks).await;
}

async fn wait_apart(user: &User<'_>) {
    tokio::time::sleep(Duration::from_micros(user.rng.below(APART_MAX_MICROS))).await;
}

/// Returns whether a server is mounted that must stay.
async fn replace(user: &User<'_>, name: &str) -> bool {
    let (first, second) = (format!("first-{}:1", user.name), format!("second-{}:1", user.name));
    // Nothing is expected of the first one.
    user.cluster.names.lock().begin_mount(name, &first, time::elapsed());
    let mounted = in_time(CALL, user.session().mount(name, &first, Duration::ZERO)).await;
    user.ended("mount", name, &mounted).await;
    if mounted.is_err() {
        return false;
    }
    tokio::time::sleep(GRACE + MARGIN).await;
    let unmount = async {
        wait_apart(user).await;
        let mut session = user.session();
        let unmounted = in_time(CALL, session.unmount_server(name, &first)).await;
        user.ended("unmount", name, &unmounted).await;
    };
    let mount = async {
        wait_apart(user).await;
        user.mount(name, &second, LONG).await
    };
    let ((), is_mounted) = tokio::join!(unmount, mount);
    is_mounted
}

/// As [`replace`].
async fn refresh(user: &User<'_>, name: &str) -> bool {
    let server = format!("again-{}:1", user.name);
    let deadline = time::elapsed() + SHORT;
    if !user.mount(name, &server, SHORT).await {
        return false;
    }
    let until = |time: Duration| tokio::time::sleep(time.saturating_sub(time::elapsed()));
    until(deadline.saturating_sub(BEFORE * 2)).await;
    look_at_once(user, name).await;
    until(deadline.saturating_sub(BEFORE)).await;
    let is_mounted = user.mount(name, &server, LONG).await;
    // The server has computed the deadline a little later.
    until(deadline + MARGIN).await;
    wait_apart(user).await;
    look_at_once(user, name).await;
    is_mounted
}
