//! Admin calls for key heat: the heat map of a table, and hot tablets.

use std::time::Duration;

use ebla_model::Micros;
use ebla_model::error::Error;
use ebla_model::heat::HeatMetric;
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::TableName;
use ebla_proto::{admin, operate};
use prost_types::Timestamp;

use crate::admin::{Admin, unwrap_response};

/// What a heat map shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatQuery {
    /// The beginning of the time; `None`: an hour before its end.
    pub from: Option<Micros>,
    /// The end of the time; `None`: now.
    pub to: Option<Micros>,
    /// The keys.
    pub range: KeyRange,
    /// About the most buckets of keys, at most 200; 0: 40.
    pub buckets: u32,
    /// What is counted.
    pub metric: HeatMetric,
}

impl Default for HeatQuery {
    /// Reads and writes of all keys in the last hour.
    fn default() -> Self {
        Self { from: None, to: None, range: KeyRange::all(), buckets: 0, metric: HeatMetric::default() }
    }
}

/// The heat map of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHeat {
    /// The first key of each bucket, ascending, and the tablet that had most of its requests last, if any had.
    pub buckets: Vec<(RowKey, Option<TabletId>)>,
    /// By time, ascending. Steps of time of which nothing is stored are missing.
    pub columns: Vec<KeyHeatColumn>,
    /// The length of a step of time.
    pub step: Duration,
    /// What the counts say, in words.
    pub findings: Vec<String>,
}

/// One step of time of a heat map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHeatColumn {
    /// Its beginning.
    pub start: Micros,
    /// The value in each bucket: of latency the mean in microseconds, otherwise a sum.
    pub values: Vec<u64>,
    /// The value of tablets without ranges of their own: their servers have too many tablets.
    pub other: u64,
}

/// A tablet in a time in which it was busy.
#[derive(Clone, Debug, PartialEq)]
pub struct HotTablet {
    /// Its table.
    pub table: TableName,
    /// The resource name, which ends with the number of the tablet and the time.
    pub name: String,
    /// The first key of the tablet, escaped. Both keys are empty also if the tablet does not exist any more.
    pub start_key: String,
    /// The key behind its last one, escaped; empty: the end of the table.
    pub end_key: String,
    /// The beginning of the time.
    pub start: Micros,
    /// Its end.
    pub end: Micros,
    /// How much of one processor of its server it used, in percent: an estimate.
    pub cpu_percent: f32,
}

impl Admin {
    /// The heat map of a table.
    ///
    /// # Errors
    /// `NotFoundTable`, `PermissionDenied`, `InvalidArgument`; `FailedPrecondition` when key heat is off or nothing was collected yet;
    /// `Unimplemented` from a master of an earlier release; `Unavailable`.
    pub async fn key_heat(&self, table: &TableName, query: &HeatQuery) -> Result<KeyHeat, Error> {
        let message = operate::GetKeyHeatRequest {
            table: table.to_string(),
            from_micros: query.from.map_or(0, Micros::get),
            to_micros: query.to.map_or(0, Micros::get),
            start: query.range.start().bytes().clone(),
            end: query.range.end().map(|end| end.bytes().clone()),
            buckets: query.buckets,
            metric: query.metric.name().to_owned(),
        };
        let reply = unwrap_response(self.operate().get_key_heat(self.request(message)).await)?;
        let bucket = |bucket: operate::KeyBucket| {
            (RowKey::new(bucket.start), Some(bucket.tablet).filter(|tablet| *tablet != 0).map(TabletId::new))
        };
        let column = |column: operate::HeatColumn| KeyHeatColumn {
            start: Micros::new(column.start_micros),
            values: column.values,
            other: column.other,
        };
        Ok(KeyHeat {
            buckets: reply.buckets.into_iter().map(bucket).collect(),
            columns: reply.columns.into_iter().map(column).collect(),
            step: Duration::from_micros(reply.step_micros),
            findings: reply.findings,
        })
    }

    /// The hot tablets of an instance, the hottest first. `from`, `to`: the time, at most 48 hours; `None`: the last 24 hours.
    ///
    /// # Errors
    /// As [`Self::key_heat`].
    pub async fn hot_tablets(
        &self,
        project: &str,
        instance: &str,
        (from, to): (Option<Micros>, Option<Micros>),
    ) -> Result<Vec<HotTablet>, Error> {
        let parent = format!("projects/{project}/instances/{instance}");
        let clusters = admin::ListClustersRequest { parent, page_token: String::new() };
        let clusters = unwrap_response(self.instances().list_clusters(self.request(clusters)).await)?.clusters;
        let mut hot = Vec::new();
        for cluster in clusters {
            let mut page_token = String::new();
            loop {
                let message = admin::ListHotTabletsRequest {
                    parent: cluster.name.clone(),
                    start_time: from.map(timestamp),
                    end_time: to.map(timestamp),
                    page_size: 0,
                    page_token,
                };
                let reply = unwrap_response(self.instances().list_hot_tablets(self.request(message)).await)?;
                hot.extend(reply.hot_tablets.into_iter().map(hot_tablet).collect::<Result<Vec<_>, _>>()?);
                page_token = reply.next_page_token;
                if page_token.is_empty() {
                    break;
                }
            }
        }
        Ok(hot)
    }
}

fn hot_tablet(hot: admin::HotTablet) -> Result<HotTablet, Error> {
    Ok(HotTablet {
        table: hot.table_name.parse()?,
        name: hot.name,
        start_key: hot.start_key,
        end_key: hot.end_key,
        start: micros(hot.start_time.as_ref()),
        end: micros(hot.end_time.as_ref()),
        cpu_percent: hot.node_cpu_usage_percent,
    })
}

fn timestamp(time: Micros) -> Timestamp {
    let nanos = i32::try_from(time.get().rem_euclid(1_000_000) * 1_000).unwrap_or_default();
    Timestamp { seconds: time.get().div_euclid(1_000_000), nanos }
}

fn micros(time: Option<&Timestamp>) -> Micros {
    let micros =
        |time: &Timestamp| time.seconds.saturating_mul(1_000_000).saturating_add(i64::from(time.nanos) / 1_000);
    Micros::new(time.map_or(0, micros))
}
