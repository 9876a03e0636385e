//! Commands that MongoDB has and this server does not, each with a way around.

/// The commands by name, in order, with what to use instead.
const NOT_OFFERED: &[(&str, &str)] = &[
    ("analyze", "plans are chosen without statistics"),
    ("analyzeShardKey", "there are no shards; use one replica set"),
    ("appendOplogNote", "write a document instead"),
    ("applyOps", "use insert, update and delete, in a transaction if they belong together"),
    ("autoCompact", "space is given back in the background"),
    ("balancerStatus", "there are no shards; use one replica set"),
    ("bulkWrite", "use one insert, update or delete for each collection"),
    ("captrunc", "drop the collection and create it again"),
    ("clone", "use quorate dump and quorate restore"),
    ("cloneCollectionAsCapped", "create a capped collection and fill it with $merge"),
    ("compact", "space is given back in the background"),
    ("convertToCapped", "create a capped collection and fill it with $merge"),
    ("copydb", "use quorate dump and quorate restore"),
    ("createRole", "give users the built-in roles"),
    ("createSearchIndexes", "use createIndexes"),
    ("dropAllRolesFromDatabase", "there are only the built-in roles"),
    ("dropConnections", "restart the member"),
    ("dropRole", "there are only the built-in roles"),
    ("emptycapped", "drop the collection and create it again"),
    ("enableSharding", "there are no shards; use one replica set"),
    ("eval", "run the code in the client"),
    ("features", "buildInfo and hello tell what the server can do"),
    ("filemd5", "compute the digest in the client"),
    ("geoNear", "use aggregate"),
    ("geoSearch", "use aggregate"),
    ("getDiagnosticData", "use serverStatus"),
    ("getShardMap", "there are no shards; use one replica set"),
    ("grantPrivilegesToRole", "give users the built-in roles"),
    ("grantRolesToRole", "give users the built-in roles"),
    ("group", "use aggregate with $group"),
    ("invalidateUserCache", "roles are read for every command; there is no cache"),
    ("listShards", "there are no shards; use one replica set"),
    ("lockInfo", "use currentOp"),
    ("mapReduce", "use aggregate with $group"),
    ("mapreduce", "use aggregate with $group"),
    ("netstat", "serverStatus shows the network"),
    ("parallelCollectionScan", "use find"),
    ("planCacheClear", "plans are chosen anew for every command; there is no cache"),
    ("planCacheClearFilters", "use a hint"),
    ("planCacheListFilters", "use a hint"),
    ("planCacheSetFilter", "use a hint"),
    ("reIndex", "use dropIndexes and createIndexes"),
    ("removeQuerySettings", "use a hint"),
    ("repairDatabase", "use validate; a damaged member copies everything anew"),
    ("replSetAbortPrimaryCatchUp", "use replSetStepUp on the member that should lead"),
    ("revokePrivilegesFromRole", "give users the built-in roles"),
    ("revokeRolesFromRole", "give users the built-in roles"),
    ("rotateCertificates", "restart the member"),
    ("setFeatureCompatibilityVersion", "every member of one version has all its features"),
    ("setIndexCommitQuorum", "indexes are built by the primary and then by each secondary"),
    ("setQuerySettings", "use a hint"),
    ("setUserWriteBlockMode", "use fsync with lock"),
    ("shardCollection", "there are no shards; use one replica set"),
    ("shardingState", "there are no shards; use one replica set"),
    ("updateRole", "give users the built-in roles"),
    ("validateDBMetadata", "use validate"),
];

/// What to use in place of a command of MongoDB; none if MongoDB has no such command either.
pub(crate) fn way_around(name: &str) -> Option<&'static str> {
    let place = NOT_OFFERED.binary_search_by_key(&name, |(known, _)| *known).ok()?;
    Some(NOT_OFFERED[place].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_and_has_no_command_that_is_offered() {
        assert!(NOT_OFFERED.is_sorted_by_key(|(name, _)| *name));
        for (name, way) in NOT_OFFERED {
            assert!(crate::command_table::find(name).is_none(), "{name}");
            assert_eq!(way_around(name), Some(*way));
        }
        assert_eq!(way_around("nonsense"), None);
    }
}
