//! Quotas, and what families cost.

use std::collections::BTreeMap;

use ebla_model::quota::{FamilyUsage, Measure, Quota, QuotaLimits, Quotas, TableUsage};
use ebla_model::{Error, FamilyId};

use super::required;
use crate::record;

/// What families cost.
pub fn usage_to_proto(usage: &TableUsage) -> Vec<record::FamilyUsage> {
    usage.iter().map(|(family, usage)| family_usage_to_proto(*family, usage)).collect()
}

/// What families cost. Costs of one family that are listed twice are added.
pub fn usage_from_proto(usage: &[record::FamilyUsage]) -> TableUsage {
    let mut families = TableUsage::new();
    for family in usage {
        families.entry(FamilyId::new(family.family)).or_default().add(family_usage_from_proto(family));
    }
    families
}

/// What one family costs.
pub const fn family_usage_to_proto(family: FamilyId, usage: &FamilyUsage) -> record::FamilyUsage {
    record::FamilyUsage {
        family: family.get(),
        files_bytes: usage.files_bytes,
        unflushed_bytes: usage.unflushed_bytes,
        resident_bytes: usage.resident_bytes,
        cells: usage.cells,
        cells_read: usage.cells_read,
        cells_written: usage.cells_written,
    }
}

/// What one family costs.
pub const fn family_usage_from_proto(usage: &record::FamilyUsage) -> FamilyUsage {
    FamilyUsage {
        files_bytes: usage.files_bytes,
        unflushed_bytes: usage.unflushed_bytes,
        resident_bytes: usage.resident_bytes,
        cells: usage.cells,
        cells_read: usage.cells_read,
        cells_written: usage.cells_written,
    }
}

/// A quota.
pub fn quota_to_proto(quota: &Quota) -> record::Quota {
    let exceeded = match quota.exceeded {
        None => record::QuotaMeasure::None,
        Some(Measure::StoredBytes) => record::QuotaMeasure::StoredBytes,
        Some(Measure::Cells) => record::QuotaMeasure::Cells,
    };
    record::Quota { limits: Some(limits_to_proto(quota.limits)), exceeded: exceeded.into() }
}

/// A quota.
///
/// # Errors
/// `DataDamaged` for an unknown measure.
pub fn quota_from_proto(quota: &record::Quota) -> Result<Quota, Error> {
    let exceeded = match record::QuotaMeasure::try_from(quota.exceeded) {
        Ok(record::QuotaMeasure::None) => None,
        Ok(record::QuotaMeasure::StoredBytes) => Some(Measure::StoredBytes),
        Ok(record::QuotaMeasure::Cells) => Some(Measure::Cells),
        Err(_unknown) => return Err(Error::damaged(format!("quota: unknown measure {}", quota.exceeded))),
    };
    Ok(Quota { limits: quota.limits.as_ref().map(limits_from_proto).unwrap_or_default(), exceeded })
}

/// The limits of a quota.
pub const fn limits_to_proto(limits: QuotaLimits) -> record::QuotaLimits {
    record::QuotaLimits { stored_bytes: limits.stored_bytes, cells: limits.cells }
}

/// The limits of a quota.
pub const fn limits_from_proto(limits: &record::QuotaLimits) -> QuotaLimits {
    QuotaLimits { stored_bytes: limits.stored_bytes, cells: limits.cells }
}

pub(super) fn family_quota_to_proto((family, quota): (&FamilyId, &Quota)) -> record::FamilyQuota {
    record::FamilyQuota { family: family.get(), quota: Some(quota_to_proto(quota)) }
}

/// The quotas of a schema.
pub(super) fn quotas_from_proto(schema: &record::TableSchema) -> Result<Quotas, Error> {
    let of_family = |family: &record::FamilyQuota| {
        let quota = quota_from_proto(required(family.quota.as_ref(), "table schema: quota of a family")?)?;
        Ok((FamilyId::new(family.family), quota))
    };
    let families = schema.family_quotas.iter().map(of_family).collect::<Result<BTreeMap<_, _>, Error>>()?;
    Ok(Quotas { table: schema.quota.as_ref().map(quota_from_proto).transpose()?.unwrap_or_default(), families })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_survive_the_conversion() {
        for exceeded in [None, Some(Measure::StoredBytes), Some(Measure::Cells)] {
            for (stored_bytes, cells) in [(None, None), (Some(0), Some(7)), (Some(u64::MAX), None)] {
                let quota = Quota { limits: QuotaLimits { stored_bytes, cells }, exceeded };
                assert_eq!(quota_from_proto(&quota_to_proto(&quota)).unwrap(), quota);
            }
        }
        assert!(quota_from_proto(&record::Quota { limits: None, exceeded: 9 }).is_err());
    }

    #[test]
    fn costs_survive_the_conversion() {
        let usage = FamilyUsage {
            files_bytes: 1,
            unflushed_bytes: 2,
            resident_bytes: 3,
            cells: 4,
            cells_read: 5,
            cells_written: 6,
        };
        let table: TableUsage = [(FamilyId::new(7), usage), (FamilyId::new(9), FamilyUsage::default())].into();
        assert_eq!(usage_from_proto(&usage_to_proto(&table)), table);
    }
}
