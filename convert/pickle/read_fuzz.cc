// A fuzz target: any bytes are a pickle or an error, within the promised memory.

#include <cstddef>
#include <string>

#include "convert/pickle/read.h"
#include "convert/pickle/value.h"
#include "convert/testing/fuzz_check.h"
#include "convert/testing/string_file.h"

namespace {

namespace pickle = tessera::ckpt::pickle;
using tessera::ckpt::convert::Check;

constexpr size_t kMemoryPerByte = 100;
constexpr size_t kMaxVisits = 1000;

// Uses every accessor of every value that can be reached, up to a number of steps.
size_t Visit(const pickle::Value& value, const std::string& input, int depth, size_t visits) {
  if (visits >= kMaxVisits || depth > 50) return visits;
  ++visits;
  Check(!pickle::KindName(value.kind()).empty());
  if (const auto extent = value.extent()) {
    Check(extent->offset <= input.size() && extent->length <= input.size() - extent->offset);
  }
  // Latin-1 becomes UTF-8.
  if (const auto text = value.AsText()) Check(text->size() <= 2 * input.size());
  if (const auto number = value.AsInt()) Check(*number < 0 || value.AsUint() == *number);
  const std::string global = value.GlobalName();  // cut where it is long
  Check(global.size() > 1000 || value.is(pickle::Kind::kGlobal) == value.IsGlobal(global));
  for (size_t i = 0; i < value.size(); ++i) visits = Visit(value[i], input, depth + 1, visits);
  for (size_t i = 0; i < value.entry_count(); ++i) {
    visits = Visit(value.entry(i).first, input, depth + 1, visits);
    visits = Visit(value.entry(i).second, input, depth + 1, visits);
  }
  for (const pickle::Value& part : {value.callable(), value.arguments(), value.keyword_arguments(),
                                    value.state(), value.persistent_id()}) {
    if (part.present()) visits = Visit(part, input, depth + 1, visits);
  }
  return visits;
}

}  // namespace

void FuzzOneInput(const std::string& input) {
  const tessera::ckpt::convert::StringFile file(input);
  const auto read = pickle::ReadPickle(file, {0, input.size()});
  if (!read.ok()) return;
  Check(read->end_offset() <= input.size());
  Check(read->memory_bytes() <= kMemoryPerByte * input.size() + 1024);
  Visit(read->root(), input, 0, 0);
}
