"""The headers of the standard library whose names a source uses without including them.

A source, or its own header (`x.h` of `x.cc` and `x_test.cc`, in whatever folder), includes them
itself, so that it compiles whatever its other headers include.
"""

import os
import pathlib
import re

# Header -> names after std:: or std::ranges::.
NAMES = {
    "algorithm": """
        adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal
        fill fill_n find find_if find_if_not for_each includes is_sorted lower_bound max max_element
        merge min min_element minmax_element mismatch none_of nth_element partial_sort partition
        remove remove_if replace reverse rotate search set_difference set_intersection set_union
        shuffle sort stable_sort swap_ranges transform unique upper_bound""",
    "array": "array to_array",
    "atomic": "atomic memory_order_acq_rel memory_order_acquire memory_order_relaxed "
              "memory_order_release memory_order_seq_cst",
    "bit": "bit_cast bit_ceil bit_floor bit_width countl_zero countr_zero endian has_single_bit "
           "popcount rotl rotr",
    "bitset": "bitset",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "cmath": "ceil copysign cos exp exp2 fabs floor fma frexp isfinite isinf isnan ldexp llround "
             "log log10 log2 lround nan nearbyint nextafter pow round signbit sin sqrt tanh trunc",
    "complex": "complex polar",
    "condition_variable": "condition_variable cv_status",
    "cstddef": "byte ptrdiff_t",
    "cstdio": "fclose fflush fgets fopen fprintf fputc fputs fread fwrite printf snprintf sscanf "
              "vsnprintf",
    "cstdlib": "abort aligned_alloc atoi atoll free getenv malloc strtoull",
    "cstring": "memcmp memcpy memmove memset strerror",
    "deque": "deque",
    "filesystem": "filesystem",
    "fstream": "fstream ifstream ofstream",
    "functional": "equal_to function greater hash invoke less plus reference_wrapper",
    "future": "async future promise shared_future",
    "initializer_list": "initializer_list",
    "iomanip": "setfill setprecision setw",
    "iostream": "cerr cin cout",
    "iterator": "back_inserter distance inserter istreambuf_iterator next prev",
    "latch": "latch",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "make_shared make_unique make_unique_for_overwrite shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag scoped_lock unique_lock",
    "new": "bad_alloc get_new_handler new_handler set_new_handler",
    "numbers": "numbers",
    "numeric": "accumulate exclusive_scan gcd inner_product iota lcm partial_sum reduce "
               "transform_reduce",
    "optional": "nullopt optional",
    "queue": "priority_queue queue",
    "random": "minstd_rand mt19937 mt19937_64 normal_distribution random_device "
              "uniform_int_distribution uniform_real_distribution",
    "regex": "regex regex_match regex_replace regex_search smatch sregex_iterator",
    "set": "multiset set",
    "span": "as_bytes as_writable_bytes span",
    "sstream": "istringstream ostringstream stringstream",
    "string": "getline stod stoi stoll stoul stoull string to_string u32string",
    "string_view": "string_view",
    "system_error": "error_code errc generic_category system_error",
    "thread": "this_thread thread",
    "tuple": "apply make_tuple tie tuple tuple_cat",
    "type_traits": """
        bool_constant conditional_t decay_t false_type is_const_v is_constructible_v
        is_floating_point_v is_integral_v is_same_v is_signed_v is_trivially_copyable_v
        make_unsigned_t remove_const_t remove_cv_t remove_cvref_t remove_reference_t true_type
        type_identity_t""",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "as_const exchange forward in_range index_sequence index_sequence_for "
               "integer_sequence make_integer_sequence move pair swap",
    "variant": "get_if holds_alternative monostate variant visit",
    "vector": "vector",
}
HEADERS = {name: header for header, names in NAMES.items() for name in names.split()}
QUALIFIED = re.compile(r"\bstd::(?:ranges::)?(\w+)")
FIXED_WIDTH = re.compile(r"\bu?int(?:8|16|32|64|ptr)_t\b")
INCLUDE = re.compile(r'^#include [<"](\S+)[>"].*\n', re.MULTILINE)
GUARD = re.compile(r"^#define TESSERA_\w+_H_\n", re.MULTILINE)
NOT_CODE = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
SOURCE = re.compile(r"(.*?)(?:_test)?\.(?:cc|h|cu|cuh)$")


def missing(name, text):
    """The headers that a source lacks, in order."""
    source = SOURCE.fullmatch(name)
    if source is None:
        return []
    included = set(INCLUDE.findall(text))
    own = pathlib.Path(source.group(1)).name + ".h"
    room = name.split("/")[0]
    for header in [i for i in included if pathlib.Path(i).name == own and
                   i.split("/")[0] == room and os.path.exists(i)]:
        included.update(INCLUDE.findall(pathlib.Path(header).read_text()))
    code = NOT_CODE.sub("", text)
    wanted = {HEADERS[found] for found in QUALIFIED.findall(code) if found in HEADERS}
    if FIXED_WIDTH.search(code) and "stdint.h" not in included:
        wanted.add("cstdint")
    return sorted(wanted - included)


def add(headers, text):
    """The text with more headers, which clang-format puts in their places."""
    lines = "".join(f"#include <{header}>\n" for header in headers)
    if first := INCLUDE.search(text):
        return text[:first.end()] + lines + text[first.end():]
    guard = GUARD.search(text)
    begin = guard.end() if guard else 0
    return text[:begin] + "\n" * bool(guard) + lines + "\n" * (not guard) + text[begin:]
