//! Placement of new tablets: replicas go to the least loaded servers, and each server comes first equally often.

use std::collections::BTreeMap;

use ebla_model::id::ServerId;

/// Chooses servers for `tablets` new tablets: for each as many different ones as `replicas`, or all if there are
/// fewer.
///
/// `loads`: the possible servers and the number of replicas that each has. Ties go to the lower id. The replicas
/// elect their leader, but the first one of a new tablet tends to win, so first positions are assigned round-robin.
#[must_use]
pub fn assign(loads: &BTreeMap<ServerId, u64>, tablets: usize, replicas: usize) -> Vec<Vec<ServerId>> {
    let mut loads = loads.clone();
    let mut first_counts: BTreeMap<ServerId, u64> = BTreeMap::new();
    (0..tablets).map(|_| assign_one(&mut loads, &mut first_counts, replicas)).collect()
}

fn assign_one(
    loads: &mut BTreeMap<ServerId, u64>,
    first_counts: &mut BTreeMap<ServerId, u64>,
    replicas: usize,
) -> Vec<ServerId> {
    let mut by_load: Vec<_> = loads.iter().map(|(server, load)| (*load, *server)).collect();
    by_load.sort_unstable();
    let mut chosen: Vec<_> = by_load.into_iter().take(replicas).map(|(_load, server)| server).collect();
    for server in &chosen {
        *loads.entry(*server).or_default() += 1;
    }
    chosen.sort_by_key(|server| (first_counts.get(server).copied().unwrap_or(0), *server));
    if let Some(first) = chosen.first() {
        *first_counts.entry(*first).or_default() += 1;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(u64, u64)]) -> BTreeMap<ServerId, u64> {
        of.iter().map(|(server, load)| (ServerId::new(*server), *load)).collect()
    }

    fn numbers(assigned: &[Vec<ServerId>]) -> Vec<Vec<u64>> {
        assigned.iter().map(|servers| servers.iter().map(|server| server.get()).collect()).collect()
    }

    #[test]
    fn first_positions_are_assigned_round_robin() {
        let assigned = assign(&loads(&[(1, 0), (2, 0), (3, 0)]), 4, 3);
        assert_eq!(numbers(&assigned), [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn the_least_loaded_servers_are_chosen_and_loads_are_balanced() {
        let assigned = assign(&loads(&[(1, 5), (2, 0), (3, 0), (4, 1)]), 3, 2);
        assert_eq!(numbers(&assigned), [[2, 3], [3, 2], [4, 2]]);
    }

    #[test]
    fn too_few_servers_give_fewer_replicas() {
        assert_eq!(numbers(&assign(&loads(&[(7, 0)]), 1, 3)), [[7]]);
        assert_eq!(numbers(&assign(&loads(&[]), 1, 3)), [[0; 0]]);
    }
}
