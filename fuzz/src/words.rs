//! The words that queries, updates and pipelines are made of.

/// Operators of queries.
pub const QUERY: &[&str] = &[
    "$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$and", "$or", "$nor", "$not",
    "$exists", "$type", "$regex", "$options", "$mod", "$expr", "$all", "$elemMatch", "$size",
    "$bitsAllSet", "$bitsAnySet", "$bitsAllClear", "$bitsAnyClear", "$jsonSchema", "$comment",
    "$alwaysTrue", "$alwaysFalse", "$sampleRate",
];

/// Keywords of a schema.
pub const SCHEMA: &[&str] = &[
    "bsonType", "type", "required", "properties", "items", "minimum", "maximum", "minLength",
    "maxLength", "pattern", "enum", "allOf", "anyOf", "oneOf", "not", "additionalProperties",
    "patternProperties", "uniqueItems", "multipleOf", "dependencies",
];

/// Operators of updates.
pub const UPDATE: &[&str] = &[
    "$set", "$unset", "$inc", "$mul", "$min", "$max", "$rename", "$setOnInsert", "$currentDate",
    "$bit", "$push", "$addToSet", "$pull", "$pullAll", "$pop", "$each", "$slice", "$sort",
    "$position", "$type", "and", "or", "xor",
];

/// Stages of pipelines.
pub const STAGES: &[&str] = &[
    "$match", "$project", "$addFields", "$set", "$unset", "$group", "$sort", "$limit", "$skip",
    "$count", "$unwind", "$lookup", "$facet", "$bucket", "$bucketAuto", "$sortByCount",
    "$replaceRoot", "$replaceWith", "$sample", "$unionWith", "$redact", "$graphLookup",
    "$setWindowFields", "$fill", "$documents",
];

/// Fields of stages.
pub const STAGE_FIELDS: &[&str] = &[
    "_id", "path", "preserveNullAndEmptyArrays", "includeArrayIndex", "from", "localField",
    "foreignField", "as", "let", "pipeline", "groupBy", "boundaries", "default", "output",
    "buckets", "granularity", "newRoot", "size", "coll", "startWith", "connectFromField",
    "connectToField", "maxDepth", "restrictSearchWithMatch", "partitionBy", "sortBy", "window",
    "documents", "range", "unit", "method", "value",
];

/// Operators of expressions.
pub const EXPRESSIONS: &[&str] = &[
    "$abs", "$add", "$ceil", "$divide", "$exp", "$floor", "$ln", "$log", "$mod", "$multiply",
    "$pow", "$round", "$sqrt", "$subtract", "$trunc", "$sin", "$cmp", "$eq", "$gt", "$lt", "$and",
    "$or", "$not", "$cond", "$ifNull", "$switch", "$concat", "$indexOfBytes", "$indexOfCP",
    "$ltrim", "$trim", "$regexFind", "$regexFindAll", "$regexMatch", "$replaceOne", "$replaceAll",
    "$split", "$strLenBytes", "$strLenCP", "$strcasecmp", "$substrBytes", "$substrCP", "$toUpper",
    "$arrayElemAt", "$arrayToObject", "$concatArrays", "$filter", "$firstN", "$in",
    "$indexOfArray", "$map", "$maxN", "$objectToArray", "$range", "$reduce", "$reverseArray",
    "$size", "$slice", "$sortArray", "$zip", "$setUnion", "$setDifference", "$setIsSubset",
    "$dateAdd", "$dateDiff", "$dateFromParts", "$dateFromString", "$dateToParts", "$dateToString",
    "$dateTrunc", "$year", "$isoWeek", "$hour", "$convert", "$toInt", "$toLong", "$toDouble",
    "$toDecimal", "$toString", "$toDate", "$toObjectId", "$toBool", "$type", "$getField",
    "$setField", "$mergeObjects", "$let", "$literal", "$bitAnd", "$bitNot", "$bsonSize",
    "$binarySize", "$sum", "$avg", "$min", "$max", "$first", "$last", "$push", "$addToSet",
    "$stdDevPop", "$topN", "$bottom", "$median", "$percentile", "$rank", "$denseRank", "$shift",
    "$expMovingAvg", "$linearFill", "$locf", "$documentNumber",
];

/// Arguments of expressions.
pub const ARGUMENTS: &[&str] = &[
    "input", "in", "as", "cond", "if", "then", "else", "branches", "case", "default", "vars",
    "initialValue", "chars", "regex", "options", "find", "replacement", "date", "format",
    "timezone", "onNull", "onError", "to", "unit", "amount", "startDate", "endDate", "binSize",
    "startOfWeek", "year", "month", "day", "hour", "field", "value", "n", "sortBy", "output",
    "inputs", "useLongestLength", "defaults", "limit", "p", "method", "by", "N", "alpha",
];
