//! Which servers get the replicas of new tablets: the least loaded ones, and each as first as often as the others.

use std::collections::BTreeMap;

use ebla_model::id::ServerId;

/// Servers for `tablets` new tablets: for each as many different ones as `replicas`, or all there are if they are fewer.
///
/// `loads`: the servers that may be chosen and how many replicas each has already. Ties go to the lower id. Replicas
/// elect among themselves, but the first of a new tablet tends to lead, so the first places are dealt round.
#[must_use]
pub fn assign(loads: &BTreeMap<ServerId, u64>, tablets: usize, replicas: usize) -> Vec<Vec<ServerId>> {
    let mut loads = loads.clone();
    let mut firsts: BTreeMap<ServerId, u64> = BTreeMap::new();
    (0..tablets).map(|_| assign_one(&mut loads, &mut firsts, replicas)).collect()
}

fn assign_one(
    loads: &mut BTreeMap<ServerId, u64>,
    firsts: &mut BTreeMap<ServerId, u64>,
    replicas: usize,
) -> Vec<ServerId> {
    let mut by_load: Vec<_> = loads.iter().map(|(server, load)| (*load, *server)).collect();
    by_load.sort_unstable();
    let mut chosen: Vec<_> = by_load.into_iter().take(replicas).map(|(_load, server)| server).collect();
    for server in &chosen {
        *loads.entry(*server).or_default() += 1;
    }
    chosen.sort_by_key(|server| (firsts.get(server).copied().unwrap_or(0), *server));
    if let Some(first) = chosen.first() {
        *firsts.entry(*first).or_default() += 1;
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
    fn first_places_are_dealt_round() {
        let assigned = assign(&loads(&[(1, 0), (2, 0), (3, 0)]), 4, 3);
        assert_eq!(numbers(&assigned), [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn the_least_loaded_are_chosen_and_loads_even_out() {
        let assigned = assign(&loads(&[(1, 5), (2, 0), (3, 0), (4, 1)]), 3, 2);
        assert_eq!(numbers(&assigned), [[2, 3], [3, 2], [4, 2]]);
    }

    #[test]
    fn too_few_servers_give_fewer_replicas() {
        assert_eq!(numbers(&assign(&loads(&[(7, 0)]), 1, 3)), [[7]]);
        assert_eq!(numbers(&assign(&loads(&[]), 1, 3)), [[0; 0]]);
    }
}
