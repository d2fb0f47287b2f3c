"""The functions that a query can call. `docs/query.md` lists them by their SQL names, and a test calls each of them.

Apart from the current time, they use only their arguments: they do not access files, settings or the machine. None of
them returns random numbers, because the result of a live query would then never stop changing.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN_TO_THE_PARSER = words(
    # aggregates
    "AnyValue ApproxDistinct ApproxQuantile ArgMax ArgMin ArrayAgg Avg Corr Count CountIf CovarPop CovarSamp First "
    "GroupConcat Kurtosis Last LogicalAnd LogicalOr Max Median Min Mode PercentileCont PercentileDisc RegrIntercept "
    "RegrR2 RegrSlope Skewness Stddev StddevPop StddevSamp Sum Variance VariancePop "
    # window functions
    "CumeDist DenseRank FirstValue Lag LastValue Lead NthValue Ntile PercentRank Rank RowNumber "
    # numbers
    "Abs Acos Asin Atan Atan2 Cbrt Ceil Cos Degrees Exp Floor Greatest IsInf IsNan Least Ln Log Mod Pi Pow Radians "
    "Round Sign Sin Sqrt Tan Trunc "
    # text and bytes
    "Ascii Chr Concat ConcatWs Contains Decode Encode EndsWith FromBase64 Hex JarowinklerSimilarity Left Length "
    "Levenshtein Lower MD5 Pad RegexpExtract RegexpExtractAll RegexpFullMatch RegexpLike RegexpReplace Repeat Replace "
    "Reverse Right Split SplitPart StartsWith StrPosition Substring ToBase64 Translate Trim Upper "
    # times
    "CurrentDate CurrentTimestamp DateBin DateDiff DateFromParts Day DayOfWeek DayOfWeekIso DayOfYear Dayname Extract "
    "Hour LastDay Minute Month Monthname Quarter Second StrToTime TimeToStr TimeToUnix TimestampFromParts "
    "TimestampTrunc UnixToTime Week Year "
    # any type
    "Case Cast Coalesce If Nullif TryCast Typeof "
    # lists, structs and maps
    "Array ArrayConcat ArrayContains ArrayDistinct ArrayFilter ArrayMax ArrayMin ArraySort ArrayToString Explode "
    "Flatten GenerateSeries MapKeys Struct StructExtract ToMap Transform Unnest"
)
"""The sqlglot classes of the functions that sqlglot knows."""

BY_NAME = words(
    "age cardinality date_part element_at entropy gcd isfinite lcm list_aggregate list_avg list_extract list_position "
    "list_slice list_sum map_contains map_extract map_values now product strip_accents"
)
"""The functions that sqlglot does not know, by their DuckDB names."""

AGGREGATES = words(
    "count count_if sum avg min max median mode quantile_cont quantile_disc percentile_cont percentile_disc "
    "approx_quantile approx_count_distinct stddev stddev_pop stddev_samp variance var_pop var_samp corr covar_pop "
    "covar_samp regr_slope regr_intercept regr_r2 first last any_value arg_max arg_min max_by min_by bool_and bool_or "
    "string_agg list array_agg product skewness kurtosis entropy"
)
"""The aggregate functions that `list_aggregate` can call, by their names in `docs/query.md`. DuckDB knows more."""

TABLES = frozenset({"GenerateSeries", "Unnest"})
"""The functions allowed in place of a table."""
