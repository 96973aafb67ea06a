#include "trainer/metrics/record_fields.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "trainer/metrics/record_file.h"

namespace tessera {

std::optional<nlohmann::json> RecordOf(std::string_view line) {
  // Lines of another program's log are not parsed.
  const size_t begin = line.find_first_not_of(std::string_view(" \t\0", 3));
  if (begin == line.npos || line[begin] != '{') return std::nullopt;
  RecordLine record = ParseRecordLine(line);
  if (!record.value.is_object() || KindOf(record.value).empty()) return std::nullopt;
  return std::move(record.value);
}

std::string_view TextOf(const nlohmann::json& record, std::string_view name) {
  const auto field = record.find(name);
  if (field == record.end() || !field->is_string()) return {};
  return field->get_ref<const std::string&>();
}

std::string_view KindOf(const nlohmann::json& record) { return TextOf(record, "kind"); }

std::optional<int64_t> StepOf(const nlohmann::json& record) {
  const auto step = record.find("step");
  if (step == record.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

double NumberOf(const nlohmann::json& record, std::string_view name) {
  const auto field = record.find(name);
  if (field == record.end() || !field->is_number()) return std::numeric_limits<double>::quiet_NaN();
  return field->get<double>();
}

double ExactNumberOf(const nlohmann::json& record, std::string_view name) {
  const auto field = record.find(std::string(name) + "_bits");
  if (field == record.end() || !field->is_string()) return NumberOf(record, name);
  const auto& digits = field->get_ref<const std::string&>();
  const char* const end = digits.data() + digits.size();
  uint64_t bits = 0;
  const auto [parsed, error] = std::from_chars(digits.data(), end, bits, /*base=*/16);
  const bool is_whole = error == std::errc() && parsed == end && digits.size() == 16;
  return is_whole ? std::bit_cast<double>(bits) : NumberOf(record, name);
}

double MedianOfFinite(std::vector<double> numbers) {
  std::erase_if(numbers, [](double number) { return !std::isfinite(number); });
  if (numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = numbers.begin() + static_cast<ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  if (numbers.size() % 2 == 1) return *middle;
  return std::midpoint(*std::max_element(numbers.begin(), middle), *middle);
}

}  // namespace tessera
