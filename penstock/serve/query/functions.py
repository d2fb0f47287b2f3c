"""The functions that a query may call. `docs/query.md` lists them by their names in SQL; a test calls each of them.

None of them reads anything but its arguments, so none has to do with files, settings or the machine, and none draws
random numbers: a query that is kept live would never come to rest.
"""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KNOWN_TO_THE_PARSER = words(
    # over many rows
    "AnyValue ApproxDistinct ApproxQuantile ArgMax ArgMin ArrayAgg Avg Corr Count CountIf CovarPop CovarSamp First "
    "GroupConcat Kurtosis Last LogicalAnd LogicalOr Max Median Min Mode PercentileCont PercentileDisc RegrIntercept "
    "RegrR2 RegrSlope Skewness Stddev StddevPop StddevSamp Sum Variance VariancePop "
    # over a window
    "CumeDist DenseRank FirstValue Lag LastValue Lead NthValue Ntile PercentRank Rank RowNumber "
    # of numbers
    "Abs Acos Asin Atan Atan2 Cbrt Ceil Cos Degrees Exp Floor Greatest IsInf IsNan Least Ln Log Mod Pi Pow Radians "
    "Round Sign Sin Sqrt Tan Trunc "
    # of text and bytes
    "Ascii Chr Concat ConcatWs Contains Decode Encode EndsWith FromBase64 Hex JarowinklerSimilarity Left Length "
    "Levenshtein Lower MD5 Pad RegexpExtract RegexpExtractAll RegexpFullMatch RegexpLike RegexpReplace Repeat Replace "
    "Reverse Right Split SplitPart StartsWith StrPosition Substring ToBase64 Translate Trim Upper "
    # of times
    "CurrentDate CurrentTimestamp DateBin DateDiff DateFromParts Day DayOfWeek DayOfWeekIso DayOfYear Dayname Extract "
    "Hour LastDay Minute Month Monthname Quarter Second StrToTime TimeToStr TimeToUnix TimestampFromParts "
    "TimestampTrunc UnixToTime Week Year "
    # of anything
    "Case Cast Coalesce If Nullif TryCast Typeof "
    # of lists, structs and maps
    "Array ArrayConcat ArrayContains ArrayDistinct ArrayFilter ArrayMax ArrayMin ArraySort ArrayToString Explode "
    "Flatten GenerateSeries MapKeys Struct StructExtract ToMap Transform Unnest"
)
"""The classes that sqlglot has for calls that it knows."""

BY_NAME = words(
    "age cardinality date_part element_at entropy gcd isfinite lcm list_aggregate list_avg list_extract list_position "
    "list_slice list_sum map_contains map_extract map_values now product strip_accents"
)
"""Those that it does not know, by their names in DuckDB."""

TABLES = frozenset({"GenerateSeries", "Unnest"})
"""What may stand where a table may, besides tables."""
