//! Registry files of arbitrary bytes: refused, or read exactly, and never a folder outside the data folder.

use proptest::prelude::{ProptestConfig, proptest};
use tempfile::TempDir;

use super::state::tests::{full, sealed};
use super::*;
use crate::inputs::inputs;

/// The lines of registries, without their checksum.
fn examples() -> Vec<Vec<u8>> {
    let lines = |state: State| {
        let bytes = state.encode();
        bytes[..bytes.len() - "crc32c 00000000\n".len()].to_vec()
    };
    vec![lines(State::default()), lines(full())]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_file_is_refused_or_read_exactly(lines in inputs(examples())) {
        for bytes in [sealed(&lines), lines] {
            if let Ok(state) = State::decode(&bytes) {
                assert_eq!(state.encode(), bytes);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_the_file_says_nothing_outside_the_groups_is_touched(lines in inputs(examples())) {
        let dir = TempDir::new().unwrap();
        let outside = dir.path().join("g6-r2");
        for folder in [&outside, &dir.path().join(GROUPS).join("g5-r1"), &dir.path().join(GROUPS).join("g6-r2")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(dir.path().join(FILE), sealed(&lines)).unwrap();
        match Registry::open(dir.path()) {
            Ok(registry) => {
                let next = LogId::default();
                for (group, _record) in registry.replicas() {
                    fs::create_dir(registry.begin_install(group).unwrap()).unwrap();
                    drop(registry.finish_install(group, next));
                    registry.remove(group).unwrap();
                    assert!(registry.is_removed(group));
                }
            }
            Err(error) => assert!(matches!(error, RegistryError::Damaged { .. } | RegistryError::LaterFormat { .. }), "{error}"),
        }
        assert!(outside.is_dir());
    }
}
