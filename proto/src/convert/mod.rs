//! Conversion between messages and the model.
//!
//! | module | content |
//! |---|---|
//! | [`record`] [`schema`] [`quota`] | stored records: descriptors, sessions, schemas of tables with their quotas; checks versions |
//! | [`command`] | commands of a tablet's log, and their results |
//! | [`tablet_move`] | steps of moving a tablet between groups, and their records |
//! | [`filter`] [`mutation`] [`idempotency`] | content of public requests; refuses unknown fields |
//! | [`locality`] | locality groups in requests of operators |
//! | [`resources`] [`memory_groups`] | resources of a server and its locality groups in memory, in its reports |
//! | [`highest_ids`] [`clock_state`] [`sync_state`] [`scrub_state`] [`scan_cache_state`] | the highest ids that a server knows, its clock, its syncs, its scrubbing and its scan cache, in its reports |
//! | [`call_times`] | the calls of a server within the last seconds, in its reports |
//! | [`cluster_version`] | the active cluster version, and those that a process supports |
//! | [`tablet_load`] | the load of a tablet, in its leader's reports |
//! | [`heat`] | windows of key heat, in their table |
//! | [`rows`] | row sets of requests, rows of responses |
//! | [`messages`] | ReadRows messages of rows |
//! | [`access`] | policies, as records and as messages of the public API |
//! | [`view`] | authorized views, as records and as messages of the public API |
//! | [`admin`] [`value_type`] [`instance`] [`app_profile`] [`operation`] | the public admin API, and its stored records |
//!
//! Each pair is `x_to_proto` and `x_from_proto`; the round trip is lossless. Input from the wire or from disk is validated
//! here once; afterwards the model's type guarantees validity.

pub mod access;
pub mod admin;
pub mod app_profile;
pub mod call_times;
pub mod clock_state;
pub mod cluster_version;
pub mod command;
pub mod filter;
pub mod heat;
pub mod highest_ids;
pub mod idempotency;
pub mod instance;
pub mod locality;
pub mod memory_groups;
pub mod messages;
pub mod mutation;
pub mod operation;
pub mod quota;
pub mod record;
pub mod resources;
pub mod rows;
pub mod scan_cache_state;
pub mod schema;
pub mod scrub_state;
pub mod sync_state;
pub mod tablet_load;
pub mod tablet_move;
mod unknown_fields;
pub mod value_type;
pub mod view;

use ebla_model::Error;

pub use self::{
    call_times::{call_times_from_proto, call_times_to_proto},
    clock_state::{clock_state_from_proto, clock_state_to_proto},
    cluster_version::{active_version, cluster_to_bytes, supported_from_proto, supported_to_proto},
    filter::{filter_from_bytes, filter_from_proto, filter_to_bytes, filter_to_proto},
    heat::{heat_window_from_bytes, heat_window_to_bytes},
    highest_ids::{highest_ids_from_proto, highest_ids_to_proto},
    idempotency::{idempotency_from_proto, idempotency_token},
    locality::{
        group_sizes_from_proto, group_sizes_to_proto, locality_group_change_from_proto, locality_group_change_to_proto,
        locality_groups_to_proto, stored_bytes_from_proto, stored_bytes_to_proto,
    },
    memory_groups::{memory_groups_from_proto, memory_groups_to_proto},
    messages::{LargeRows, MessageSizes, RowMessage, RowMessages, reset_row},
    mutation::{
        mutation_from_bytes, mutation_from_proto, mutation_to_bytes, mutation_to_proto, rule_from_bytes,
        rule_from_proto, rule_to_bytes, rule_to_proto,
    },
    quota::{
        family_usage_from_proto, family_usage_to_proto, limits_from_proto, limits_to_proto, quota_from_proto,
        quota_to_proto, usage_from_proto, usage_to_proto,
    },
    record::{
        Record, decode_record, descriptor_from_bytes, descriptor_from_proto, descriptor_to_bytes, descriptor_to_proto,
        encode_record, group_from_bytes, group_from_proto, group_to_bytes, group_to_proto, key_range_from_proto,
        key_range_to_proto, log_id_from_proto, log_id_to_proto, membership_from_proto, membership_to_proto,
        session_from_proto, session_to_proto, tablet_record_from_proto, tablet_record_to_proto,
        token_record_from_bytes, token_record_to_bytes,
    },
    resources::{resources_from_proto, resources_to_proto},
    rows::{row_from_proto, row_range_from_proto, row_set_from_proto, row_to_proto, rows_to_response},
    scan_cache_state::{scan_cache_state_from_proto, scan_cache_state_to_proto},
    schema::{
        gc_rule_from_proto, gc_rule_to_proto, schema_from_bytes, schema_from_proto, schema_to_bytes, schema_to_proto,
    },
    scrub_state::{scrub_state_from_proto, scrub_state_to_proto},
    sync_state::{sync_state_from_proto, sync_state_to_proto},
    tablet_load::{tablet_load_from_proto, tablet_load_to_proto},
};

/// The version of records and commands. The few with more than one version define it where they are converted: content that
/// needs a later version is written with it, so that an older release stops instead of ignoring the content.
pub const VERSION: u32 = 1;

/// A required part.
fn required<T>(part: Option<T>, name: &str) -> Result<T, Error> {
    part.ok_or_else(|| Error::damaged(format!("{name} is missing")))
}

fn check_versions(version: u32, newest: u32, name: &str) -> Result<(), Error> {
    if (VERSION..=newest).contains(&version) {
        return Ok(());
    }
    Err(Error::damaged(format!("{name} has version {version}, this release supports versions up to {newest}")))
}
