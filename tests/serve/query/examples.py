"""A call of every function that a query may use, with its result. `t` has rows (g, n, x, s, at)."""

from __future__ import annotations

ROWS = (
    "(VALUES ('a', 1, 0.5, 'one', TIMESTAMPTZ '2024-05-01 12:34:56Z'), "
    "('a', 2, 1.5, 'two', TIMESTAMPTZ '2024-05-01 12:35:00Z'), "
    "('b', 3, 2.5, 'three', TIMESTAMPTZ '2024-05-02 00:00:00Z')) AS t(g, n, x, s, at)"
)
MANY_ROWS = {
    "count": "count(*) + count(n) + count(DISTINCT g)", "count_if": "count_if(n > 1)", "sum": "sum(n)", "avg": "avg(x)",
    "min": "min(s)", "max": "max(at)", "median": "median(n)", "mode": "mode(g)",
    "quantile_cont": "quantile_cont(n, 0.5)", "quantile_disc": "quantile_disc(n, 0.5)",
    "percentile_cont": "percentile_cont(0.5) WITHIN GROUP (ORDER BY n)",
    "percentile_disc": "percentile_disc(0.5) WITHIN GROUP (ORDER BY n)",
    "approx_quantile": "approx_quantile(n, 0.5)", "approx_count_distinct": "approx_count_distinct(g)",
    "stddev": "stddev(n)", "stddev_pop": "stddev_pop(n)", "stddev_samp": "stddev_samp(n)", "variance": "variance(n)",
    "var_pop": "var_pop(n)", "var_samp": "var_samp(n)", "corr": "corr(n, x)", "covar_pop": "covar_pop(n, x)",
    "covar_samp": "covar_samp(n, x)", "regr_slope": "regr_slope(n, x)", "regr_intercept": "regr_intercept(n, x)",
    "regr_r2": "regr_r2(n, x)", "first": "first(n ORDER BY at)", "last": "last(n ORDER BY at)",
    "any_value": "any_value(g)", "arg_max": "arg_max(s, n)", "arg_min": "arg_min(s, n)", "max_by": "max_by(s, n)",
    "min_by": "min_by(s, n)", "bool_and": "bool_and(n > 0)", "bool_or": "bool_or(n > 2)",
    "string_agg": "string_agg(s, ', ' ORDER BY n)", "list": "list(n ORDER BY n DESC)",
    "array_agg": "array_agg(DISTINCT g)", "product": "product(n)", "skewness": "skewness(n)", "kurtosis": "kurtosis(n)",
    "entropy": "entropy(g)",
}  # fmt: skip
WINDOW = {
    "row_number": "row_number() OVER (PARTITION BY g ORDER BY n)", "rank": "rank() OVER (ORDER BY g)",
    "dense_rank": "dense_rank() OVER w", "percent_rank": "percent_rank() OVER w", "cume_dist": "cume_dist() OVER w",
    "ntile": "ntile(2) OVER w", "lag": "lag(n) OVER w", "lead": "lead(n, 1) OVER w",
    "first_value": "first_value(n) OVER w",
    "last_value": "last_value(n) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
    "nth_value": "nth_value(n, 2) OVER w",
}  # fmt: skip
NUMBERS = {
    "abs": "abs(-n)", "ceil": "ceil(x)", "ceiling": "ceiling(x)", "floor": "floor(x)", "round": "round(x, 1)",
    "trunc": "trunc(x)", "sign": "sign(n)", "sqrt": "sqrt(n)", "cbrt": "cbrt(n)", "exp": "exp(n)", "ln": "ln(n)",
    "log10": "log10(n)", "log2": "log2(n)", "power": "power(n, 2)", "pow": "pow(n, 2)", "mod": "mod(n, 2)",
    "greatest": "greatest(n, 2)", "least": "least(n, 2)", "sin": "sin(x)", "cos": "cos(x)", "tan": "tan(x)",
    "asin": "asin(0.5)", "acos": "acos(0.5)", "atan": "atan(x)", "atan2": "atan2(x, 1)", "pi": "pi()",
    "radians": "radians(x)", "degrees": "degrees(x)", "gcd": "gcd(n, 2)", "lcm": "lcm(n, 2)",
    "isnan": "isnan(x::DOUBLE)", "isinf": "isinf(x::DOUBLE)", "isfinite": "isfinite(x::DOUBLE)",
}  # fmt: skip
TEXT = {
    "lower": "lower(s)", "upper": "upper(s)", "length": "length(s)", "trim": "trim(s)", "ltrim": "ltrim(s)",
    "rtrim": "rtrim(s, 'e')", "substring": "substring(s, 1, 2)", "substr": "substr(s, 2)", "left": "left(s, 1)",
    "right": "right(s, 1)", "replace": "replace(s, 'o', '0')", "concat": "concat(g, s)",
    "concat_ws": "concat_ws('-', g, s)", "contains": "contains(s, 'o')", "starts_with": "starts_with(s, 't')",
    "ends_with": "ends_with(s, 'e')", "strpos": "strpos(s, 'e')", "instr": "instr(s, 'e')",
    "position": "position('e' IN s)", "split_part": "split_part(s, 'o', 1)", "string_split": "string_split(s, 'o')",
    "reverse": "reverse(s)", "lpad": "lpad(s, 6, ' ')", "rpad": "rpad(s, 6, ' ')", "repeat": "repeat(s, 2)",
    "regexp_matches": "regexp_matches(s, '^t')", "regexp_full_match": "regexp_full_match(s, 't.*')",
    "regexp_replace": "regexp_replace(s, '[aeiou]', '*', 'g')", "regexp_extract": "regexp_extract(s, '(.)e', 1)",
    "regexp_extract_all": "regexp_extract_all(s, '.')", "ascii": "ascii(s)", "chr": "chr(65)", "encode": "encode(s)",
    "decode": "decode(encode(s))", "hex": "hex(s)", "md5": "md5(s)", "levenshtein": "levenshtein(s, 'one')",
    "jaro_winkler_similarity": "jaro_winkler_similarity(s, 'one')", "strip_accents": "strip_accents('é')",
    "translate": "translate(s, 'o', '0')", "to_base64": "to_base64(encode(s))", "from_base64": "from_base64('AA==')",
}  # fmt: skip
TIMES = {
    "now": "now() > at", "current_timestamp": "current_timestamp > at", "current_date": "current_date > at",
    "date_trunc": "date_trunc('hour', at)", "time_bucket": "time_bucket(INTERVAL '15 minutes', at)",
    "date_part": "date_part('hour', at)", "extract": "extract(minute FROM at)",
    "date_diff": "date_diff('second', at, TIMESTAMPTZ '2024-05-03 00:00:00Z')", "age": "age(at, at)",
    "epoch": "epoch(at)", "epoch_ms": "epoch_ms(at)", "to_timestamp": "to_timestamp(1700000000)",
    "make_date": "make_date(2024, 5, n::INT)", "make_timestamp": "make_timestamp(2024, 5, 1, 12, 0, 0.0)",
    "strftime": "strftime(at, '%H:%M')", "strptime": "strptime('2024-05-01', '%Y-%m-%d')",
    "year": "year(at)", "month": "month(at)", "day": "day(at)", "hour": "hour(at)", "minute": "minute(at)",
    "second": "second(at)", "quarter": "quarter(at)", "week": "week(at)", "dayofweek": "dayofweek(at)",
    "isodow": "isodow(at)", "dayofyear": "dayofyear(at)", "dayname": "dayname(at)", "monthname": "monthname(at)",
    "last_day": "last_day(at)",
}  # fmt: skip
ANY = {
    "coalesce": "coalesce(NULL, n)", "nullif": "nullif(n, 1)", "ifnull": "ifnull(NULL, n)", "if": "if(n > 1, 'x', 'y')",
    "cast": "CAST(n AS VARCHAR)", "try_cast": "TRY_CAST(s AS INT)", "typeof": "typeof(n)",
}  # fmt: skip
LISTS = {
    "unnest": "unnest([n, 2])", "len": "len([1, n])", "range": "range(3)", "generate_series": "generate_series(1, 3)",
    "list_value": "list_value(1, n)", "list_contains": "list_contains([1, 2], n)",
    "list_position": "list_position([1, 2], n)", "list_extract": "list_extract([1, 2], 1)",
    "list_slice": "list_slice([1, 2, 3], 1, 2)", "list_concat": "list_concat([1], [n])",
    "list_distinct": "list_distinct([1, 1])", "list_sort": "list_sort([2, 1])",
    "list_reverse_sort": "list_reverse_sort([1, 2])", "list_sum": "list_sum([1, n])", "list_avg": "list_avg([1, n])",
    "list_min": "list_min([1, n])", "list_max": "list_max([1, n])",
    "list_aggregate": "list_aggregate([1, n], 'sum')", "list_transform": "list_transform([1, n], v -> v + 1)",
    "list_filter": "list_filter([1, n], lambda v: v > 1)", "array_to_string": "array_to_string([s, g], ',')",
    "flatten": "flatten([[1], [n]])", "struct_pack": "struct_pack(a := n)",
    "struct_extract": "struct_extract({'a': n}, 'a')", "map_keys": "map_keys(MAP {'a': n})",
    "map_values": "map_values(MAP {'a': n})", "map_extract": "map_extract(MAP {'a': n}, 'a')",
    "element_at": "element_at(MAP {'a': n}, 'a')", "map_contains": "map_contains(MAP {'a': n}, 'a')",
    "cardinality": "cardinality(MAP {'a': n})",
}  # fmt: skip
GROUPS = {
    "aggregate functions": MANY_ROWS,
    "window functions": WINDOW,
    "numbers": NUMBERS,
    "strings and bytes": TEXT,
    "dates and times": TIMES,
    "any type": ANY,
    "lists, structs and maps": LISTS,
}


def calls(*examples: str) -> str:
    """Return a query that makes these calls."""
    return f"SELECT {', '.join(examples)} FROM {ROWS} WINDOW w AS (ORDER BY n)"
