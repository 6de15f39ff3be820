//! How many lanes a tenant may use where several have the device at the same time (`turns=off`, MPS): nobody's calls wait for
//! another's there, so that shares are kept by how many of them run.
//!
//! Of the lanes that a domain could have, those of the heaviest tenant with calls may all be used, and of another one as many
//! as its weight is a part of that; beside a higher class it is one lane. One lane is every domain's, so that none starves.
//! Where all shares are the same, all lanes are everybody's. A call in a lane is charged for the time that it takes, so
//! tenants that fill what they may use have device time by their weights.

use super::types::TenantShare;

/// How many of so many lanes a tenant may use, beside others that have calls.
pub(super) fn most(lanes: u32, own: TenantShare, others: impl Iterator<Item = TenantShare>) -> u32 {
    let mut heaviest = own.weight.max(1);
    for other in others {
        // A higher class comes first.
        if other.class < own.class {
            return 1;
        }
        if other.class == own.class {
            heaviest = heaviest.max(other.weight);
        }
    }
    let part = u64::from(lanes) * u64::from(own.weight) / u64::from(heaviest);
    u32::try_from(part).unwrap_or(lanes).clamp(1, lanes.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::types::Class;
    use super::*;

    fn share(weight: u32, class: Class) -> TenantShare {
        TenantShare { weight, class, ..TenantShare::default() }
    }

    #[test]
    fn lanes_go_by_weights_within_a_class_and_one_is_everybodys() {
        let normal = |weight| share(weight, Class::Normal);
        let beside = |own: TenantShare, others: &[TenantShare]| most(8, own, others.iter().copied());
        assert_eq!(beside(normal(1), &[]), 8);
        assert_eq!(beside(normal(3), &[normal(3), normal(1)]), 8);
        assert_eq!([1, 2, 4].map(|weight| beside(normal(weight), &[1, 2, 4].map(normal))), [2, 4, 8]);
        assert_eq!(beside(normal(1), &[normal(1000)]), 1);
        assert_eq!(most(4, normal(u32::MAX), [normal(u32::MAX)].into_iter()), 4);
    }

    #[test]
    fn a_lower_class_has_one_lane_and_takes_none_from_a_higher_one() {
        let (latency, batch) = (share(1, Class::Latency), share(1000, Class::Batch));
        assert_eq!(most(8, batch, [latency].into_iter()), 1);
        assert_eq!(most(8, latency, [batch].into_iter()), 8);
        assert_eq!(most(1, batch, [latency].into_iter()), 1);
    }
}
