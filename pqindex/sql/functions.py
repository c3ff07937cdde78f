"""The functions and types that a query may name, as data grouped by kind.

A name that is not here is refused, so a function that a later DuckDB adds is refused until somebody has read what
it does. What belongs here: functions of their arguments alone. What never does: anything that reads or writes a
file, the network, the environment, settings, secrets, sequences or the catalogue, runs text as SQL, or sleeps.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS_BY_KIND: Mapping[str, frozenset[str]] = {
    "operators": _names(
        "+ - * / // % ** ^ & | ~ << >> || && @ !__postfix ~~ !~~ ~~* !~~* ~~~ ^@ <=> <-> <@ @> -> ->>"
    ),
    "math": _names(
        """
        abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide even
        exp factorial fdiv floor fmod gamma gcd greatest greatest_common_divisor isfinite isinf isnan lcm least
        least_common_multiple lgamma ln log log10 log2 mod multiply nextafter pi pow power radians round round_even
        roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
        """
    ),
    "text": _names(
        """
        ascii bar base64 bin bit_length char_length character_length chr concat concat_ws contains
        damerau_levenshtein decode editdist3 encode ends_with format format_bytes formatreadabledecimalsize
        formatreadablesize from_base64 from_binary from_hex hamming hex ilike_escape instr jaccard jaro_similarity
        jaro_winkler_similarity lcase left left_grapheme len length length_grapheme levenshtein like_escape lower
        lpad ltrim mismatches nfc_normalize not_ilike_escape not_like_escape octet_length ord overlay parse_dirname
        parse_dirpath parse_filename parse_path position prefix printf repeat replace reverse right right_grapheme
        rpad rtrim split split_part starts_with str_split string_split string_to_array strip_accents strlen strpos
        substr substring substring_grapheme suffix to_base to_base64 to_binary to_hex translate trim ucase unbin
        unhex unicode upper url_decode url_encode
        """
    ),
    "regular expressions": _names(
        """
        regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches regexp_replace
        regexp_split_to_array str_split_regex string_split_regex
        """
    ),
    "date and time": _names(
        """
        age century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname
        dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear
        julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz
        microsecond millennium millisecond minute month monthname nanosecond normalized_interval quarter second
        strftime strptime time_bucket timezone timezone_hour timezone_minute to_centuries to_days to_decades
        to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds
        to_timestamp to_weeks to_years try_strptime week weekday weekofyear year yearweek
        """
    ),
    "lists": _names(
        """
        aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
        array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
        array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any
        array_indexof array_inner_product array_intersect array_length array_negative_dot_product
        array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back
        array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice
        array_sort array_to_string array_to_string_comma_default array_transform array_unique array_value
        array_where array_zip element_at equi_width_bins filter flatten generate_series generate_subscripts grade_up
        list_aggr list_aggregate list_any_value list_append list_apply list_approx_count_distinct list_avg
        list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat list_contains
        list_cosine_distance list_cosine_similarity list_count list_distance list_distinct list_dot_product
        list_element list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all
        list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop
        list_last list_mad list_max list_median list_min list_mode list_negative_dot_product
        list_negative_inner_product list_pack list_position list_prepend list_product list_reduce list_resize
        list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort list_stddev_pop
        list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop list_var_samp
        list_where list_zip range reduce unnest unpivot_list
        """
    ),
    "structs, maps, enums and unions": _names(
        """
        cardinality enum_code enum_first enum_last enum_range enum_range_boundary map map_concat map_contains
        map_contains_entry map_contains_value map_entries map_extract map_extract_value map_from_entries map_keys
        map_values row struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof
        struct_insert struct_keys struct_pack struct_position struct_update struct_values union_extract union_tag
        union_value
        """
    ),
    "bits": _names("bit_position bitstring get_bit set_bit"),
    "conditions and types": _names("constant_or_null if ifnull nullif typeof"),
    "hashes": _names("hash md5 md5_number md5_number_lower md5_number_upper sha1 sha256"),
    "JSON": _names(
        """
        array_to_json from_json from_json_strict json json_array json_array_length json_contains json_exists
        json_extract json_extract_path json_extract_path_text json_extract_string json_group_array json_group_object
        json_group_structure json_keys json_merge_patch json_object json_pretty json_quote json_structure
        json_transform json_transform_strict json_type json_valid json_value row_to_json to_json
        """
    ),
    "UUIDs": _names("uuid_extract_timestamp uuid_extract_version"),
    "aggregates": _names(
        """
        any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null
        arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor
        bitstring_agg bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy favg first
        fsum geomean geometric_mean group_concat histogram histogram_exact is_histogram_other_bin kahan_sum kurtosis
        kurtosis_pop last list listagg mad max max_by mean median min min_by mode product quantile quantile_cont
        quantile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
        sem skewness stddev stddev_pop stddev_samp string_agg sum sumkahan var_pop var_samp variance wavg
        weighted_avg
        """
    ),
    "windows": _names(
        """
        cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense
        row_number
        """
    ),
}
"""Functions whose answer depends on their arguments alone, lower case, by kind."""

VOLATILE_FUNCTIONS = _names(
    """
    ago current_localtime current_localtimestamp gen_random_uuid get_current_time get_current_timestamp now random
    reservoir_quantile today transaction_timestamp uuid uuidv4 uuidv7
    """
)
"""Functions that give another answer tomorrow, or on the next run: allowed for exploring, refused for pins."""

VOLATILE_VALUES = _names("current_date current_time current_timestamp localtime localtimestamp")
"""The same, written without parentheses."""

SESSION_VALUES = _names(
    "current_catalog current_database current_role current_schema current_user session_user user"
)
"""Names without parentheses that say something about the connection: refused."""

TABLE_FUNCTIONS = _names("generate_series range unnest")
"""Functions that may stand in FROM."""

FUNCTIONS = frozenset().union(*FUNCTIONS_BY_KIND.values(), VOLATILE_FUNCTIONS, VOLATILE_VALUES)
"""Every function that a query may name."""

TYPES = _names(
    """
    any array bigint binary bit bitstring blob bool boolean bpchar bytea char date datetime dec decimal double enum
    float float4 float8 hugeint int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval json list
    logical long map null numeric nvarchar oid real row short signed smallint sqlnull string struct text time
    timestamp timestamp_ms timestamp_ns timestamp_s timestamp_us timestamptz timetz tinyint ubigint uhugeint uint128
    uint16 uint32 uint64 uint8 uinteger union usmallint utinyint uuid varbinary varchar
    """
) | {
    "time with time zone",
    "timestamp with time zone",
    "timestamp without time zone",
    "time without time zone",
    "double precision",
    "integer_literal",
    "string_literal",
}
"""The types that a cast may name, lower case."""

_FILES = (
    "no function reads or writes files; attach the table under a name: attach={'labels': 'labels.parquet'} / "
    "--attach labels=labels.parquet"
)
_OUTSIDE = (
    "a query sees the relations of the index and the attached tables, nothing of the machine or the settings"
)

REFUSED_PREFIXES: tuple[tuple[str, str], ...] = (
    ("read_", _FILES),
    ("parquet_", _FILES),
    ("sniff_", _FILES),
    ("glob", _FILES),
    ("write_", _FILES),
    ("copy_", _FILES),
    ("getenv", _OUTSIDE),
    ("getvariable", "pass the value as a parameter: WHERE x = ? with params=[...] / --param VALUE"),
    ("current_setting", _OUTSIDE),
    ("duckdb_", _OUTSIDE),
    ("pragma_", _OUTSIDE),
    ("pg_", _OUTSIDE),
    ("nextval", "row_number() OVER (ORDER BY ...) numbers rows"),
    ("currval", "row_number() OVER (ORDER BY ...) numbers rows"),
    ("setseed", "hash(seq_id) % 100 < 10 draws the same tenth every time"),
    ("query", "write the query out; text is never run as SQL"),
    ("json_execute", "write the query out; text is never run as SQL"),
    ("json_serialize", _OUTSIDE),
    ("json_deserialize", _OUTSIDE),
)
"""What helps instead of a function that is refused, by the beginning of its name."""
